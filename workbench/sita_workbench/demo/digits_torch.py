"""The demo's network in PyTorch: a small ResNet. benchmarks/train_digits.py trained its weights."""

from __future__ import annotations

import numpy as np
import torch
from safetensors.torch import load_file
from torch import nn

import sita_adapters as sita

from .demo import WEIGHTS, WIDTHS, Classifier

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
    """A residual network with one block per stage, from gray images to ten logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, WIDTHS[0], 5, 2, 2, bias=False), nn.BatchNorm2d(WIDTHS[0]), nn.ReLU())
        inputs = (WIDTHS[0], *WIDTHS[:-1])
        self.stages = nn.Sequential(
            *(Block(c, w, 1 if i == 0 else 2) for i, (c, w) in enumerate(zip(inputs, WIDTHS, strict=True)))
        )
        self.head = nn.Linear(WIDTHS[-1], 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 1, h, w) → (N, 10)."""
        features: torch.Tensor = self.stages(self.stem(x))
        logits: torch.Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


def load() -> DigitResNet:
    """Return the trained network."""
    network = DigitResNet()
    network.load_state_dict(load_file(WEIGHTS))
    return network.eval()


def encode(images: np.ndarray) -> torch.Tensor:
    """(N, h, w) with values in [0, 1] → (N, 1, h, w) with values in [−1, 1], as the network takes them."""
    return torch.from_numpy(images).unsqueeze(1) * 2.0 - 1.0


def classifier(network: nn.Module, recipe: str) -> Classifier:
    """Return a function that classifies images with this recipe."""
    adapted = sita.adapt(network, sita.RECIPES[recipe])

    def classify(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return np.asarray(adapted(encode(images)).argmax(dim=1))

    return classify


class _OnPictures(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.network(pictures.mean(1, keepdim=True))
        return scores


def on_pictures(network: nn.Module) -> nn.Module:
    """Return a network that takes pictures (N, 3, h, w), RGB from −1 to 1, instead of gray images."""
    return _OnPictures(network).eval()
