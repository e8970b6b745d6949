"""The steps that a view is made of, each on a batch of images in the arrays of any framework."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from .errors import InputError
from .inputs import Inputs
from .ops import Array, Ops

if TYPE_CHECKING:
    from .views import SpatialKind

_LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class ImageLayout:
    """How a framework's image arrays are laid out, and what computes on them.

    `axes` are the spatial axes (height and width, or the length alone), counted from the end as `channel` is.
    """

    ops: Ops
    kind: SpatialKind
    channel: int
    axes: tuple[int, ...]
    inputs: Inputs | None = None


class Step:
    """One operation on a batch of images that returns a batch of the same shape."""

    lossless: ClassVar[bool] = False
    """Whether pixels are only rearranged."""
    moves_pixels: ClassVar[bool] = False
    dimensions: ClassVar[int] = 0
    """The number of spatial axes that it needs."""

    def apply(self, x: Array, layout: ImageLayout) -> Array:
        """Return the images after this step."""
        raise NotImplementedError


@dataclass(frozen=True)
class Flip(Step):
    """Reverse the height (axis 0) or the width (axis −1)."""

    axis: Literal[0, -1]
    lossless = moves_pixels = True
    dimensions = 1

    def apply(self, x: Array, layout: ImageLayout) -> Array:
        """Return the flipped images."""
        return layout.ops.xp.flip(x, axis=layout.axes[self.axis])


@dataclass(frozen=True)
class Transpose(Step):
    """Exchange height and width: the reflection in the main diagonal."""

    lossless = moves_pixels = True
    dimensions = 2

    def apply(self, x: Array, layout: ImageLayout) -> Array:
        """Return the transposed images."""
        height, width = (x.shape[axis] for axis in layout.axes)
        if height != width:
            raise InputError(
                f"A quarter turn or transposition needs square images; received {height}×{width}. "
                "Try: views that keep the shape ('vflip', 'hflip', 'rot180')."
            )
        return layout.ops.xp.swapaxes(x, *layout.axes)


@dataclass(frozen=True)
class Rotate(Step):
    """Turn counter-clockwise about the center: bilinear, with the border mirrored (…2 1 0 1 2…)."""

    degrees: float
    moves_pixels = True
    dimensions = 2

    def apply(self, x: Array, layout: ImageLayout) -> Array:
        """Return the rotated images."""
        first, second = sorted(axis % len(x.shape) for axis in layout.axes)
        height, width, after = x.shape[first], x.shape[second], tuple(x.shape[second + 1 :])
        indices, weights = layout.ops.as_constants(rotation_taps, height, width, self.degrees)
        flat = layout.ops.xp.reshape(x, (-1, *x.shape[1:first], height * width, *after))  # N may be open in a graph
        turned = 0.0
        for index, weight in zip(indices, weights, strict=True):
            taken = layout.ops.xp.take(flat, layout.ops.indices(index, x), axis=first)
            turned = turned + taken * layout.ops.constant(weight.reshape(-1, *[1] * len(after)), x)
        return layout.ops.xp.reshape(turned, (-1, *x.shape[1:]))


@dataclass(frozen=True)
class Blur(Step):
    """Smooth with a Gaussian of this standard deviation in pixels, cut off at 4σ, the border mirrored."""

    sigma: float
    dimensions = 1

    def apply(self, x: Array, layout: ImageLayout) -> Array:
        """Return the blurred images."""
        xp = layout.ops.xp
        for axis in layout.axes:
            (kernel,) = layout.ops.as_constants(blur_matrix, x.shape[axis], self.sigma)
            x = xp.swapaxes(xp.matmul(xp.swapaxes(x, axis, -1), layout.ops.constant(kernel, x)), axis, -1)
        return x


@dataclass(frozen=True)
class Color(Step):
    """Brightness, contrast and saturation by these factors, in this order, each clipped to the pixel range.

    On RGB intensities u in [0, 1] with luma l: u · f, f · u + (1 − f) · mean(l), and f · u + (1 − f) · l.
    """

    brightness: float
    contrast: float
    saturation: float
    order: tuple[str, ...] = ("brightness", "contrast", "saturation")

    def apply(self, x: Array, layout: ImageLayout) -> Array:
        """Return the images with distorted colors, in the encoding they came in."""
        inputs, xp, channels = layout.inputs, layout.ops.xp, x.shape[layout.channel]
        assert inputs is not None  # check_inputs
        if channels not in (1, 3) or {len(inputs.mean), len(inputs.std)} - {1, channels}:
            raise InputError(
                "Color distortion expects images of 1 or 3 channels, and inputs= with a mean and std for each channel, "
                f"or one for all; received {channels} channels, mean={inputs.mean}, std={inputs.std}."
            )

        def per_channel(values: Sequence[float]) -> Array:
            column = np.asarray(values, dtype=np.float32).reshape(-1, *[1] * (-layout.channel - 1))
            return layout.ops.constant(column, x)

        luma = _LUMA if inputs.order == "rgb" else _LUMA[::-1]
        luma_weights = per_channel(luma if channels == 3 else (1.0,))
        mean, std = per_channel(inputs.mean), per_channel(inputs.std)
        u = (x * std + mean) / inputs.white
        for name in self.order:
            factor = getattr(self, name)
            if name == "brightness":
                u = u * factor
            else:
                gray = xp.sum(u * luma_weights, axis=layout.channel, keepdims=True)
                gray = xp.mean(gray, axis=layout.axes, keepdims=True) if name == "contrast" else gray
                u = u * factor + gray * (1 - factor)
            u = xp.clip(u, 0.0, 1.0)
        return (u * inputs.white - mean) / std


@dataclass(frozen=True)
class Custom(Step):
    """A caller's own function of a batch of images. Its author must know whether it moves pixels."""

    function: Callable[[Array], Array]

    def apply(self, x: Array, layout: ImageLayout) -> Array:
        """Return what the function makes of the images, which must keep their shape and type."""
        made = self.function(x + 0)  # a copy: a function that works in place must not change the image itself
        if getattr(made, "shape", None) != x.shape or getattr(made, "dtype", None) != x.dtype:
            raise InputError(
                f"The augmentation {getattr(self.function, '__name__', repr(self.function))} must return images of the "
                f"shape and dtype it was given, {tuple(x.shape)} {x.dtype}; it returned {type(made).__name__} of "
                f"{tuple(getattr(made, 'shape', ()))} {getattr(made, 'dtype', '')}."
            )
        return made


