"""A small segmentation network with BatchNorm for CamVid, in PyTorch, and its training on one CPU core."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import nn
from torch.nn import functional

from ..demo.digits_torch import one_thread
from ..files import cache_folder, replacing
from ..progress import Progress, Silence
from .camvid import CLASSES, VOID, Pair, digest, encode, load_pairs, resize


@dataclass(frozen=True)
class Training:
    """All that decides the network's weights, apart from the pictures. A change of the code counts up `revision`.

    A picture is mirrored or not, and a window of it, `narrowest` to 1 of its width and of its height, is scaled to
    `crop` (width, height). Against CamVid at 240 × 180, things then appear at 0.8 to 1.6 times their size. Pictures are
    never blurred, made noisy, or changed in brightness or colour.
    """

    seed: int = 0
    widths: tuple[int, int, int, int] = (24, 48, 96, 128)
    epochs: int = 60
    batch_size: int = 8
    learning_rate: float = 4e-3
    weight_decay: float = 1e-2
    crop: tuple[int, int] = (192, 144)
    narrowest: float = 0.5
    revision: int = 1


def _convolve(channels: int, width: int, kernel: int = 3, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """A convolution and its BatchNorm."""
    padding = dilation * (kernel // 2)
    convolution = nn.Conv2d(channels, width, kernel, stride, padding, dilation, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width))


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, channels: int, width: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.first = _convolve(channels, width, stride=stride, dilation=dilation)
        self.second = _convolve(width, width, dilation=dilation)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = _convolve(channels, width, kernel=1)
        self.stride = stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, h, w) → (N, width, h / stride, w / stride)."""
        # Not a strided 1 × 1 convolution, though it computes the same: on a CPU, in the channels-last layout, its
        # gradient writes beyond its memory where there are fewer than 8 channels (PyTorch 2.13).
        around = self.shortcut(x[..., :: self.stride, :: self.stride])
        return torch.relu(self.second(torch.relu(self.first(x))) + around)


class Merge(nn.Module):
    """Brings coarse features to the resolution of finer ones, and the two together."""

    def __init__(self, coarse: int, fine: int, width: int) -> None:
        super().__init__()
        self.coarse = _convolve(coarse, width, kernel=1)
        self.fine = _convolve(fine, width, kernel=1)
        self.both = _convolve(width, width)

    def forward(self, coarse: torch.Tensor, fine: torch.Tensor) -> torch.Tensor:
        """(N, coarse, h', w') and (N, fine, h, w) → (N, width, h, w)."""
        both = _scale(self.coarse(coarse), fine) + self.fine(fine)
        return torch.relu(self.both(torch.relu(both)))


