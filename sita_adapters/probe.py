"""The probe: what is established about a model by running it, before its first answer.

Three random images a, b and c run without adaptation, in five batches:

    [a, b]      [c, b, a]      [c]      [a]      [a]

An axis whose size is the number of images holds the images. An image's part of every output, and of the input of every
adapted layer, must be the same in every batch. A constant has no such axis and never changes. Each image is missing
from some batch, which reveals a maximum over the batch; no order but the given one fits both a before b and b before a,
which reveals sorting; and a runs again and again, which reveals state and random numbers.

A backend supplies the runs (`Run`) and checks what only it can: that every adapted layer is a BatchNorm, and that the
forward pass writes to no parameter or buffer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .errors import InputError, ModelError, OutputError, SitaError
from .ops import Array, Ops
from .outputs import OutputLayout, flatten, flatten_all
from .scores import resolve_scores

if TYPE_CHECKING:
    from .engine import Adaptation

BATCHES = ((0, 1), (2, 1, 0), (2,), (0,), (0,))
"""Which of the random images are in each batch. The second has all of them."""

_SAMPLE = 512
"""Number of values of each entry of a layer's input that are compared."""

_MAGNIFIED = 20.0
"""Differences of up to so many times what a perturbed image causes are rounding: layers round as well."""


class Run(Protocol):
    """Runs the plain model on some of the random images, and returns its output."""

    def __call__(self, which: Sequence[int], *, perturbed: bool = False) -> Any:
        """Run these images; `perturbed` ones are off by a few roundings."""


@dataclass(frozen=True)
class _Values:
    """The values of an output, or of a layer's input, and the relative rounding error of their precision."""

    name: str
    array: np.ndarray
    noise: float


