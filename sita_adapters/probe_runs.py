"""What the probe's runs show: the batch dimension of each array, and whether images influence each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .errors import ModelError, OutputError, SitaError
from .selection import leave_out
from .state import Adaptation

ALL = (1, 0)
BATCHES = ((0, 1), ALL, (1,), (0,))
ROUNDING = {"float64": 1e-4, "float32": 1e-4, "bfloat16": 0.1, "float16": 3e-2}
"""The relative rounding error of a network's values in each precision; 0 for integers."""


class Values(NamedTuple):
    """An array of the output, or of a layer's input, and the rounding error of its precision."""

    name: str
    array: np.ndarray
    rounding: float

    def by_image(self, count: int) -> Values:
        """Return a layer's input, (N·T, S), as (N, T, S); unchanged if N does not divide its length."""
        entries, rest = divmod(len(self.array), count)
        return self if rest else self._replace(array=self.array.reshape(count, entries, self.array.shape[1]))


class Result(NamedTuple):
    """One run: its output, the names of the output's parts and of the layers, its arrays, and the layers' inputs."""

    output: Any
    parts: list[str]
    arrays: list[Values]
    layers: list[Values]


def image_axes(results: Sequence[Result], adaptation: Adaptation) -> list[int | None]:
    """Return the axis, in each output and layer's input, whose size is the number of images in every run, if any."""
    counts, parts, axes = tuple(map(len, BATCHES)), results[1].parts, list[int | None]()
    for some, count in zip(results, counts, strict=True):
        found, usual = Counter(some.parts), Counter(parts)
        other = sorted((found - usual) | (usual - found))
        if other and {*other} <= {each.name for each in (*some.layers, *results[1].layers)}:
            raise ModelError(
                f"The model calls {other[0]!r} {usual[other[0]]} times for two images, but {found[other[0]]} times for "
                f"{count}. Try: run the batch without a loop over its images; or {leave_out(other, adaptation.layers)}."
            )
        if some.parts != parts:
            raise OutputError(
                f"The output of {count} images has different parts, or different non-tensor values, than that of two: "
                f"{', '.join(other[:4])}. Try: adapt a module that returns only tensors with one entry per image."
            )
    for index, runs in enumerate(zip(*(each.arrays + each.layers for each in results), strict=True)):
        shapes = [each.array.shape for each in runs]
        sizes = list(zip(*shapes, strict=False))
        differing = [axis for axis, along in enumerate(sizes) if len(set(along)) > 1]
        fits = [sizes[axis] for axis in differing] == [counts] and len({*map(len, shapes)}) == 1
        if len(set(shapes)) > 1 and not fits and index < len(results[1].arrays):
            raise OutputError(
                f"Expected one entry of {runs[0].name} per image, on one axis; received {', '.join(map(str, shapes))} "
                f"for {', '.join(map(str, counts))} images. Try: no squeeze(), which drops the axis of a single image."
            )
        axes.append(differing[0] if fits else None)
    return axes


def find_mixing(results: Sequence[Result], axes: Sequence[int | None], perturbed: Result) -> list[int]:
    """Return the indices of outputs, then of layers, whose values for an image differ between runs beyond rounding.

    `perturbed` is a run of all images with rounding errors added. It shows the effect of rounding.
    """
    orders, found = [[ALL.index(image) for image in which] for which in BATCHES], []
    for index, runs in enumerate(zip(*(each.arrays + each.layers for each in (*results, perturbed)), strict=True)):
        axis = axes[index]  # None for a constant, which is compared as one entry
        *arrays, again = (each.array[None] if axis is None else np.moveaxis(each.array, axis, 0) for each in runs)
        pairs = zip(arrays, orders if axis is not None else [[0]] * len(orders), strict=True)
        if not all(is_close(x, arrays[1][order], arrays[1], again, runs[1].rounding) for x, order in pairs):
            found.append(index)
    return found


def mixing_error(whole: Result, mixed: Sequence[int], axes: Sequence[int | None], adaptation: Adaptation) -> SitaError:
    """Return the error for the first output, or for all layers, in which images influence each other."""
    first, *_ = names = list(dict.fromkeys((whole.arrays + whole.layers)[index].name for index in mixed))
    if mixed[0] >= len(whole.arrays):
        return ModelError(
            f"The batch of layer {', '.join(names[:4])} does not hold the same number of consecutive entries for every "
            "image, whatever the others are: the model reorders or normalizes batches, or folds time first. Expected "
            f"(N, T, …) reshaped to (N·T, …). Try: change that, or {leave_out(names, adaptation.layers)}."
        )
    if axes[mixed[0]] is None:
        shape = whole.arrays[mixed[0]].array.shape
        return OutputError(
            f"Expected one entry of {first} per image, on one axis; received shape {shape} for two, computed from "
            "the whole batch, like a loss. Try: call the model without labels, or adapt a module that returns scores."
        )
    return ModelError(
        f"Images influence each other: {first} depends on the other images of a batch, or on their order. Try: move "
        "operations on the whole batch (a maximum, a branch, a sort) out of the model, before or after the call."
    )


def is_close(x: np.ndarray, y: np.ndarray, every: np.ndarray, perturbed: np.ndarray, rounding: float) -> bool:
    """Whether values x and y (n, …) of the same images differ only by rounding; `every` has the values of all images.

    |x − y| ≤ rounding · size + 10⁻³ · spread      or      ‖(x − y) / size‖ ≤ 20 · ‖(every − perturbed) / size‖

    Size and spread are computed per column, so a large constant among the scores cannot hide a difference. In a network
    that magnifies rounding, single columns say little: the total is compared with the total for perturbed images.
    """
    if np.iscomplexobj(x):
        real, imaginary = ([getattr(z, part) for z in (x, y, every, perturbed)] for part in ("real", "imag"))
        return all(is_close(a, b, c, d, rounding) for a, b, c, d in (real, imaginary))
    known = [each.astype(np.float64) for each in (x, y, every, perturbed)]
    x, y, every, perturbed = (np.nan_to_num(each, nan=0.0, posinf=0.0, neginf=0.0) for each in known)
    special, expected = (np.where(np.isfinite(each), 0.0, each) for each in known[:2])
    comparable = np.array_equal(special, expected, equal_nan=True) and every.shape == perturbed.shape
    if not comparable or not x.size:
        return comparable
    size, spread = np.abs(every).max(axis=0), np.abs(every - every[:1]).max(axis=0)
    typical = np.median(size[size > 0]) if size.any() else 0.0  # behind a ReLU, most may be 0
    size, gaps = size + typical + np.finfo(np.float64).tiny, np.abs(x - y)
    magnified = 20 * np.linalg.norm((every - perturbed) / size)
    return bool((gaps <= rounding * size + 1e-3 * spread).all() or np.linalg.norm(gaps / size) <= magnified)
