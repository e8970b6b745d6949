"""The probe: what is established about a model by running it, before its first answer.

Three random images a, b and c run without adaptation, in five batches:

    [a, b]      [c, b, a]      [c]      [a]      [a]

An axis whose size is the number of images holds the images. An image's part of every output, and of the input of every
adapted layer, must be the same in every batch. A constant has no such axis and never changes. Each image is missing
from some batch, which reveals a maximum over the batch; a precedes b in one batch and follows it in another, which
reveals sorting; and a runs several times, which reveals state and randomness.

A backend supplies the runs (`Run`) and checks what only it can: that every adapted layer is a BatchNorm, and that the
forward pass writes to no parameter or buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .errors import InputError, ModelError, OutputError, SitaError
from .layer_checks import leave_out
from .ops import Array, Ops
from .outputs import OutputLayout, flatten, leaves
from .scores import resolve_scores

if TYPE_CHECKING:
    from .engine import Adaptation

BATCHES = ((0, 1), (2, 1, 0), (2,), (0,), (0,))
"""Which of the random images are in each batch. The second has all of them."""

_SAMPLE = 512
"""Number of values of each entry of a layer's input that are compared."""

_MAGNIFIED = 20.0
"""Differences up to this multiple of what a perturbed image causes count as rounding, since layers round too."""


class Run(Protocol):
    """Runs the plain model on some of the random images, and returns its output."""

    def __call__(self, which: Sequence[int], *, perturbed: bool = False, fresh: bool = False) -> Any:
        """Run these images; `perturbed` ones are off by a few roundings; a `fresh` copy of the model has no history."""


@dataclass(frozen=True)
class _Values:
    """The values of an output, or of a layer's input, and the relative rounding error of their precision."""

    name: str
    array: np.ndarray
    rounding: float


