"""The demo's network in PyTorch: a small ResNet, its training, and one image at a time through it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import nn
from torch.nn import functional

import sita_adapters as sita

from .demo import Classifier, Training
from .digits import Digits

NAME = "torch"
LABEL = "PyTorch"


class Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, channels, h, w) → (N, width, h / stride, w / stride)."""
        inner = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(inner + self.shortcut(x))


class DigitResNet(nn.Module):
    """A residual network with one block per stage, from grey images to ten logits."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, widths[0], 5, 2, 2, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU())
        inputs = (widths[0], *widths[:-1])
        self.stages = nn.Sequential(
            *(Block(c, w, 1 if i == 0 else 2) for i, (c, w) in enumerate(zip(inputs, widths, strict=True)))
        )
        self.head = nn.Linear(widths[-1], 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 1, h, w) → (N, 10)."""
        features: torch.Tensor = self.stages(self.stem(x))
        logits: torch.Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


def train(digits: Digits, training: Training, advance: Callable[[], None]) -> DigitResNet:
    """Return a network trained on these digits, in eval mode; `advance` is called after every epoch.

    Digits are shifted a little at random and never corrupted.
    """
    random = torch.Generator().manual_seed(training.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        network = DigitResNet(training.widths)
    images, labels = encode(digits.images), torch.from_numpy(digits.labels)
    optimizer = torch.optim.SGD(
        network.parameters(),
        training.learning_rate,
        momentum=0.9,
        weight_decay=training.weight_decay,
        nesterov=True,
    )
    steps = len(images) // training.batch_size
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, training.learning_rate, total_steps=steps * training.epochs
    )
    for _ in range(training.epochs):
        shuffled = torch.randperm(len(images), generator=random)[: steps * training.batch_size]
        for batch in torch.split(shuffled, training.batch_size):
            loss = functional.cross_entropy(network(_shifted(images[batch], training.shift, random)), labels[batch])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
        advance()
    return network.eval()


def _shifted(images: torch.Tensor, most: int, random: torch.Generator) -> torch.Tensor:
    """Return the batch shifted by up to `most` pixels in each direction, padded with white paper."""
    height, width = images.shape[-2:]
    top, left = torch.randint(0, 2 * most + 1, (2,), generator=random).tolist()
    padded = functional.pad(images, (most,) * 4, value=-1.0)
    return padded[..., top : top + height, left : left + width]


def encode(images: np.ndarray) -> torch.Tensor:
    """(N, h, w) with values in [0, 1] → (N, 1, h, w) with values in [−1, 1], as the network takes them."""
    return torch.from_numpy(images).unsqueeze(1) * 2.0 - 1.0


def save(network: DigitResNet, path: Path) -> None:
    """Write the weights to a safetensors file."""
    path.write_bytes(safetensors.save(network.state_dict()))


def load(path: Path, training: Training) -> DigitResNet:
    """Return the saved network; raise ValueError where the file holds anything else."""
    network = DigitResNet(training.widths)
    try:
        network.load_state_dict(safetensors.load(path.read_bytes()))
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{path.name} does not hold the network's weights: {error}") from error
    return network.eval()


def classifier(network: nn.Module, recipe: str) -> Classifier:
    """Return a function that classifies one image with this recipe."""
    adapted = sita.adapt(network, recipe)

    def classify(image: np.ndarray) -> int:
        with torch.inference_mode():
            return int(adapted(encode(image[None])).argmax())

    return classify


class _OnPictures(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.network(pictures.mean(1, keepdim=True))
        return scores


def on_pictures(network: nn.Module) -> nn.Module:
    """Return a network that takes pictures (N, 3, h, w), RGB from −1 to 1, in place of grey images."""
    return _OnPictures(network).eval()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread inside the context: images are too small to share, and results are reproducible."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
