"""Views that filter the pixels of an image in place: blur, median, sharpening.

Median and sharpening *restore*: on an image with the corruption that they undo, they reduce the shift. Their size in
pixels is the same for images of every size: at 224², a median of pixels that are further apart was worse.
"""

from __future__ import annotations

import functools
import math
from functools import lru_cache

import numpy as np

from .errors import InputError
from .inputs import ImageLayout
from .ops import Array, Ops

SHARPENING = 0.7
"""The share of the difference from the blurred image that sharpening adds."""


def blur(x: Array, layout: ImageLayout, sigma: float) -> Array:
    """Smooth with a Gaussian of this standard deviation in pixels, cut off at 4σ, the border mirrored."""
    ops = layout.ops
    for axis in layout.axes:
        (kernel,) = layout.ops.as_constants(blur_matrix, x.shape[axis], sigma)
        x = ops.swapaxes(ops.matmul(ops.swapaxes(x, axis, -1), layout.ops.constant(kernel, x)), axis, -1)
    return x


def sharpen(x: Array, layout: ImageLayout) -> Array:
    """Return x + 0.7 · (x − blur(x)) with a blur of σ = 1, clipped to the range of the pixels."""
    ops, (low, high) = layout.ops, _pixel_range(x, layout)
    return ops.minimum(ops.maximum(x + SHARPENING * (x - blur(x, layout, 1.0)), low), high)


def median(x: Array, layout: ImageLayout) -> Array:
    """Return the median of every pixel and its eight neighbors, channel by channel, the border mirrored.

    Of three sorted columns, the median of nine is the median of the largest minimum, the middle median, and the
    smallest maximum.
    """
    ops = layout.ops
    low, middle, high = _sort(_line(x, layout, 0), ops)
    largest = functools.reduce(ops.maximum, _line(low, layout, 1))
    smallest = functools.reduce(ops.minimum, _line(high, layout, 1))
    return _sort((largest, _sort(_line(middle, layout, 1), ops)[1], smallest), ops)[1]


def _pixel_range(x: Array, layout: ImageLayout) -> tuple[Array, Array]:
    """Return the values of black and white in each channel; without a known encoding, the smallest and the largest."""
    inputs, ops = layout.inputs, layout.ops
    if inputs is None:
        return ops.min(x, axis=layout.axes, keepdims=True), ops.max(x, axis=layout.axes, keepdims=True)
    mean, std, channels = np.array(inputs.mean), np.array(inputs.std), int(x.shape[layout.channel])
    if {len(mean), len(std)} - {1, channels}:
        raise InputError(
            "Sharpening expects inputs= with a mean and std for each channel, or one for all; received "
            f"{channels} channels, mean={inputs.mean}, std={inputs.std}. Try: leave inputs= out."
        )
    return layout.per_channel(-mean / std, x), layout.per_channel((inputs.white - mean) / std, x)


def _line(x: Array, layout: ImageLayout, axis: int) -> tuple[Array, Array, Array]:
    """Return the pixels before, at and after every pixel along an axis."""
    ops, axis = layout.ops, layout.axes[axis] % len(x.shape)
    before, after = ops.as_constants(neighbors, x.shape[axis])
    return ops.take(x, ops.indices(before, x), axis=axis), x, ops.take(x, ops.indices(after, x), axis=axis)


def _sort(three: tuple[Array, Array, Array], ops: Ops) -> tuple[Array, Array, Array]:
    """Return three arrays sorted element by element."""
    a, b, c = three
    a, b = ops.minimum(a, b), ops.maximum(a, b)
    b, c = ops.minimum(b, c), ops.maximum(b, c)
    return ops.minimum(a, b), ops.maximum(a, b), c


@lru_cache(maxsize=16)
def neighbors(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the pixels before and after each pixel of a line, the border mirrored."""
    before, after = (mirror(np.arange(size) + offset, size).astype(np.int64) for offset in (-1, 1))
    return before, after


@lru_cache(maxsize=16)
def blur_matrix(size: int, sigma: float) -> tuple[np.ndarray]:
    """Return the float32 (size, size) matrix K for which x @ K is a row of pixels x blurred, with mirrored borders."""
    radius = max(1, math.ceil(4 * sigma))
    offsets = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 * (offsets / sigma) ** 2)
    matrix, lines = np.zeros((size, size)), np.arange(size)
    for offset, weight in zip(offsets, kernel / kernel.sum(), strict=True):
        np.add.at(matrix, (mirror(lines + offset, size).astype(np.int64), lines), weight)
    return (matrix.astype(np.float32),)


def mirror(position: np.ndarray, size: int) -> np.ndarray:
    """Fold positions outside [0, size − 1] back by mirroring at the border pixels' centers."""
    if size == 1:
        return np.zeros_like(position)
    period = 2.0 * (size - 1)
    folded = np.mod(position, period)
    return np.asarray(np.minimum(folded, period - folded))