def _scale(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Interpolate to another tensor's height and width."""
    return functional.interpolate(x, like.shape[-2:], mode="bilinear", align_corners=False)


class RoadNet(nn.Module):
    """A residual encoder down to a 16th of the resolution and a decoder back, from photographs to logits a pixel.

    Takes any image size. Far context comes from dilated convolutions rather than from pooling the whole image: the
    BatchNorm after such a pooling would see a single value an image, of which there are no statistics.
    """

    def __init__(self, widths: tuple[int, int, int, int]) -> None:
        super().__init__()
        half, quarter, eighth, sixteenth = widths
        self.stem = _convolve(3, half, stride=2)
        self.quarter = Block(half, quarter, stride=2)
        self.eighth = nn.Sequential(Block(quarter, eighth, stride=2), Block(eighth, eighth))
        self.sixteenth = nn.Sequential(
            Block(eighth, sixteenth, stride=2),
            Block(sixteenth, sixteenth, dilation=2),
            Block(sixteenth, sixteenth, dilation=4),
        )
        self.to_eighth = Merge(sixteenth, eighth, sixteenth // 2)
        self.to_quarter = Merge(sixteenth // 2, quarter, quarter)
        self.to_half = Merge(quarter, half, half)
        self.head = nn.Conv2d(half, len(CLASSES), 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, h, w), encoded, → logits (N, 11, h, w)."""
        half = torch.relu(self.stem(x))
        quarter = self.quarter(half)
        eighth = self.eighth(quarter)
        decoded = self.to_eighth(self.sixteenth(eighth), eighth)
        decoded = self.to_half(self.to_quarter(decoded, quarter), half)
        return _scale(self.head(decoded), x)


def train(images: np.ndarray, labels: np.ndarray, training: Training, advance: Callable[[], None]) -> RoadNet:
    """Return a network trained on photographs (N, h, w, 3) and labels (N, h, w), in eval mode.

    `advance` is called after every epoch. The same pictures and settings give the same weights on one machine.
    """
    random = np.random.default_rng(training.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        network = RoadNet(training.widths)
    _lay_out(network, torch.channels_last)  # a fifth faster on a CPU
    batch_size = min(training.batch_size, len(images))
    steps = len(images) // batch_size
    optimizer = torch.optim.AdamW(network.parameters(), training.learning_rate, weight_decay=training.weight_decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, training.learning_rate, total_steps=steps * training.epochs
    )
    weights = torch.from_numpy(class_weights(labels))
    with one_thread():
        for _ in range(training.epochs):
            for batch in random.permutation(len(images))[: steps * batch_size].reshape(steps, batch_size):
                x, y = draw_windows(images[batch], labels[batch], training, random)
                loss = functional.cross_entropy(network(x), y, weights, ignore_index=VOID)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
                schedule.step()
            advance()
    _lay_out(network, torch.contiguous_format)
    return network.eval()


def _lay_out(network: nn.Module, memory_format: torch.memory_format) -> None:
    """Store the convolutions' kernels in this order."""
    network.to(memory_format=memory_format)  # type: ignore[call-overload]  # PyTorch's stubs leave it out


def class_weights(labels: np.ndarray) -> np.ndarray:
    """w = sqrt(median frequency / frequency), (11,); 0 for a class that is not there.

    Halfway, on a log scale, between no weights, by which thin things are missed, and those of median frequency
    balancing, by which they are seen everywhere.
    """
    counts = np.bincount(labels.ravel(), minlength=len(CLASSES))[: len(CLASSES)]
    there = counts > 0
    median = np.median(counts[there]) if there.any() else 0.0
    return np.sqrt(np.divide(median, counts, out=np.zeros(len(CLASSES)), where=there)).astype(np.float32)


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


def predict(model: nn.Module, images: np.ndarray, advance: Callable[[], None] = lambda: None) -> np.ndarray:
    """Return label maps (N, h, w) in uint8 of photographs (N, h, w, 3), one at a time; `advance` is called after each.

    The model may be the network itself or an adapted one.
    """
    predictions = np.empty(images.shape[:3], np.uint8)
    with torch.inference_mode():
        for index in range(len(images)):
            predictions[index] = model(encode(images[index : index + 1]))[0].argmax(0).numpy()
            advance()
    return predictions


def weights_path(folder: Path, pairs: list[Pair], training: Training) -> Path:
    """Name the network by all that decides its weights, so that a change of any trains a new one."""
    made_of = json.dumps(asdict(training), sort_keys=True) + digest(pairs)
    return folder / f"camvid-torch-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.safetensors"


def trained_network(
    pairs: list[Pair], training: Training, folder: Path | None = None, progress: Progress | None = None
) -> RoadNet:
    """Return the network from the folder (unless named, the cache), or train it on these pairs and put it there."""
    progress = progress or Silence()
    path = weights_path(folder or cache_folder(), pairs, training)
    path.parent.mkdir(parents=True, exist_ok=True)  # a folder that cannot be written to is known before the training
    if path.is_file():
        try:
            network = load(path, training)
        except (ValueError, OSError) as error:
            progress.say(f"The stored network cannot be used and is trained anew: {error}")
        else:
            progress.say(f"Network: found, {path}")
            return network
    images, labels = load_pairs(pairs, size=None)
    start = time.perf_counter()
    with progress.track(f"Training on {len(pairs)} pictures", training.epochs) as advance:
        network = train(images, labels, training, advance)
    with replacing(path) as temporary:
        save(network, temporary)
    progress.say(f"Network: trained on {len(pairs)} pictures in {time.perf_counter() - start:.0f} s, {path}")
    return network


def save(network: RoadNet, path: Path) -> None:
    """Write the weights to a safetensors file."""
    path.write_bytes(safetensors.save(network.state_dict()))


def load(path: Path, training: Training) -> RoadNet:
    """Return the network of which the weights were saved; raise ValueError where the file holds anything else."""
    network = RoadNet(training.widths)
    try:
        network.load_state_dict(safetensors.load(path.read_bytes()))
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{path.name} does not hold the network's weights: {error}") from error
    return network.eval()
