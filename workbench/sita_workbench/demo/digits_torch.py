"""The demo's network in PyTorch: a small ResNet. benchmarks/train_digits.py trained its weights."""

from __future__ import annotations

import torch
from safetensors.torch import load_file
from torch import nn

from .digits import WEIGHTS, WIDTHS


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
    """A residual network with one block per stage, from pictures to ten logits."""

    def __init__(self) -> None:
        super().__init__()
        first, second, third = WIDTHS
        self.stem = nn.Sequential(nn.Conv2d(1, first, 5, 2, 2, bias=False), nn.BatchNorm2d(first), nn.ReLU())
        self.stages = nn.Sequential(Block(first, first, 1), Block(first, second, 2), Block(second, third, 2))
        self.head = nn.Linear(third, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, h, w) → (N, 10), by the mean of the three channels."""
        features: torch.Tensor = self.stages(self.stem(x.mean(1, keepdim=True)))
        logits: torch.Tensor = self.head(features.mean(dim=(2, 3)))
        return logits


def load() -> DigitResNet:
    """Return the trained network."""
    network = DigitResNet()
    network.load_state_dict(load_file(WEIGHTS))
    return network.eval()
