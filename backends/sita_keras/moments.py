"""The moments of every entry and channel of a layer's input, and the normalisation with others.

Two passes, the mean and then the mean square of what is left, are right to 5e-7 at mean/σ = 300 on every backend of
Keras; `ops.moments` is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from sita_adapters.statistics import sampled_lines, target

from .ops import KERAS


@dataclass
class Features:
    """A layer's input with channels on any axis, and the mean and biased variance of each entry and channel, (N, C)."""

    x: Any
    axis: int
    means: Any
    variances: Any

    @property
    def area(self) -> Any:
        """How many places an entry has: of an open size a symbol, in floating point."""
        sizes = [size for axis, size in enumerate(ops.shape(self.x)) if axis not in (0, self.axis)]
        if all(isinstance(size, int) for size in sizes):
            return math.prod(sizes)
        return math.prod(ops.cast(size, self.means.dtype) for size in sizes)

    def target(self, weights: Any, origins: Any) -> tuple[Any, Any]:
        """Return the statistics that the R rows of each image estimate together, (B, R, C), for weights (R, R)."""
        shape = (-1, weights.shape[1], self.x.shape[self.axis])
        means, variances = (ops.reshape(moment, shape) for moment in (self.means, self.variances))
        return target(means, variances, weights=weights, origins=origins, xp=KERAS.xp)

    def affine(self, scale: Any, shift: Any) -> Any:
        """Return x · scale + shift, both (N, C), or (1, C) for all."""
        column = [1] * len(self.x.shape)
        column[0], column[self.axis] = -1, self.x.shape[self.axis]
        return self.x * ops.reshape(scale, column) + ops.reshape(shift, column)


def measure(x: Any, axis: int, mask: Any = None, places: int | None = None, entries: slice = slice(None)) -> Features:
    """Return features with the moments of these entries, in float32 or more, whatever the precision of x.

    A mask, of the shape of x without the channels, tells which places count. Else about so many do, or all.
    """
    axis %= len(x.shape)
    x = KERAS.precise(x)
    space = [a for a in range(1, len(x.shape)) if a != axis]
    if not space:
        return Features(x, axis, x[entries], ops.zeros_like(x[entries]))
    if mask is not None:
        mask = ops.expand_dims(ops.cast(mask[entries], "bool"), axis)
        return Features(x, axis, *_masked_moments(x[entries], mask, space))
    lines = slice(None) if places is None else _sampled_lines(x, space, places)
    sample = _take(x, space[0], entries, lines)
    means = ops.mean(sample, axis=space, keepdims=True)
    return Features(x, axis, means, ops.mean(ops.square(sample - means), axis=space))


def _take(x: Any, axis: int, entries: slice, lines: slice) -> Any:
    """Return these entries of x, and of each these lines along an axis."""
    if entries.step is lines.step is None:
        return x
    height, computed = ops.shape(x)[axis], KERAS.is_array(lines.step)
    if computed and keras.backend.backend() == "torch":  # whose exporter mixes types of integers in a slice
        x = KERAS.xp.take(x, ops.arange(lines.start, height, lines.step, dtype="int64"), axis=axis)
        lines = slice(None)
    if keras.backend.backend() != "tensorflow" or axis > 1 or computed or None in x.shape[1:]:
        index = (entries, *[slice(None)] * (axis - 1), lines)
        return x[index]
    # TensorFlow copies a slice with steps number by number, and what it gathers line by line: up to ten times as fast.
    rows, first = entries.step or 1, entries.start or 0
    taken = [first * height + line for line in range(height)[lines]]
    return ops.take(ops.reshape(x, (-1, rows * height, *x.shape[2:])), taken, axis=1)


def _sampled_lines(x: Any, space: list[int], places: int) -> slice:
    """Return the lines of x that its moments come from, also where a graph of TensorFlow leaves the sizes open."""
    shape = ops.shape(x)
    sizes = [shape[a] for a in space]
    if all(isinstance(size, int) for size in sizes):
        lines = sampled_lines(tuple(sizes), places)
        return slice(None) if lines.step == 1 else lines
    if all(isinstance(size, int) or KERAS.is_array(size) for size in sizes):
        first = ops.convert_to_tensor(sizes[0])
        step = ops.minimum(math.prod(sizes) // places, first)
        step = ops.maximum(step - (step + 1) % 2, 1)
        return slice((first - 1) % step // 2, None, step)
    return slice(None)  # only shapes are being found out, or JAX exports for all sizes


def _masked_moments(x: Any, mask: Any, space: list[int]) -> tuple[Any, Any]:
    """Return the mean and variance of the places in the mask; of none, 0."""
    count = ops.maximum(ops.sum(ops.cast(mask, x.dtype), axis=space, keepdims=True), 1)
    means = ops.sum(ops.where(mask, x, 0), axis=space, keepdims=True) / count
    squares = ops.where(mask, ops.square(x - means), 0)
    return means, ops.sum(squares / count, axis=space)