class InputRecorder:
    """Keeps a sample of the input of every call of an adapted layer."""

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.layers: list[_Values] = []

    def record(self, name: str, x: Array) -> None:
        """Keep a sample of every entry of a layer's input (N, …)."""
        flat = self.ops.xp.reshape(x, (x.shape[0], -1))
        step = max(1, flat.shape[1] // _SAMPLE) | 1  # odd: it meets every channel and column
        self.layers.append(_Values(name, self.ops.to_numpy(flat[:, ::step]), _noise(x)))

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


class _Mismatch(Exception):
    """Two runs differ where they should not."""

    def __init__(self, error: SitaError) -> None:
        super().__init__(str(error))
        self.error = error


def probe_model(run: Run, recorder: InputRecorder, adaptation: Adaptation, model: str, images: Array) -> OutputLayout:
    """Return the layout of a model's output; raise a SitaError where the model violates the contract.

    `model` is the name of its class and `images` the images that start the probe, for the errors.
    """
    ops = recorder.ops

    def result(which: Sequence[int], *, perturbed: bool = False) -> _Result:
        recorder.take()
        try:
            output = run(which, perturbed=perturbed)
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
        arrays = [_Values(path, ops.to_numpy(array), _noise(array)) for path, array in found]
        others = {path: value for path, value in flatten_all(output, ops.is_array) if not ops.is_array(value)}
        return _Result(which, output, arrays, others, recorder.take())

    *results, again = [result(which) for which in BATCHES]
    if not _same(results[-1], again):
        raise ModelError(
            f"{model} is not deterministic, or keeps state: the same image gave different outputs. Expected a model "
            "whose answers depend on its input alone. Try: switch off dropout and noise, and anything that the model "
            "remembers from earlier calls."
        )
    try:
        axes = _compare_all(results, results[1])
    except _Mismatch as mismatch:
        with suppress(_Mismatch):  # does the network magnify rounding?
            return _layout(results[1], _compare_all(results, result(BATCHES[1], perturbed=True)), adaptation, ops)
        raise mismatch.error from None
    return _layout(results[1], axes, adaptation, ops)


def _layout(whole: _Result, axes: tuple[int | None, ...], adaptation: Adaptation, ops: Ops) -> OutputLayout:
    if all(axis is None for axis in axes):
        raise OutputError("Expected an output for each image; received none. Try: adapt a module that keeps the batch.")
    pairs = zip(whole.arrays, axes, strict=True)
    values = [None if axis is None else np.moveaxis(each.array, axis, 0) for each, axis in pairs]
    scores, why = resolve_scores(
        whole.output,
        values,
        selector=adaptation.output,
        kind=adaptation.scores,
        class_axis=adaptation.class_axis,
        channel_axis=adaptation.channel_axis,
        is_signal="signal" in adaptation.kinds,
        is_array=ops.is_array,
    )
    factors: dict[str, tuple[int, ...]] = {}
    for each in whole.layers:
        factors[each.name] = (*factors.get(each.name, ()), len(each.array) // len(whole.images))
    return OutputLayout(
        paths=tuple(each.name for each in whole.arrays),
        axes=axes,
        scores=scores,
        why_no_scores=why,
        selects=any(array is not None and array.dtype.kind != "f" for array in values),
        factors=factors,
        calls=len(whole.layers),
    )


def _compare_all(results: Sequence[_Result], perturbed: _Result) -> tuple[int | None, ...]:
    """Compare every run with the one of all images; return the axis of the images in each array.

    What differs between this run and the same images perturbed, magnified, is rounding.
    """
    first, whole, *others = results
    rooms = [
        [_MAGNIFIED * _distance(x.array, y.array) for x, y in zip(plain, moved, strict=False)]
        for plain, moved in ((whole.arrays, perturbed.arrays), (whole.layers, perturbed.layers))
    ]
    found = {_compare(some, whole, *rooms) for some in (first, *others)}
    if len(found) > 1:
        raise _Mismatch(OutputError("The axis of the output that holds the images changes with their number."))
    return found.pop()


def _compare(
    some: _Result, whole: _Result, output_rooms: list[float], layer_rooms: list[float]
) -> tuple[int | None, ...]:
    names = [each.name for each in some.arrays], list(some.others)
    if names != ([each.name for each in whole.arrays], list(whole.others)) or repr(some.others) != repr(whole.others):
        raise _Mismatch(
            OutputError(
                f"The output of {len(some.images)} images has other parts, or other numbers beside its tensors, than "
                f"that of {len(whole.images)}: {some.others or names[0]} and {whole.others or '…'}. Expected tensors "
                "with one entry per image. Try: adapt a module that returns such tensors alone."
            )
        )
    pairs = zip(some.arrays, whole.arrays, output_rooms or [0.0] * len(some.arrays), strict=True)
    axes = tuple(_axis_of_images((x, y), (some, whole), room) for x, y, room in pairs)
    if [each.name for each in some.layers] != [each.name for each in whole.layers]:
        raise _Mismatch(ModelError("The model runs other layers for one number of images than for another."))
    layers = zip(some.layers, whole.layers, layer_rooms, strict=True)
    mixing = dict.fromkeys(x.name for x, y, room in layers if not _is_side_by_side((x, y), (some, whole), room))
    if mixing:
        raise _Mismatch(
            ModelError(
                f"The batch of layer {', '.join([*mixing][:4])} does not have the same number of entries for every "
                "image, side by side: the model concatenates or reorders batches, or folds time first. Expected "
                f"(N, T, …) reshaped to (N·T, …). Try: {leave_out(*mixing)}."
            )
        )
    return axes


def _is_side_by_side(pair: tuple[_Values, _Values], results: tuple[_Result, _Result], room: float) -> bool:
    """Whether a layer has the same number of entries for every image, and the same for an image in both runs."""
    entries, counts = [len(each.array) for each in pair], [len(each.images) for each in results]
    if not entries[0] or entries[0] * counts[1] != entries[1] * counts[0] or entries[0] % counts[0]:
        return False
    return _agree((pair[0].array, pair[1].array), results, pair[0].noise + room)


def _axis_of_images(pair: tuple[_Values, _Values], results: tuple[_Result, _Result], room: float) -> int | None:
    """Return the axis on which an output holds the images; None if it is a constant."""
    x, y = (each.array.astype(np.float64) for each in pair)
    path, noise = pair[0].name, pair[0].noise + room
    counts = tuple(len(result.images) for result in results)
    differing = [axis for axis, sizes in enumerate(zip(x.shape, y.shape, strict=False)) if sizes[0] != sizes[1]]
    if x.ndim == y.ndim and not differing:
        if _equal(x[None], y[None], noise):
            return None
        raise _Mismatch(
            OutputError(
                f"{path} of shape {x.shape} is one value for the whole batch and depends on its images: a loss, "
                "perhaps. Try: call the model without labels, or adapt a module that returns the scores alone."
            )
        )
    if x.ndim != y.ndim or len(differing) > 1 or (x.shape[differing[0]], y.shape[differing[0]]) != counts:
        raise _Mismatch(
            OutputError(
                f"Expected one entry of {path} per image, on one axis; received shape {x.shape} for {counts[0]} "
                f"and {y.shape} for {counts[1]} images. Try: adapt a module that returns one entry per image."
            )
        )
    (axis,) = differing
    if not _agree((np.moveaxis(x, axis, 0), np.moveaxis(y, axis, 0)), results, noise):
        raise _Mismatch(
            ModelError(
                f"Images influence each other: {path} for an image depends on the other images of its batch, or "
                "on their order. Expected a model that treats every image independently. Try: take what looks at the "
                "whole batch (a maximum, a branch, a sort) out of the model, and do it before or after the call."
            )
        )
    return axis


def _agree(arrays: tuple[np.ndarray, np.ndarray], results: tuple[_Result, _Result], noise: float) -> bool:
    """Whether the images of a run have the same entries in the run of all images."""
    x, y = (array.reshape(len(result.images), -1) for array, result in zip(arrays, results, strict=True))
    there = y[[results[1].images.index(image) for image in results[0].images]]
    return _equal(np.concatenate([y, there]), np.concatenate([y, x]), noise)  # judged by how far all images differ


def _same(first: _Result, second: _Result) -> bool:
    """Whether two runs of one image are equal; only the order of sums on a GPU may differ."""
    pairs = zip(first.arrays, second.arrays, strict=False)
    return all(x.array.shape == y.array.shape and _distance(x.array, y.array) <= 0.1 * x.noise for x, y in pairs)


def _equal(x: np.ndarray, y: np.ndarray, noise: float) -> bool:
    """Whether two arrays are equal within rounding, judged by their values and by how far their entries differ."""
    if not x.size:
        return True
    x, y = (np.nan_to_num(each.astype(np.float64)) for each in (x, y))
    spread = float(np.abs(x - x[:1]).max())
    return float(np.abs(x - y).max()) <= noise * float(np.abs(x).max()) + 1e-3 * spread


def _noise(x: Array) -> float:
    """Return the relative rounding error of a network's values in the precision of x."""
    dtype = str(x.dtype)
    if "float64" in dtype or "float32" in dtype:
        return 1e-4
    return 0.1 if "bfloat16" in dtype else 3e-2 if "float16" in dtype else 0.0


def _distance(x: np.ndarray, y: np.ndarray) -> float:
    """Return how far y is from x, relative to the largest value of x."""
    if x.shape != y.shape or not x.size:
        return 0.0
    x, y = (np.nan_to_num(each.astype(np.float64)) for each in (x, y))
    return float(np.abs(x - y).max()) / max(float(np.abs(x).max()), 1e-300)


def leave_out(*names: str) -> str:
    """Return the argument of `adapt` that leaves these layers out."""
    return f"layers=lambda name, layer: name not in {list(names)!r}"
