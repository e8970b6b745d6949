"""The probe: it runs a model before the first answer, to check the contract and to find the layout of the output.

Two random images a and b run without adaptation. First, a runs on a fresh copy of the model; then, on another copy:

    [a]      [a, b]      [b, a]      [b]      [a]

The batch dimension is the axis whose size is the number of images. An image's part of every output, and of the input of
every adapted layer, must be the same in every batch. A constant has no batch dimension and never changes. Each image is
missing from some batch, which reveals a maximum over the batch. The order of a and b differs between batches, which
reveals sorting. a runs several times, which reveals state and randomness. A backend supplies the runs. It also checks
that every adapted layer is a BatchNorm, and that no parameter or buffer is written.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from .errors import InputError, ModelError, OutputError, SitaError, SitaWarning
from .ops import Array, Ops
from .outputs import OutputLayout, flatten, leaves
from .scores import find_mixed, resolve_scores
from .state import Adaptation, ProbeResult

Run: TypeAlias = Callable[..., Any]
"""run(which, perturbed=False, fresh=False) runs the plain model on the random images with these indices, and returns
its output. `perturbed` adds rounding errors to the images. `fresh` uses a new copy of the model, without history."""

_ALL = (1, 0)
BATCHES = ((0, 1), _ALL, (1,), (0,))
_ROUNDING = {"float64": 1e-4, "float32": 1e-4, "bfloat16": 0.1, "float16": 3e-2}
"""The relative rounding error of a network's values in each precision; 0 for integers."""


class _Values(NamedTuple):
    """An array of the output, or of a layer's input, and the rounding error of its precision."""

    name: str
    array: np.ndarray
    rounding: float

    def by_image(self, count: int) -> _Values:
        """Return a layer's input, (N·T, S), as (N, T, S); unchanged if N does not divide its length."""
        entries, rest = divmod(len(self.array), count)
        return self if rest else self._replace(array=self.array.reshape(count, entries, self.array.shape[1]))


class _Result(NamedTuple):
    """One run: its output, the names of the output's parts and of the layers, its arrays, and the layers' inputs."""

    output: Any
    parts: list[str]
    arrays: list[_Values]
    layers: list[_Values]


