"""The steps that a view is made of, each on a batch of images in the arrays of any framework."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, Protocol

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


class Step(Protocol):
    """One operation on a batch of images, that gives a batch of the same shape."""

    @property
    def lossless(self) -> bool:
        """Whether pixels are only rearranged."""

    @property
    def moves_pixels(self) -> bool:
        """Whether pixels move."""

    @property
    def dimensions(self) -> int:
        """How many spatial axes it needs."""

    def apply(self, x: Array, layout: ImageLayout) -> Array:
        """Return the images after this step."""


@dataclass(frozen=True)
class Flip:
    """Reverse the height (axis 0) or the width (axis −1)."""

    axis: Literal[0, -1]
    lossless = True
    moves_pixels = True
    dimensions = 1

    def apply(self, x: Array, layout: ImageLayout) -> Array:
        """Return the flipped images."""
        return layout.ops.xp.flip(x, axis=layout.axes[self.axis])


@dataclass(frozen=True)
class Transpose:
    """Exchange height and width: the reflection in the main diagonal."""

    lossless = True
    moves_pixels = True
    dimensions = 2

    def apply(self, x: Array, layout: ImageLayout) -> Array:
        """Return the transposed images."""
        height, width = (x.shape[axis] for axis in layout.axes)
        if height != width:
            raise InputError(
                f"A quarter turn or transposition needs square images; received {height}×{width}. "
                "Give views that keep the shape: 'vflip', 'hflip', 'rot180'."
            )
        return layout.ops.xp.swapaxes(x, *layout.axes)


@dataclass(frozen=True)
class Rotate:
    """Turn counter-clockwise about the centre: bilinear, with the border mirrored (…2 1 0 1 2…)."""

    degrees: float
    lossless = False
    moves_pixels = True
    dimensions = 2

    def apply(self, x: Array, layout: ImageLayout) -> Array:
        """Return the rotated images."""
        first, second = sorted(axis % len(x.shape) for axis in layout.axes)
        height, width, after = x.shape[first], x.shape[second], tuple(x.shape[second + 1 :])
        indices, weights = layout.ops.as_constants(rotation_taps, height, width, self.degrees)
        # The number of images may be open, where a graph is made.
        flat = layout.ops.xp.reshape(x, (-1, *x.shape[1:first], height * width, *after))
        turned = 0.0
        for index, weight in zip(indices, weights, strict=True):
            taken = layout.ops.xp.take(flat, layout.ops.indices(index, x), axis=first)
            turned = turned + taken * layout.ops.constant(weight.reshape(-1, *[1] * len(after)), x)
        return layout.ops.xp.reshape(turned, (-1, *x.shape[1:]))


@dataclass(frozen=True)
class Blur:
    """Smooth with a Gaussian of this deviation in pixels, cut off at 4σ, the border mirrored."""

    sigma: float
    lossless = False
    moves_pixels = False
    dimensions = 1

    def apply(self, x: Array, layout: ImageLayout) -> Array:
        """Return the blurred images."""
        for axis in layout.axes:
            (kernel,) = layout.ops.as_constants(_blur_matrices, x.shape[axis], self.sigma)
            matrix = layout.ops.constant(kernel, x)
            last = layout.ops.xp.swapaxes(x, axis, -1)
            x = layout.ops.xp.swapaxes(layout.ops.xp.matmul(last, matrix), axis, -1)
        return x


@dataclass(frozen=True)
class Color:
    """Brightness, contrast and saturation by these factors, in this order, each clipped to the pixel range.

    On RGB intensities u in [0, 1] with luma l: u · f, f · u + (1 − f) · mean(l), and f · u + (1 − f) · l.
    """

    brightness: float
    contrast: float
    saturation: float
    order: tuple[str, ...] = ("brightness", "contrast", "saturation")
    lossless = False
    moves_pixels = False
    dimensions = 0

    def apply(self, x: Array, layout: ImageLayout) -> Array:
        """Return the images with distorted colors, in the encoding they came in."""
        inputs, xp, channels = layout.inputs, layout.ops.xp, x.shape[layout.channel]
        assert inputs is not None  # check_inputs
        if channels not in (1, 3):
            raise InputError(f"Color distortion expects images of 1 or 3 channels; received {channels}.")
        if len(inputs.mean) not in (1, channels) or len(inputs.std) not in (1, channels):
            raise InputError(
                f"Color distortion expects inputs= with a mean and std for each of the {channels} channels, or one "
                f"for all; received mean={inputs.mean}, std={inputs.std}."
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
                if name == "contrast":
                    gray = xp.mean(gray, axis=layout.axes, keepdims=True)
                u = u * factor + gray * (1 - factor)
            u = xp.clip(u, 0.0, 1.0)
        return (u * inputs.white - mean) / std


@dataclass(frozen=True)
class Custom:
    """A caller's own function on a batch of images, in the framework's own arrays."""

    function: Callable[[Array], Array]
    lossless = False
    moves_pixels = False  # as far as we know: that is its author's to see to
    dimensions = 0

    def apply(self, x: Array, layout: ImageLayout) -> Array:
        """Return what the function makes of the images, which must keep their shape and kind."""
        made = self.function(x + 0)  # a copy: one that works in place must not change the image itself
        name = getattr(self.function, "__name__", repr(self.function))
        if getattr(made, "shape", None) != x.shape or getattr(made, "dtype", None) != x.dtype:
            raise InputError(
                f"The augmentation {name} must return images of the shape and dtype it was given, "
                f"{tuple(x.shape)} {x.dtype}; it returned {type(made).__name__} of "
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
    corners = [
        (top, left, (1 - down) * (1 - right)),
        (top, np.minimum(left + 1, width - 1), (1 - down) * right),
        (np.minimum(top + 1, height - 1), left, down * (1 - right)),
        (np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1), down * right),
    ]
    indices = np.stack([(row * width + column).ravel() for row, column, _ in corners])
    weights = np.stack([weight.ravel() for _, _, weight in corners])
    return indices, weights.astype(np.float32)


@lru_cache(maxsize=16)
def blur_matrix(size: int, sigma: float) -> np.ndarray:
    """Return the float32 (size, size) matrix that blurs a line of pixels, the border mirrored."""
    radius = max(1, math.ceil(4 * sigma))
    offsets = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offsets / sigma) ** 2)
    kernel /= kernel.sum()
    matrix = np.zeros((size, size))
    lines = np.arange(size)
    for offset, weight in zip(offsets, kernel, strict=True):
        columns = _mirror((lines + offset).astype(np.float64), size).astype(np.int64)
        np.add.at(matrix, (lines, columns), weight)
    return matrix.astype(np.float32)


def _blur_matrices(size: int, sigma: float) -> tuple[np.ndarray]:
    """Return what to multiply a line of pixels by from the right."""
    return (np.ascontiguousarray(blur_matrix(size, sigma).T),)


def _mirror(position: np.ndarray, size: int) -> np.ndarray:
    """Fold positions outside [0, size − 1] back by mirroring at the border pixels' centres."""
    if size == 1:
        return np.zeros_like(position)
    period = 2.0 * (size - 1)
    folded = np.mod(position, period)
    return np.asarray(np.minimum(folded, period - folded))
