"""A small segmentation network with BatchNorm for CamVid, in PyTorch. `benchmarks/train_camvid.py` trains it."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from ..data.segmentation import CAMVID_CLASSES

SIZE = (180, 240)
"""Height and width of the images it is trained for: half of CamVid's."""

WIDTHS = (24, 48, 96, 128)


def _convolve(channels: int, width: int, kernel: int = 3, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    """A convolution and its BatchNorm."""
    padding = dilation * (kernel // 2)
    convolution = nn.Conv2d(channels, width, kernel, stride, padding, dilation, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(width))


class _Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, channels: int, width: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.first = _convolve(channels, width, stride=stride, dilation=dilation)
        self.second = _convolve(width, width, dilation=dilation)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = _convolve(channels, width, kernel=1)
        self.stride = stride

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Not a strided 1 × 1 convolution, though it computes the same: on a CPU, in the channels-last layout, its
        # gradient writes beyond its memory if there are fewer than 8 channels (PyTorch 2.13).
        shortcut = self.shortcut(x[..., :: self.stride, :: self.stride])
        return torch.relu(self.second(torch.relu(self.first(x))) + shortcut)


class _Merge(nn.Module):
    """Upsamples coarse features to the resolution of finer ones and adds the two."""

    def __init__(self, coarse: int, fine: int, width: int) -> None:
        super().__init__()
        self.coarse = _convolve(coarse, width, kernel=1)
        self.fine = _convolve(fine, width, kernel=1)
        self.both = _convolve(width, width)

    def forward(self, coarse: torch.Tensor, fine: torch.Tensor) -> torch.Tensor:
        both = _resize(self.coarse(coarse), fine) + self.fine(fine)
        return torch.relu(self.both(torch.relu(both)))


def _resize(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Interpolate to another tensor's height and width."""
    return functional.interpolate(x, like.shape[-2:], mode="bilinear", align_corners=False)


class RoadNet(nn.Module):
    """A residual encoder down to 1/16 of the resolution and a decoder back, from photographs to logits per pixel.

    Takes any image size. Context comes from dilated convolutions, not from global pooling: a BatchNorm after global
    pooling would see one value per image, which has no variance.
    """

    def __init__(self, widths: tuple[int, int, int, int] = WIDTHS) -> None:
        super().__init__()
        half, quarter, eighth, sixteenth = widths
        self.stem = _convolve(3, half, stride=2)
        self.quarter = _Block(half, quarter, stride=2)
        self.eighth = nn.Sequential(_Block(quarter, eighth, stride=2), _Block(eighth, eighth))
        self.sixteenth = nn.Sequential(
            _Block(eighth, sixteenth, stride=2),
            _Block(sixteenth, sixteenth, dilation=2),
            _Block(sixteenth, sixteenth, dilation=4),
        )
        self.to_eighth = _Merge(sixteenth, eighth, sixteenth // 2)
        self.to_quarter = _Merge(sixteenth // 2, quarter, quarter)
        self.to_half = _Merge(quarter, half, half)
        self.head = nn.Conv2d(half, len(CAMVID_CLASSES), 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(N, 3, h, w), normalized as ImageNet's, → logits (N, 11, h, w)."""
        half = torch.relu(self.stem(x))
        quarter = self.quarter(half)
        eighth = self.eighth(quarter)
        decoded = self.to_eighth(self.sixteenth(eighth), eighth)
        decoded = self.to_half(self.to_quarter(decoded, quarter), half)
        return _resize(self.head(decoded), x)
