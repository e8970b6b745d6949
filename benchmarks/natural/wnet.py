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


class _Up(nn.Module):
    """Twice the resolution, joined with the features of the same resolution. The stored names have a `block` each."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.up_layer = nn.ModuleDict({"block": nn.Sequential(nn.ConvTranspose2d(inner, outer, 2, stride=2))})
        self.conv_bridge_layer = nn.ModuleDict({"block": _convolutions(outer, outer, 1)})
        self.conv_layer = _Block(2 * outer, outer)

    def forward(self, x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        both = [self.up_layer["block"](x), self.conv_bridge_layer["block"](skip)]
        return self.conv_layer(torch.cat(both, 1))  # type: ignore[no-any-return]


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
