"""Small networks for tests, and the large ones with statistics in a healthy range."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

CLASSES = 7


class SmallNet(nn.Module):
    """A residual convolutional classifier with four BatchNorms."""

    def __init__(self, norm: type[nn.Module] = nn.BatchNorm2d, width: int = 8):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = norm(width)
        self.block = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False),
            norm(2 * width),
            nn.ReLU(),
            nn.Conv2d(2 * width, 2 * width, 1, bias=False),
            norm(2 * width),
        )
        self.head = nn.Linear(2 * width, CLASSES)

    def forward_features(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.stem(x)))
        x = torch.relu(self.bn2(self.conv2(x)) + x)
        return torch.relu(self.block(x))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.forward_features(x).mean((2, 3)))


class Featured(SmallNet):
    """Returns its scores and features in a structure."""

    def __init__(self, make: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: torch.Tensor) -> Any:
        features = self.forward_features(x)
        return self.make(self.head(features.mean((2, 3))), features)


def featured(make: Callable[[torch.Tensor, torch.Tensor], Any]) -> nn.Module:
    """Return the small network with what `make` makes of its scores and features."""
    model = Featured(make)
    model.load_state_dict(small().state_dict())
    return model.eval()


def tiny() -> nn.Module:
    """One layer to adapt: torch.export takes seconds a layer."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5)
    model = nn.Sequential(*layers)
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2)
    model[5].weight.data *= 4
    return model.eval()


class TokenNet(nn.Module):
    """Folds its tokens into the batch of a BatchNorm1d, as levit does."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 12, 4, stride=4)
        self.linear = nn.Linear(12, 12, bias=False)
        self.bn = nn.BatchNorm1d(12)
        self.head = nn.Linear(12, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.patch(x).flatten(2).transpose(1, 2)
        mixed = self.linear(tokens)
        return self.head(torch.tanh(self.bn(mixed.flatten(0, 1)).reshape_as(mixed)).mean(1))


class VideoNet(nn.Module):
    """Takes (N, T, C, H, W) and folds time into the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.image = SmallNet()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.image(x.flatten(0, 1)).unflatten(0, x.shape[:2]).mean(1)


class LineNet(nn.Module):
    """A classifier of one-dimensional signals."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.head = nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.bn(self.conv(x))).mean(2))


class VolumeNet(nn.Module):
    """A classifier of volumes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.head = nn.Conv3d(3, 8, 3), nn.BatchNorm3d(8), nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.bn(self.conv(x))).mean((2, 3, 4)))


SHAPES = {
    "SmallNet": (SmallNet, (3, 16, 16)),
    "TokenNet": (TokenNet, (3, 16, 16)),
    "VideoNet": (VideoNet, (2, 3, 16, 16)),
    "VolumeNet": (VolumeNet, (3, 6, 16, 16)),
}

LARGE = {
    "resnet50": 64,
    "densenet121": 64,
    "inception_v3": 96,
}
"""The covered networks, as torchvision has them, and the image size that they are tested at."""


def images(count: int, *shape: int, seed: int = 0) -> torch.Tensor:
    """Smooth structure plus noise, so that statistics differ between images, channels and places."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, *shape[:-2], max(1, shape[-2] // 4), max(1, shape[-1] // 4), generator=generator)
    smooth = nn.functional.interpolate(
        coarse.flatten(0, -4) if len(shape) > 3 else coarse, size=shape[-2:], mode="bilinear"
    ).reshape(count, *shape)
    gain = 0.3 + 2 * torch.rand(count, *[1] * len(shape), generator=generator)
    return gain * smooth + 0.3 * torch.randn(count, *shape, generator=generator)


def warm(model: nn.Module, *shape: int, steps: int = 6) -> nn.Module:
    """Give a fresh model running statistics, and affine parameters, that are not the identity's."""
    generator = torch.Generator().manual_seed(1)
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momenta = [module.momentum for module in norms]
    for module in norms:
        module.momentum = None  # the plain average: nothing of the initial 0 and 1 stays
        if module.affine:
            module.weight.data.uniform_(0.7, 1.3, generator=generator)
            module.bias.data.uniform_(-0.2, 0.2, generator=generator)
    model.train()
    with torch.no_grad():
        for step in range(steps):
            model(images(8, *shape, seed=100 + step))
    for module, momentum in zip(norms, momenta, strict=True):
        module.momentum = momentum
    return model.eval()


def small(name: str = "SmallNet") -> nn.Module:
    """Return one of the small networks, seeded and warmed."""
    return copy.deepcopy(_small(name))


@functools.cache
def _small(name: str) -> nn.Module:
    kind, shape = SHAPES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return warm(kind(), *shape)


@functools.cache
def large(name: str) -> nn.Module:
    """Return one of the covered networks, seeded and warmed. Shared by tests, which must not change it."""
    import torchvision

    torch.manual_seed(0)
    extra = {"init_weights": False, "aux_logits": False} if "inception" in name else {}
    model = getattr(torchvision.models, name)(weights=None, num_classes=20, **extra)
    return warm(model, 3, LARGE[name], LARGE[name], steps=2)


class DenseNet(nn.Module):
    """Labels every place of a signal, an image or a volume."""

    def __init__(self, dimensions: int = 2, classes: int = CLASSES) -> None:
        super().__init__()
        conv = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dimensions]
        norm = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dimensions]
        self.conv1, self.bn1 = conv(3, 8, 3, padding=1), norm(8)
        self.conv2, self.bn2 = conv(8, 8, 3, padding=1), norm(8)
        self.head = conv(8, classes, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        return 3 * self.head(torch.relu(self.bn2(self.conv2(x))))


def dense(dimensions: int = 2, classes: int = CLASSES) -> nn.Module:
    """Return a network for dense prediction, seeded and warmed."""
    torch.manual_seed(0)
    shape = {1: (3, 12, 16), 2: (3, 16, 16), 3: (3, 6, 16, 16)}[dimensions]
    model = DenseNet(dimensions, classes).requires_grad_(False)
    if dimensions > 1:
        return warm(model, *shape)
    model.train()
    with torch.no_grad():
        for step in range(6):
            model(images(8, 3, 4, 16, seed=100 + step).flatten(2))
    return model.eval()
