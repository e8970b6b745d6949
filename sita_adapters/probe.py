"""The probe: what is established about a model by running it, before its first answer.

Three random images a, b and c run without adaptation, in four batches:

    [a, b]      [c, b, a]      [c]      [a]

An axis whose size is the number of images holds the images. An image's part of every output, and of the input of every
adapted layer, must be the same in every batch. A constant has no such axis and never changes. Each image is missing from
some batch, which reveals a maximum over the batch; no order but the given one fits both a before b and b before a, which
reveals sorting; and a runs three times, after other images, which reveals state and random numbers.

A backend supplies the runs (`Run`) and checks what only it can: that every adapted layer is a BatchNorm, and that the
forward pass writes to no parameter or buffer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .errors import InputError, ModelError, OutputError, SitaError
from .ops import Array, Ops
from .outputs import OutputLayout, flatten, flatten_all
from .scores import resolve_scores

if TYPE_CHECKING:
    from .engine import Adaptation

BATCHES = ((0, 1), (2, 1, 0), (2,), (0,))
"""Which of the random images are in each batch. The second has all of them."""

_SAMPLE = 512
"""Number of values of each entry of a layer's input that are compared."""

_MAGNIFIED = 20.0
"""Differences of up to so many times what a perturbed image causes are rounding: layers round as well."""


class Run(Protocol):
    """Runs the plain model on some of the random images, and returns its output."""

    def __call__(self, which: Sequence[int], *, perturbed: bool = False) -> Any:
        """Run these images; `perturbed` ones are off by a few roundings."""