@lru_cache(maxsize=16)
def rotation_taps(height: int, width: int, degrees: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the four source pixels of every pixel of a rotated image, and their bilinear weights.

    Indices count along the flattened image: int64 (4, height · width); weights are float32 of the same shape.
    """
    angle = math.radians(degrees)
    y, x = np.mgrid[:height, :width].astype(np.float64)
    y, x = y - (height - 1) / 2, x - (width - 1) / 2
    source_y = _mirror(math.cos(angle) * y + math.sin(angle) * x + (height - 1) / 2, height)
    source_x = _mirror(math.cos(angle) * x - math.sin(angle) * y + (width - 1) / 2, width)
    top = np.clip(np.floor(source_y), 0, max(height - 2, 0)).astype(np.int64)
    left = np.clip(np.floor(source_x), 0, max(width - 2, 0)).astype(np.int64)
    down, right = source_y - top, source_x - left
    bottom, beside = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    corners = [
        (top, left, (1 - down) * (1 - right)),
        (top, beside, (1 - down) * right),
        (bottom, left, down * (1 - right)),
        (bottom, beside, down * right),
    ]
    indices = np.stack([(row * width + column).ravel() for row, column, _ in corners])
    return indices, np.stack([weight.ravel() for _, _, weight in corners]).astype(np.float32)


@lru_cache(maxsize=16)
def blur_matrix(size: int, sigma: float) -> tuple[np.ndarray]:
    """Return the float32 (size, size) matrix that blurs a line of pixels from the right, the border mirrored."""
    radius = max(1, math.ceil(4 * sigma))
    offsets = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offsets / sigma) ** 2)
    matrix = np.zeros((size, size))
    lines = np.arange(size)
    for offset, weight in zip(offsets, kernel / kernel.sum(), strict=True):
        columns = _mirror((lines + offset).astype(np.float64), size).astype(np.int64)
        np.add.at(matrix, (columns, lines), weight)
    return (matrix.astype(np.float32),)


def _mirror(position: np.ndarray, size: int) -> np.ndarray:
    """Fold positions outside [0, size − 1] back by mirroring at the border pixels' centers."""
    if size == 1:
        return np.zeros_like(position)
    period = 2.0 * (size - 1)
    folded = np.mod(position, period)
    return np.asarray(np.minimum(folded, period - folded))