class InputRecorder:
    """Keeps a sample of the input of every call of an adapted layer."""

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.layers: list[_Values] = []
        self._block, self._used = np.empty(0, np.uint8), 0

    def record(self, name: str, x: Array) -> None:
        """Keep about 512 values of every entry of a layer's input (N, …)."""
        flat = x.reshape(x.shape[0], -1) if isinstance(x, np.ndarray) else self.ops.reshape(x, (x.shape[0], -1))
        step = max(1, flat.shape[1] // 512) | 1  # odd, so it doesn't lock onto a power-of-two stride
        self.layers.append(self.values(name, flat[:, ::step], self._copy))

    def values(self, name: str, x: Array, copy: Callable[[np.ndarray], np.ndarray] = np.array) -> _Values:
        """Return a copy of the values of an array, because a model could write to it."""
        rounding = next((value for dtype, value in _ROUNDING.items() if dtype in str(x.dtype)), 0.0)
        return _Values(name, copy(self.ops.to_numpy(x)), rounding)

    def _copy(self, array: np.ndarray) -> np.ndarray:
        """Return a copy inside a large block: many small arrays would fragment the memory that the layers reuse."""
        if self._used + array.nbytes > self._block.size:
            self._block, self._used = np.empty(max(array.nbytes, 1 << 22), np.uint8), 0
        start, self._used = self._used, self._used + -(-array.nbytes // 16) * 16
        copied = self._block[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        copied[...] = array
        return copied


def probe_model(
    run: Run,
    recorder: InputRecorder,
    adaptation: Adaptation,
    images: Array,
    *,
    image_rank: int,
    channel_axis: Callable[[], int | None],
) -> ProbeResult:
    """Return what is established about a model for images like these; raise a SitaError if it violates the contract.

    `channel_axis` is called after the runs. It returns the class axis of logits of the images' rank, 1 or −1, or None
    if it is unknown.
    """
    is_array, model = recorder.ops.is_array, adaptation.model_name

    def result(which: Sequence[int], **how: bool) -> _Result:
        return _record(partial(run, which, **how), len(which), recorder, images, model)

    again = result(BATCHES[-1], fresh=True)  # first: when the other copy is made, this one is gone
    results = [result(which) for which in BATCHES]
    one = results[-1]
    pairs = zip(one.arrays, again.arrays, strict=False)  # they may differ in the order of sums on a GPU
    twice = [(x.array[None], y.array[None], 0.1 * y.rounding) for x, y in pairs]
    if one.parts != again.parts or not all(_close(x, y, y, y, rounding) for x, y, rounding in twice):
        raise ModelError(
            f"{model} is not deterministic, or keeps state: the same image gave different outputs. Expected answers "
            "that depend on the input alone. Try: switch off dropout, noise, and any memory of earlier calls."
        )
    whole, axes = results[1], _image_axes(results, adaptation)
    if mixed := _mixed(results, axes, whole):
        with suppress(SitaError, ValueError):  # the network may just magnify rounding: measure how much
            noisy = result(_ALL, perturbed=True)
            mixed = _mixed(results, axes, noisy) if noisy.parts == whole.parts else mixed
    if mixed:
        raise _mixing_error(whole, mixed, axes, adaptation)
    layout = _layout(whole, axes[: len(whole.arrays)], adaptation, is_array, image_rank, channel_axis())
    entries: dict[str, tuple[int, ...]] = {}
    for each in whole.layers:
        entries[each.name] = (*entries.get(each.name, ()), each.array.shape[1])
    return ProbeResult(layout, entries)


def _record(run: Run, count: int, recorder: InputRecorder, images: Array, model: str) -> _Result:
    """Return what one run on a number of images returns, and what its layers received."""
    recorder.layers, is_array = [], recorder.ops.is_array
    try:
        output = run()
    except SitaError:
        raise
    except Exception as error:
        raise InputError(
            f"{model} fails on random images of {images.dtype} and shape {(count, *images.shape[1:])}: "
            f"{type(error).__name__}: {error} Expected a model that takes any number of such images. Try: other "
            "shapes, a floating-point type, or an example, sita.adapt(model, example=images)."
        ) from error
    arrays = [recorder.values(path, array) for path, array in flatten(output, is_array)]
    layers = [each.by_image(count) for each in recorder.layers]
    others = [f"{path}={leaf!r}" for path, leaf in leaves(output, is_array) if not is_array(leaf)]
    return _Result(output, [*(each.name for each in (*arrays, *layers)), *others], arrays, layers)


def _image_axes(results: Sequence[_Result], adaptation: Adaptation) -> list[int | None]:
    """Return the axis, in each output and layer's input, whose size is the number of images in every run, if any."""
    counts, parts, axes = tuple(map(len, BATCHES)), results[1].parts, list[int | None]()
    for some, count in zip(results, counts, strict=True):
        found, usual = Counter(some.parts), Counter(parts)
        other = sorted((found - usual) | (usual - found))
        if other and {*other} <= {each.name for each in (*some.layers, *results[1].layers)}:
            raise ModelError(
                f"The model calls {other[0]!r} {usual[other[0]]} times for two images, and {found[other[0]]} times for "
                f"{count}. Expected the same calls for any number of images. Try: run a batch as a whole, without a "
                f"loop over its images; or {leave_out(other, adaptation)}."
            )
        if some.parts != parts:
            raise OutputError(
                f"The output of {count} images has different parts, or different non-tensor values, from the output "
                f"of two: {', '.join(other[:4])}. Try: adapt a module that returns tensors with one entry per image, "
                "and nothing else that depends on their number."
            )
    for index, runs in enumerate(zip(*(each.arrays + each.layers for each in results), strict=True)):
        shapes = [each.array.shape for each in runs]
        sizes = list(zip(*shapes, strict=False))
        differing = [axis for axis, along in enumerate(sizes) if len(set(along)) > 1]
        fits = [sizes[axis] for axis in differing] == [counts] and len({*map(len, shapes)}) == 1
        if len(set(shapes)) > 1 and not fits and index < len(results[1].arrays):
            raise OutputError(
                f"Expected one entry of {runs[0].name} per image, on one axis; received shapes "
                f"{', '.join(map(str, shapes))} for {', '.join(map(str, counts))} images. Try: return one entry per "
                "image, even for a single image (no squeeze())."
            )
        axes.append(differing[0] if fits else None)
    return axes


def _mixed(results: Sequence[_Result], axes: Sequence[int | None], perturbed: _Result) -> list[int]:
    """Return the indices of outputs, then of layers, whose values for an image differ between runs beyond rounding.

    `perturbed` is a run of all images with rounding errors added. It shows the effect of rounding.
    """
    orders, found = [[_ALL.index(image) for image in which] for which in BATCHES], []
    for index, runs in enumerate(zip(*(each.arrays + each.layers for each in (*results, perturbed)), strict=True)):
        axis = axes[index]  # None for a constant, which is compared as one entry
        *arrays, again = (each.array[None] if axis is None else np.moveaxis(each.array, axis, 0) for each in runs)
        pairs = zip(arrays, orders if axis is not None else [[0]] * len(orders), strict=True)
        if not all(_close(x, arrays[1][order], arrays[1], again, runs[1].rounding) for x, order in pairs):
            found.append(index)
    return found


def _mixing_error(
    whole: _Result, mixed: Sequence[int], axes: Sequence[int | None], adaptation: Adaptation
) -> SitaError:
    """Return the error for the first output, or for all layers, in which images influence each other."""
    first, *_ = names = list(dict.fromkeys((whole.arrays + whole.layers)[index].name for index in mixed))
    if mixed[0] >= len(whole.arrays):
        return ModelError(
            f"The batch of layer {', '.join(names[:4])} does not hold the same number of consecutive entries for "
            "every image, independent of the others: the model concatenates, reorders or normalizes batches, or folds "
            f"time first. Expected (N, T, …) reshaped to (N·T, …). Try: change that, or "
            f"{leave_out(names, adaptation)}."
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


def _close(x: np.ndarray, y: np.ndarray, every: np.ndarray, perturbed: np.ndarray, rounding: float) -> bool:
    """Whether values x and y (n, …) of the same images differ only by rounding; `every` has the values of all images.

    |x − y| ≤ rounding · size + 10⁻³ · spread      or      ‖(x − y) / size‖ ≤ 20 · ‖(every − perturbed) / size‖

    Size and spread are computed per column, so a large constant among the scores cannot hide a difference. In a network
    that magnifies rounding, single columns say little: the total is compared with the total for perturbed images.
    """
    if np.iscomplexobj(x):
        real, imaginary = ([getattr(z, part) for z in (x, y, every, perturbed)] for part in ("real", "imag"))
        return all(_close(a, b, c, d, rounding) for a, b, c, d in (real, imaginary))
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


def _layout(  # noqa: PLR0917
    whole: _Result,
    axes: Sequence[int | None],
    adaptation: Adaptation,
    is_array: Callable[[Any], bool],
    image_rank: int,
    channel_axis: int | None,
) -> OutputLayout:
    """Return the layout of the output: its images, its class scores, and what may be averaged."""
    if all(axis is None for axis in axes):
        raise OutputError("No output has one entry per image. Try: adapt a module that keeps the batch axis.")
    pairs = zip(whole.arrays, axes, strict=True)
    values = [None if axis is None else np.moveaxis(_precise(each.array), axis, 0) for each, axis in pairs]
    settings = adaptation.settings
    scores, why = resolve_scores(
        whole.output, values, settings, is_array, image_rank=image_rank, channel_axis=channel_axis
    )
    paths, shapes = tuple(each.name for each in whole.arrays), tuple(each.array.shape for each in whole.arrays)
    floats = tuple(each.array.dtype.kind == "f" for each in whole.arrays)
    layout = OutputLayout(paths, tuple(axes), shapes, floats, scores, why, find_mixed(scores, values))
    if adaptation.recipe.candidate_count > 1 and scores is None:
        if adaptation.recipe.combine != "mix":
            layout.require_scores()
        advice = "To adapt every image, use 'shift' or 'bn'."
        warnings.warn(f"{adaptation.model_name}: {layout.what_selects} {advice}", SitaWarning, stacklevel=2)
    return layout


def _precise(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def leave_out(names: Collection[str], adaptation: Adaptation) -> str:
    """Return the argument of `adapt` that leaves these layers out, if it has others."""
    if {info.name for info in adaptation.layers if info.adapted} <= {*names}:
        return "another model, because this one has no other BatchNorm layers"
    return f"layers=lambda name, layer: name not in {[*names]!r}"


def check_called(called: Collection[str], adaptation: Adaptation) -> None:
    """Raise an error if a model calls none of its adapted layers; warn if it does not call some of them."""
    names = [info.name for info in adaptation.layers if info.adapted]
    missed = [name for name in names if name not in called]
    if not missed or not any(plan.blends for plan in adaptation.plans.values()):
        return
    if len(missed) == len(names):
        raise ModelError(
            f"{adaptation.model_name} calls none of its {len(names)} adapted layers. Expected layers that are called: "
            "a model that only reads their statistics (F.batch_norm) cannot be adapted."
        )
    some = f"does not call {len(missed)} of its {len(names)} adapted layers, so these have no effect: "
    advice = f"{', '.join(missed[:4])}. Try: leave them out with layers=, if that is intended."
    warnings.warn(f"{adaptation.model_name} {some}{advice}", SitaWarning, stacklevel=2)


def not_batchnorm_error(wrong: Sequence[str], kind: str, adaptation: Adaptation) -> ModelError:
    """Return the error for adapted layers that do not normalize like BatchNorm."""
    return ModelError(
        f"{', '.join(wrong[:4])} ({kind}) does not normalize its input with its statistics as BatchNorm does. Expected "
        f"(x − mean) / sqrt(variance + ε) with one mean per channel; anything may follow. Try: "
        f"{leave_out(wrong, adaptation)}."
    )