class InputRecorder:
    """Keeps a sample of the input of every call of an adapted layer."""

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.layers: list[_Values] = []

    def record(self, name: str, x: Array) -> None:
        """Keep a sample of every entry of a layer's input (N, …)."""
        flat = self.ops.xp.reshape(x, (x.shape[0], -1))
        step = max(1, flat.shape[1] // _SAMPLE) | 1  # odd, so it doesn't lock onto a power-of-two stride
        self.layers.append(_Values(name, self.ops.to_numpy(flat[:, ::step]), _rounding(x)))

    def take(self) -> list[_Values]:
        """Return what was kept, and start again."""
        taken, self.layers = self.layers, []
        return taken


@dataclass(frozen=True)
class _Result:
    """One run: its images, the arrays of its output and everything else in it, and the layers' inputs."""

    images: Sequence[int]
    output: Any
    arrays: list[_Values]
    others: dict[str, Any]
    layers: list[_Values]


def probe_model(run: Run, recorder: InputRecorder, adaptation: Adaptation, model: str, images: Array) -> OutputLayout:
    """Return the layout of a model's output; raise a SitaError where the model violates the contract.

    `model` is the name of its class and `images` the images that start the probe, for the errors.
    """
    ops = recorder.ops

    def result(which: Sequence[int], *, perturbed: bool = False, fresh: bool = False) -> _Result:
        recorder.take()
        try:
            output = run(which, perturbed=perturbed, fresh=fresh)
        except SitaError:
            raise
        except Exception as error:
            kind = "" if ops.is_float(images) else " (floating-point images, unless it converts them itself)"
            raise InputError(
                f"{model} fails on {len(which)} random images of {images.dtype} and shape {tuple(images.shape[1:])}: "
                f"{type(error).__name__}: {error} Expected a model that takes any number of such images{kind}. "
                "Try: check their shape and type, or give an example, sita.adapt(model, example=images)."
            ) from error
        found = flatten(output, ops.is_array)
        arrays = [_Values(path, ops.to_numpy(array), _rounding(array)) for path, array in found]
        others = {path: value for path, value in leaves(output, ops.is_array) if not ops.is_array(value)}
        return _Result(which, output, arrays, others, recorder.take())

    *results, again = [result(which, fresh=number == len(BATCHES) - 1) for number, which in enumerate(BATCHES)]
    if not _same(results[-1], again):
        raise ModelError(
            f"{model} is not deterministic, or keeps state: the same image gave different outputs. Expected a model "
            "whose answers depend on its input alone. Try: switch off dropout and noise, and anything that the model "
            "remembers from earlier calls."
        )
    axes = _image_axes(results)
    try:
        _check_independence(results, results[1], axes)
    except SitaError as mismatch:
        try:  # does the network magnify rounding?
            _check_independence(results, result(BATCHES[1], perturbed=True), axes)
        except SitaError:
            raise mismatch from None
    return _layout(results[1], axes, adaptation, ops)


def _layout(whole: _Result, axes: Sequence[int | None], adaptation: Adaptation, ops: Ops) -> OutputLayout:
    if all(axis is None for axis in axes):
        raise OutputError("Expected an output for each image; received none. Try: adapt a module that keeps the batch.")
    pairs = zip(whole.arrays, axes, strict=True)
    values = [None if axis is None else np.moveaxis(each.array, axis, 0) for each, axis in pairs]
    scores, why = resolve_scores(whole.output, values, adaptation, ops.is_array)
    factors: dict[str, tuple[int, ...]] = {}
    for each in whole.layers:
        factors[each.name] = (*factors.get(each.name, ()), len(each.array) // len(whole.images))
    return OutputLayout(
        paths=tuple(each.name for each in whole.arrays),
        axes=tuple(axes),
        scores=scores,
        why_no_scores=why,
        selects=any(array is not None and array.dtype.kind != "f" for array in values),
        factors=factors,
        calls=len(whole.layers),
    )


def _image_axes(results: Sequence[_Result]) -> list[int | None]:
    """Return the axis of the images in each array of the output, which has their number in every run."""
    whole = results[1]
    for some in results:
        names, expected = ([each.name for each in result.arrays] for result in (some, whole))
        if names != expected or repr(some.others) != repr(whole.others):
            raise OutputError(
                f"The output of {len(some.images)} images has other parts, or other numbers beside its tensors, than "
                f"that of {len(whole.images)}: {names} {some.others} and {expected} {whole.others}. Expected tensors "
                "with one entry per image. Try: adapt a module that returns such tensors alone."
            )
    axes = []
    counts = tuple(len(each.images) for each in results)
    for index, path in enumerate(expected):
        shapes = [each.arrays[index].array.shape for each in results]
        sizes = list(zip(*shapes, strict=False))
        differing = [axis for axis, along in enumerate(sizes) if len(set(along)) > 1]
        if len({*map(len, shapes)}) > 1 or any(sizes[axis] != counts for axis in differing) or len(differing) > 1:
            raise OutputError(
                f"Expected one entry of {path} per image, on one axis; received shapes {', '.join(map(str, shapes))} "
                f"for {', '.join(map(str, counts))} images. Try: adapt a module that returns one entry per image."
            )
        axes.append(differing[0] if differing else None)
    return axes


def _check_independence(results: Sequence[_Result], perturbed: _Result, axes: Sequence[int | None]) -> None:
    """Raise unless every image has the same output, and layers the same input for it, in every run.

    `perturbed` is the run of all images again. What differs in it, magnified, is rounding.
    """
    whole = results[1]
    if [each.name for each in perturbed.layers] != [each.name for each in whole.layers]:
        raise ModelError("The model runs other layers for images that differ by rounding only.")
    expected = _by_image(whole, axes)
    again = _by_image(perturbed, axes)
    for some in results:
        if [each.name for each in some.layers] != [each.name for each in whole.layers]:
            raise ModelError("The model runs other layers for one number of images than for another.")
        order = [whole.images.index(image) for image in some.images]
        mixing: dict[str, None] = {}
        for index, (one, other) in enumerate(zip(_by_image(some, axes), expected, strict=True)):
            constant = index < len(axes) and axes[index] is None
            complete = constant or len(other.array) == len(whole.images)
            there = other.array[order] if complete and not constant else other.array
            if complete and _agree(one.array, there, other, again[index].array):
                continue
            if index >= len(axes):
                mixing[one.name] = None
            elif axes[index] is None:
                raise OutputError(
                    f"{one.name} is a single value computed from the whole batch, such as a loss. Try: "
                    "call the model without labels, or adapt a module that returns the scores alone."
                )
            else:
                raise ModelError(
                    f"Images influence each other: {one.name} for an image depends on the other images of its batch, "
                    "or on their order. Expected a model that treats every image independently. Try: take what looks "
                    "at the whole batch (a maximum, a branch, a sort) out of the model, and do it before or after the "
                    "call."
                )
        if mixing:
            raise ModelError(
                f"The batch of layer {', '.join([*mixing][:4])} does not have the same number of entries for every "
                "image, side by side: the model concatenates or reorders batches, or folds time first. Expected "
                f"(N, T, …) reshaped to (N·T, …). Try: {leave_out(*mixing)}."
            )


def _by_image(result: _Result, axes: Sequence[int | None]) -> list[_Values]:
    """Return the arrays of the output, then the layers' inputs, with a line for each image; one line of a constant."""
    found = []
    for each, axis in zip(result.arrays, axes, strict=True):
        array = each.array[None] if axis is None else np.moveaxis(each.array, axis, 0)
        found.append(replace(each, array=array.reshape(len(array), -1)))
    for each in result.layers:
        divides = len(each.array) and len(each.array) % len(result.images) == 0
        found.append(replace(each, array=each.array.reshape(len(result.images), -1)) if divides else each)
    return found


def _same(first: _Result, second: _Result) -> bool:
    """Whether two runs of one image are equal; only the order of sums on a GPU may differ."""
    if [each.array.shape for each in first.arrays] != [each.array.shape for each in second.arrays]:
        return False
    for x, y in zip(first.arrays, second.arrays, strict=True):
        one = _Values(x.name, x.array[None], 0.1 * x.rounding)
        if not _agree(y.array[None], one.array, one, one.array):
            return False
    return True


def _agree(some: np.ndarray, there: np.ndarray, whole: _Values, perturbed: np.ndarray) -> bool:
    """Whether entries (n, …) of some images, and of the same ones `there`, in the run of all, differ by rounding only.

    It is judged column by column: one large constant among the scores must not hide that images mix. In a network that
    magnifies rounding the columns do not tell; all taken together may differ as much as a perturbed image makes them.
    """
    finite, shapes = np.isfinite(some), {some.shape[1:], whole.array.shape[1:], perturbed.shape[1:]}
    if some.shape != there.shape or len(shapes) > 1 or not np.array_equal(finite, np.isfinite(there)):
        return False
    if not np.array_equal(some[~finite], there[~finite], equal_nan=True):
        return False
    x, y, all_images, again = (
        np.nan_to_num(each.astype(np.float64), posinf=0.0, neginf=0.0) for each in (some, there, whole.array, perturbed)
    )
    if not all_images.size:
        return True
    size, spread = np.abs(all_images).max(axis=0), np.abs(all_images - all_images[:1]).max(axis=0)
    scale, gaps = size + np.median(size) + np.finfo(np.float64).tiny, np.abs(x - y)
    if (gaps <= whole.rounding * scale + 1e-3 * spread).all():
        return True
    return bool(np.linalg.norm(gaps / scale) <= _MAGNIFIED * np.linalg.norm((all_images - again) / scale))


def _rounding(x: Array) -> float:
    """Return the relative rounding error of a network's values in the precision of x."""
    dtype = str(x.dtype)
    if "float64" in dtype or "float32" in dtype:
        return 1e-4
    return 0.1 if "bfloat16" in dtype else 3e-2 if "float16" in dtype else 0.0
