"""W-Net: two small U-Nets, of which the second sees the image and the first one's answer (Galdran et al. 2020)."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn


def _convolutions(inner: int, outer: int, count: int) -> nn.Sequential:
    """3×3 convolutions, each with ReLU and then BatchNorm."""
    layers: list[nn.Module] = []
    for number in range(count):
        layers += [nn.Conv2d(outer if number else inner, outer, 3, padding=1), nn.ReLU(), nn.BatchNorm2d(outer)]
    return nn.Sequential(*layers)


class _Block(nn.Module):
    """Two convolutions and a shortcut, after pooling on the way down."""

    def __init__(self, inner: int, outer: int, pool: bool = False) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2) if pool else nn.Identity()
        self.block = _convolutions(inner, outer, 2)
        self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(x)
        return self.block(x) + self.shortcut(x)  # type: ignore[no-any-return]


class _Bridge(nn.Module):
    """A convolution on the way from down to up."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block = _convolutions(channels, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)  # type: ignore[no-any-return]


class _UpLayer(nn.Module):
    """Twice the resolution."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.ConvTranspose2d(inner, outer, 2, stride=2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.block(x)  # type: ignore[no-any-return]


class _Up(nn.Module):
    """A step up, joined with the features of the same resolution."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.up_layer = _UpLayer(inner, outer)
        self.conv_bridge_layer = _Bridge(outer)
        self.conv_layer = _Block(2 * outer, outer)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return self.conv_layer(torch.cat([self.up_layer(x), self.conv_bridge_layer(skip)], 1))  # type: ignore[no-any-return]


class UNet(nn.Module):
    """A U-Net that returns one logit per pixel."""

    def __init__(self, channels: int, widths: tuple[int, ...] = (8, 16, 32)) -> None:
        super().__init__()
        steps = list(pairwise(widths))
        self.first = _Block(channels, widths[0])
        self.down_path = nn.ModuleList([_Block(a, b, pool=True) for a, b in steps])
        self.up_path = nn.ModuleList([_Up(b, a) for a, b in reversed(steps)])
        self.final = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits (B, 1, H, W) of images (B, channels, H, W)."""
        features = [self.first(x)]
        for down in self.down_path:
            features.append(down(features[-1]))
        x = features.pop()
        for up in self.up_path:
            x = up(x, features.pop())
        return self.final(x)  # type: ignore[no-any-return]


class WNet(nn.Module):
    """Images (B, 3, H, W) in [0, 1], with H and W divisible by 4, to the logits (B, 1, H, W) of vessels."""

    def __init__(self) -> None:
        super().__init__()
        self.unet1, self.unet2 = UNet(3), UNet(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the second U-Net's logits."""
        return self.unet2(torch.cat([x, self.unet1(x)], 1))  # type: ignore[no-any-return]