class InputRecorder:
    """Keeps a sample of the input of every call of an adapted layer."""

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.layers: list[tuple[str, np.ndarray, float]] = []

    def record(self, name: str, x: Array) -> None:
        """Keep a sample of every entry of a layer's input (N, …)."""
        flat = self.ops.xp.reshape(x, (x.shape[0], -1))
        step = max(1, flat.shape[1] // _SAMPLE) | 1  # odd: it meets every channel and column
        self.layers.append((name, self.ops.to_numpy(flat[:, ::step]).astype(np.float64), _noise(x)))

    def take(self) -> list[tuple[str, np.ndarray, float]]:
        """Return what was kept, and start again."""
        taken, self.layers = self.layers, []
        return taken


@dataclass(frozen=True)
class _Result:
    """One run: its images, output and layer inputs, and `room`, the relative difference that rounding may cause."""

    images: Sequence[int]
    output: Any
    layers: list[tuple[str, np.ndarray, float]]
    room: float = 0.0


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
            flatten(output, ops.is_array)
        except SitaError:
            raise
        except Exception as error:
            kind = "" if ops.is_float(images) else " (floating-point images, unless it converts them itself)"
            raise InputError(
                f"{model} fails on {len(which)} random images of {images.dtype} and shape {tuple(images.shape[1:])}: "
                f"{type(error).__name__}: {error} Expected a model that takes any number of such images{kind}. "
                "Try: check their shape and type, or give an example, sita.adapt(model, example=images)."
            ) from error
        return _Result(which, output, recorder.take())

    results = [result(which) for which in BATCHES]
    try:
        axes = _compare_all(results, ops)
    except _Mismatch as mismatch:
        with suppress(_Mismatch):
            return _layout(_with_room(results, result((0,), perturbed=True), ops), adaptation, ops)
        first, second = result((0,)), result((0,))
        if not _same(first.output, second.output, ops) or not _same(results[3].output, first.output, ops):
            raise ModelError(
                f"{model} is not deterministic, or keeps state: the same image gave different outputs. Expected a "
                "model whose answers depend on its input alone. Try: switch off dropout and noise, and anything that "
                "the model remembers from earlier calls."
            ) from None
        raise mismatch.error from None
    return _layout(results, adaptation, ops, axes)


def _layout(
    results: list[_Result], adaptation: Adaptation, ops: Ops, axes: tuple[int | None, ...] | None = None
) -> OutputLayout:
    axes = _compare_all(results, ops) if axes is None else axes
    whole = results[1]
    found = flatten(whole.output, ops.is_array)
    if all(axis is None for axis in axes):
        raise OutputError(
            f"Expected an output for each image; received {', '.join(path for path, _ in found) or 'no tensor'} for "
            "the whole batch. Try: adapt a module that keeps the batch."
        )
    values = [
        None if axis is None else np.moveaxis(ops.to_numpy(array), axis, 0)
        for (_, array), axis in zip(found, axes, strict=True)
    ]
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
    for name, x, _ in whole.layers:
        factors[name] = (*factors.get(name, ()), len(x) // len(whole.images))
    return OutputLayout(
        paths=tuple(path for path, _ in found),
        axes=axes,
        scores=scores,
        why_no_scores=why,
        selects=any(array is not None and array.dtype.kind != "f" for array in values),
        factors=factors,
        calls=len(whole.layers),
    )


def _compare_all(results: Sequence[_Result], ops: Ops) -> tuple[int | None, ...]:
    """Compare every run with the one of all images; return the axis of the images in each array."""
    first, whole, *others = results
    axes = _compare(first, whole, ops)
    for other in others:
        if _compare(other, whole, ops) != axes:
            raise _Mismatch(OutputError("Which axis of the output holds the images is unclear: it changes with their number."))
    return axes


def _compare(some: _Result, whole: _Result, ops: Ops) -> tuple[int | None, ...]:
    _compare_values(some, whole, ops)
    pairs = zip(flatten(some.output, ops.is_array), flatten(whole.output, ops.is_array), strict=True)
    axes = tuple(_axis_of_images(path, (x, y), (some, whole), ops) for (path, x), (_, y) in pairs)
    _compare_layers(some, whole)
    return axes


def _compare_layers(some: _Result, whole: _Result) -> None:
    if [name for name, *_ in some.layers] != [name for name, *_ in whole.layers]:
        raise _Mismatch(
            ModelError("The model runs other layers, or in another order, for one number of images than for another.")
        )
    mixing = [
        name
        for (name, x, noise), (_, y, _) in zip(some.layers, whole.layers, strict=True)
        if not _is_folded(x, y, some, whole) or not _agree((x, y), (some, whole), noise)
    ]
    if mixing:
        raise _Mismatch(
            ModelError(
                f"The batch of layer {', '.join(dict.fromkeys(mixing[:4]))} does not have the same number of entries for "
                "every image, side by side: the model concatenates or reorders batches, or folds time first. Expected "
                f"(N, T, …) reshaped to (N·T, …). Try: {leave_out(*dict.fromkeys(mixing))}."
            )
        )


def _is_folded(x: np.ndarray, y: np.ndarray, some: _Result, whole: _Result) -> bool:
    """Whether a layer has the same number of batch entries for every image in both runs."""
    factor, rest = divmod(len(x), len(some.images))
    return factor > 0 and not rest and len(y) == factor * len(whole.images)


def _compare_values(some: _Result, whole: _Result, ops: Ops) -> None:
    """Raise unless two outputs have the same structure, and the same numbers and strings in it."""
    before, after = (dict(flatten_all(result.output, ops.is_array)) for result in (some, whole))
    for path in sorted(before.keys() ^ after.keys()):
        raise _Mismatch(
            OutputError(
                f"The output has {path} for one number of images but not for another: perhaps a Python list with one "
                "entry per image. Expected tensors. Try: adapt a module that returns the scores as a tensor."
            )
        )
    for path, value in before.items():
        is_nan = isinstance(value, float) and math.isnan(value)
        if not ops.is_array(value) and value != after[path] and not is_nan:
            raise _Mismatch(
                OutputError(
                    f"The output has {value!r} at {path} for some images and {after[path]!r} for others: a number for "
                    "the whole batch. Try: adapt a module that returns tensors with one entry per image."
                )
            )


def _axis_of_images(path: str, arrays: tuple[Array, Array], results: tuple[_Result, _Result], ops: Ops) -> int | None:
    """Return the axis on which an output holds the images; None if it is a constant."""
    here, there = (tuple(map(int, array.shape)) for array in arrays)
    counts = tuple(len(result.images) for result in results)
    differing = [axis for axis, sizes in enumerate(zip(here, there, strict=False)) if sizes[0] != sizes[1]]
    x, y = (ops.to_numpy(array).astype(np.float64) for array in arrays)
    noise = _noise(arrays[0]) + max(result.room for result in results)
    if len(here) == len(there) and not differing:
        if _equal(x[None], y[None], noise):
            return None
        raise _Mismatch(
            OutputError(
                f"Output {path} of shape {here} is one for the whole batch and depends on its images: a loss, perhaps. "
                "Try: call the model without labels, or adapt a module that returns the scores alone."
            )
        )
    if len(here) != len(there) or len(differing) > 1 or (here[differing[0]], there[differing[0]]) != counts:
        raise _Mismatch(
            OutputError(
                f"Expected one entry of output {path} per image, on one axis; received shape {here} for {counts[0]} "
                f"and {there} for {counts[1]} images. Try: adapt a module that returns one entry per image."
            )
        )
    (axis,) = differing
    if not _agree((np.moveaxis(x, axis, 0), np.moveaxis(y, axis, 0)), results, noise):
        raise _Mismatch(
            ModelError(
                f"Images influence each other: output {path} for an image depends on the other images of its batch, or "
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


def _same(first: Any, second: Any, ops: Ops) -> bool:
    pairs = zip(flatten(first, ops.is_array), flatten(second, ops.is_array), strict=False)
    each = [(ops.to_numpy(x).astype(np.float64)[None], ops.to_numpy(y).astype(np.float64)[None], x) for (_, x), (_, y) in pairs]
    return all(x.shape == y.shape and _equal(x, y, _noise(array)) for x, y, array in each)


def _equal(x: np.ndarray, y: np.ndarray, noise: float) -> bool:
    """Whether two arrays are equal within rounding, judged by their values and by how far their entries differ."""
    if not x.size:
        return True
    x, y = np.nan_to_num(x), np.nan_to_num(y)
    spread = float(np.abs(x - x[:1]).max())
    return float(np.abs(x - y).max()) <= noise * float(np.abs(x).max()) + 1e-3 * spread


def _noise(x: Array) -> float:
    """Return the relative rounding error of a network's values in the precision of x."""
    dtype = str(x.dtype)
    if "float64" in dtype or "float32" in dtype:
        return 1e-4
    return 0.1 if "bfloat16" in dtype else 3e-2 if "float16" in dtype else 0.0


def _with_room(results: list[_Result], perturbed: _Result, ops: Ops) -> list[_Result]:
    """Return the runs with room for rounding that the network magnifies, as far as a perturbed image shows it."""
    plain = results[-1]
    pairs = zip(plain.layers, perturbed.layers, strict=False)
    noises = [noise + _MAGNIFIED * _distance(x, y) for (_, x, noise), (_, y, _) in pairs]
    outputs = zip(flatten(plain.output, ops.is_array), flatten(perturbed.output, ops.is_array), strict=False)
    room = _MAGNIFIED * max((_distance(ops.to_numpy(x), ops.to_numpy(y)) for (_, x), (_, y) in outputs), default=0.0)
    return [
        replace(
            each, layers=[(name, x, noise) for (name, x, _), noise in zip(each.layers, noises, strict=False)], room=room
        )
        for each in results
    ]


def _distance(x: np.ndarray, y: np.ndarray) -> float:
    """Return how far y is from x, relative to the largest value of x."""
    if x.shape != y.shape or not x.size:
        return 0.0
    x, y = np.nan_to_num(x.astype(np.float64)), np.nan_to_num(y.astype(np.float64))
    return float(np.abs(x - y).max()) / max(float(np.abs(x).max()), float(np.finfo(np.float64).tiny))


def leave_out(*names: str) -> str:
    """Return the argument of `adapt` that leaves these layers out."""
    return f"layers=lambda name, layer: name not in {list(names)!r}"
