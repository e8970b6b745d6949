"""Two small networks for CIFAR whose layers are unlike a residual network's: densely connected, and depthwise."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class _DenseLayer(nn.Module):
    """BatchNorm, ReLU and a 3×3 convolution, whose output joins its input (Huang et al. 2017)."""

    def __init__(self, inner: int, growth: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inner)
        self.conv = nn.Conv2d(inner, growth, 3, padding=1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.conv(F.relu(self.bn(x)))], 1)


class _Transition(nn.Module):
    """Half the channels, at half the resolution."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inner)
        self.conv = nn.Conv2d(inner, inner // 2, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.avg_pool2d(self.conv(F.relu(self.bn(x))), 2)


class CifarDenseNet(nn.Module):
    """Three blocks of densely connected layers, with transitions between them."""

    def __init__(self, classes: int = 10, layers: int = 5, growth: int = 12) -> None:
        super().__init__()
        channels = 2 * growth
        stages: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False)]
        for stage in range(3):
            for _ in range(layers):
                stages.append(_DenseLayer(channels, growth))
                channels += growth
            if stage < 2:
                stages.append(_Transition(channels))
                channels //= 2
        self.features = nn.Sequential(*stages)
        self.bn = nn.BatchNorm2d(channels)
        self.linear = nn.Linear(channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of images normalized as for the residual networks."""
        return self.linear(F.relu(self.bn(self.features(x))).mean((2, 3)))  # type: ignore[no-any-return]


def _convolve(inner: int, outer: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(inner, outer, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outer), nn.ReLU6()]


class _InvertedResidual(nn.Module):
    """Wide depthwise features between two narrow linear ones (Sandler et al. 2018)."""

    def __init__(self, inner: int, outer: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inner * expansion
        *last, _ = _convolve(wide, outer, 1)  # linear
        self.layers = nn.Sequential(*_convolve(inner, wide, 1), *_convolve(wide, wide, 3, stride, wide), *last)
        self.shortcut = stride == 1 and inner == outer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        return x + y if self.shortcut else y  # type: ignore[no-any-return]


class CifarMobileNet(nn.Module):
    """Inverted residuals with linear bottlenecks, as in MobileNetV2, at the size of CIFAR."""

    STAGES = ((24, 2, 1), (32, 3, 2), (64, 3, 2), (96, 1, 1))
    """(channels, blocks, stride of the first)."""

    def __init__(self, classes: int = 10, expansion: int = 4) -> None:
        super().__init__()
        channels = 16
        stages = _convolve(3, channels, 3)
        for outer, blocks, stride in self.STAGES:
            for block in range(blocks):
                stages.append(_InvertedResidual(channels, outer, stride if block == 0 else 1, expansion))
                channels = outer
        self.features = nn.Sequential(*stages, *_convolve(channels, 3 * channels, 1))
        self.linear = nn.Linear(3 * channels, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of images normalized as for the residual networks."""
        return self.linear(self.features(x).mean((2, 3)))  # type: ignore[no-any-return]


NETWORKS: dict[str, type[nn.Module]] = {"densenet": CifarDenseNet, "mobilenet": CifarMobileNet}
