"""Train the demo's digit reader on clean digits; the demo has its weights.

    python benchmarks/train_digits.py

It takes half a minute on one core. Digits are shifted a little at random and never corrupted. Another processor, or
another version of PyTorch, trains another network from the same seed: that is why the weights are stored.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import save_file
from torch.nn import functional

from sita_workbench.demo.digits import SIZE, WEIGHTS, Digits, encode, load_digits
from sita_workbench.demo.digits_torch import DigitResNet
from sita_workbench.progress import Advance, ConsoleProgress

EPOCHS, BATCH, RATE, DECAY = 20, 64, 0.1, 5e-4


def train(digits: Digits, advance: Advance) -> DigitResNet:
    """Return a network trained on these digits, in eval mode; `advance` is called after every epoch."""
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(0)
    network = DigitResNet()
    images, labels = torch.from_numpy(encode(digits.images)).movedim(-1, 1), torch.from_numpy(digits.labels)
    optimizer = torch.optim.SGD(network.parameters(), RATE, momentum=0.9, weight_decay=DECAY, nesterov=True)
    steps = len(images) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps * EPOCHS)
    for _ in range(EPOCHS):
        shuffled = torch.randperm(len(images), generator=random)[: steps * BATCH]
        for batch in torch.split(shuffled, BATCH):
            loss = functional.cross_entropy(network(shifted(images[batch], SIZE // 8, random)), labels[batch])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
        advance()
    return network.eval()


def shifted(images: torch.Tensor, most: int, random: torch.Generator) -> torch.Tensor:
    """Return the batch shifted by up to `most` pixels in each direction, padded with the paper's color."""
    height, width = images.shape[-2:]
    top, left = torch.randint(0, 2 * most + 1, (2,), generator=random).tolist()
    padded = functional.pad(images, (most,) * 4, value=-1.0)
    return padded[..., top : top + height, left : left + width]


def main() -> None:
    """Train, and write the weights: kernels in half precision, statistics whole."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    progress = ConsoleProgress(Console(highlight=False))
    digits, test = load_digits()
    with progress.track("Training", EPOCHS) as advance:
        network = train(digits, advance)
    state = network.state_dict()
    save_file({name: each.half() if each.ndim > 1 else each for name, each in state.items()}, options.out)
    with torch.inference_mode():
        right = network(torch.from_numpy(encode(test.images)).movedim(-1, 1)).argmax(1).numpy() == test.labels
    progress.say(f"{options.out}: {100 * right.mean():.1f} % of {len(test)} clean test digits are right.")


if __name__ == "__main__":
    main()
