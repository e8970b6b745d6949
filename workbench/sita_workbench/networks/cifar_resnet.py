"""The residual networks for CIFAR of He et al. 2015, section 4.2, in PyTorch."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


class _BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut without parameters: strided, with zeros for new channels."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.stride, self.padding = stride, (outer - inner) // 2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.padding:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
        return F.relu(x + y)


class CifarResNet(nn.Module):
    """6n + 2 layers: three stages of n blocks with 16, 32 and 64 channels. `depth` is 20, 32, 44, 56 or 110."""

    def __init__(self, depth: int, classes: int = 10) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = self._stage(blocks, 16, 16, 1)
        self.layer2 = self._stage(blocks, 16, 32, 2)
        self.layer3 = self._stage(blocks, 32, 64, 2)
        self.linear = nn.Linear(64, classes)

    @staticmethod
    def _stage(blocks: int, inner: int, outer: int, stride: int) -> nn.Sequential:
        first = _BasicBlock(inner, outer, stride)
        return nn.Sequential(first, *(_BasicBlock(outer, outer, 1) for _ in range(blocks - 1)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of images normalized with MEAN and STD."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((2, 3)))  # type: ignore[no-any-return]


def load_cifar_resnet(depth: int, weights: Path) -> CifarResNet:
    """Return the network in eval mode, with the weights of a safetensors file."""
    from safetensors.torch import load_file

    model = CifarResNet(depth)
    model.load_state_dict(load_file(weights))
    return model.eval()


def encode(images: object) -> torch.Tensor:
    """Return uint8 images (N, 32, 32, 3) as the network takes them."""
    x = torch.as_tensor(images).permute(0, 3, 1, 2).float() / 255
    return (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
