"""Train the small segmentation network on CamVid and print its mean IoU on clean validation pictures.

    python benchmarks/train_camvid.py DATA --out roadnet.safetensors
    sita bench --model camvid-roadnet --weights roadnet.safetensors --data camvid:DATA/camvid --severity 3 \\
        --corrupt clean,gaussian_noise,impulse_noise,defocus_blur,motion_blur,fog,brightness,contrast,jpeg_compression

DATA is the folder that holds camvid/train and camvid/trainannot. Training takes about a quarter of an hour on one core.
The last 67 training pictures are for validation: choose every setting by these. They continue a drive whose earlier
frames are trained on, and so are easier than the test pictures.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from safetensors.torch import save_file
from sklearn.metrics import jaccard_score
from torch import nn

import sita_adapters as sita
from sita_adapters.inputs import ENCODINGS
from sita_workbench.data.dataset import CLEAN, Selection
from sita_workbench.data.images import Fit
from sita_workbench.data.segmentation import CAMVID_CLASSES, CAMVID_VOID, Segmentation, resize
from sita_workbench.files import write_atomically
from sita_workbench.networks.roadnet import SIZE, WIDTHS, RoadNet
from sita_workbench.progress import ConsoleProgress

VALIDATION_COUNT = 67


@dataclass(frozen=True)
class Training:
    """The settings that decide the weights.

    A picture is mirrored or not, and a window of it, `narrowest` to 1 of its width and of its height, is resized to
    `crop` (height, width). Compared with CamVid at 240 × 180, objects then appear at 0.8 to 1.6 times their size.
    Pictures are never blurred, made noisy, or changed in brightness or color.
    """

    seed: int = 0
    widths: tuple[int, int, int, int] = WIDTHS
    epochs: int = 60
    batch_size: int = 8
    learning_rate: float = 4e-3
    weight_decay: float = 1e-2
    crop: tuple[int, int] = (144, 192)
    narrowest: float = 0.5


def encode(images: np.ndarray) -> torch.Tensor:
    """Return photographs (N, h, w, 3) in uint8 as (N, 3, h, w), (x / 255 − mean) / std with ImageNet's mean and std."""
    inputs = ENCODINGS["imagenet"]
    pixels = torch.tensor(images).permute(0, 3, 1, 2).float() / 255
    return (pixels - torch.tensor(inputs.mean).view(3, 1, 1)) / torch.tensor(inputs.std).view(3, 1, 1)


def train(images: np.ndarray, labels: np.ndarray, training: Training, advance: Callable[[], None]) -> RoadNet:
    """Return a network trained on photographs (N, h, w, 3) and labels (N, h, w), in eval mode.

    `advance` is called after every epoch. The same pictures and settings give the same weights on one machine.
    """
    random = np.random.default_rng(training.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        network = RoadNet(training.widths)
    network.to(memory_format=torch.channels_last)  # a fifth faster on a CPU
    batch_size = min(training.batch_size, len(images))
    steps = len(images) // batch_size
    optimizer = torch.optim.AdamW(network.parameters(), training.learning_rate, weight_decay=training.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, training.learning_rate, total_steps=steps * training.epochs
    )
    weights = torch.from_numpy(class_weights(labels))
    for _ in range(training.epochs):
        for batch in random.permutation(len(images))[: steps * batch_size].reshape(steps, batch_size):
            x, y = draw_windows(images[batch], labels[batch], training, random)
            loss = nn.functional.cross_entropy(network(x), y, weights, ignore_index=CAMVID_VOID)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        advance()
    return network.to(memory_format=torch.contiguous_format).eval()


def class_weights(labels: np.ndarray) -> np.ndarray:
    """w = sqrt(median frequency / frequency), (11,); 0 for a class that does not occur.

    Halfway, on a log scale, between no weights, with which thin objects are missed, and median frequency balancing,
    with which they are predicted everywhere.
    """
    counts = np.bincount(labels.ravel(), minlength=len(CAMVID_CLASSES))[: len(CAMVID_CLASSES)]
    occurs = counts > 0
    median = np.median(counts[occurs])
    return np.sqrt(np.divide(median, counts, out=np.zeros(len(counts)), where=occurs)).astype(np.float32)


def draw_windows(
    images: np.ndarray, labels: np.ndarray, training: Training, random: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a window of every picture at the training's size, mirrored or not, as the network and the loss take it."""
    height, width = labels.shape[1:]
    drawn_images, drawn_labels = [], []
    for image, label_map in zip(images, labels, strict=True):
        share = random.uniform(training.narrowest, 1.0)
        inner_width, inner_height = max(1, round(share * width)), max(1, round(share * height))
        left, top = random.integers(width - inner_width + 1), random.integers(height - inner_height + 1)
        box = (int(left), int(top), int(left) + inner_width, int(top) + inner_height)
        pixels, classes = resize(image, label_map, training.crop, box)
        step = -1 if random.random() < 0.5 else 1
        drawn_images.append(pixels[:, ::step])
        drawn_labels.append(classes[:, ::step])
    x = encode(np.stack(drawn_images)).contiguous(memory_format=torch.channels_last)
    return x, torch.from_numpy(np.stack(drawn_labels)).long()


def load(folder: Path, size: tuple[int, int] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return all training pictures and their labels, both in uint8."""
    folders, classes = (folder / "train", folder / "trainannot"), len(CAMVID_CLASSES)
    data = Segmentation("camvid", folders, Selection("none"), Fit(size), ignore=CAMVID_VOID, classes=classes)
    pairs = [data.load(CLEAN, place, place + 1) for place in range(len(data))]
    return np.concatenate([image for image, _ in pairs]), np.concatenate([maps.astype(np.uint8) for _, maps in pairs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, metavar="DATA", help="the folder that holds camvid/")
    parser.add_argument("--out", type=Path, default=Path("roadnet.safetensors"), help="the file for the weights")
    options = parser.parse_args()
    torch.set_num_threads(1)
    progress = ConsoleProgress(Console(highlight=False))
    training = Training()
    try:
        images, labels = load(options.data / "camvid")
        small_images, small_labels = (each[-VALIDATION_COUNT:] for each in load(options.data / "camvid", SIZE))
    except sita.SitaError as error:
        sys.exit(f"train_camvid: {error}")
    with progress.track("Training", training.epochs) as advance:
        network = train(images[:-VALIDATION_COUNT], labels[:-VALIDATION_COUNT], training, advance)
    with write_atomically(options.out) as temporary:
        save_file(network.state_dict(), temporary)
    progress.say(f"Weights: {options.out}, {sum(p.numel() for p in network.parameters()):,} parameters")
    with torch.inference_mode():
        predicted = np.concatenate([network(encode(image[None])).argmax(1).numpy() for image in small_images])
    known = small_labels != CAMVID_VOID
    iou = jaccard_score(small_labels[known], predicted[known], average="macro")
    progress.say(f"Mean IoU on the validation pictures: {iou:.3f}")


if __name__ == "__main__":
    main()
