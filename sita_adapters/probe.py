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
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from .errors import InputError, ModelError, OutputError, SitaError, SitaWarning
from .ops import Array, Ops
from .outputs import OutputLayout, flatten, leaves
from .probe_runs import ALL, BATCHES, ROUNDING, Result, Values, find_mixing, image_axes, is_close, mixing_error
from .scores import find_mixed, resolve_scores
from .selection import leave_out
from .state import Adaptation, ProbeResult

Run: TypeAlias = Callable[..., Any]
"""run(which, perturbed=False, fresh=False) runs the plain model on the random images with these indices, and returns
its output. `perturbed` adds rounding errors to the images. `fresh` uses a new copy of the model, without history."""


class InputRecorder:
    """Keeps a sample of the input of every call of an adapted layer."""

    def __init__(self, ops: Ops) -> None:
        self.ops = ops
        self.layers: list[Values] = []

    def record(self, name: str, x: Array) -> None:
        """Keep about 512 values of every entry of a layer's input (N, …)."""
        flat = x.reshape(x.shape[0], -1) if isinstance(x, np.ndarray) else self.ops.reshape(x, (x.shape[0], -1))
        step = max(1, flat.shape[1] // 512) | 1  # odd, so it doesn't lock onto a power-of-two stride
        self.layers.append(self.values(name, flat[:, ::step]))

    def values(self, name: str, x: Array) -> Values:
        """Return a copy of the values of an array, because a model could write to it."""
        rounding = next((value for dtype, value in ROUNDING.items() if dtype in str(x.dtype)), 0.0)
        return Values(name, np.array(self.ops.to_numpy(x)), rounding)


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

    `image_rank` is the rank of logits with the images' axes; 0 if unknown. `channel_axis` is called after the runs. It
    returns the class axis of such logits, 1 or −1, or None if it is unknown.
    """
    is_array, model = recorder.ops.is_array, adaptation.model_name

    def result(which: Sequence[int], **how: bool) -> Result:
        return _record(partial(run, which, **how), len(which), recorder, images, model)

    again = result(BATCHES[-1], fresh=True)  # first: when the other copy is made, this one is gone
    results = [result(which) for which in BATCHES]
    one = results[-1]
    pairs = zip(one.arrays, again.arrays, strict=False)  # they may differ in the order of sums on a GPU
    twice = [(x.array[None], y.array[None], 0.1 * y.rounding) for x, y in pairs]
    if one.parts != again.parts or not all(is_close(x, y, y, y, rounding) for x, y, rounding in twice):
        raise ModelError(
            f"{model} is not deterministic, or keeps state: the same image gave different outputs. Expected answers "
            "that depend on the input alone. Try: switch off dropout, noise, and any memory of earlier calls."
        )
    whole, axes = results[1], image_axes(results, adaptation)
    if mixed := find_mixing(results, axes, whole):
        with suppress(SitaError, ValueError):  # the network may just magnify rounding: measure how much
            noisy = result(ALL, perturbed=True)
            mixed = find_mixing(results, axes, noisy) if noisy.parts == whole.parts else mixed
    if mixed:
        raise mixing_error(whole, mixed, axes, adaptation)
    layout = _layout(whole, axes[: len(whole.arrays)], adaptation, is_array, image_rank, channel_axis())
    entries: dict[str, tuple[int, ...]] = {}
    for each in whole.layers:
        entries[each.name] = (*entries.get(each.name, ()), each.array.shape[1])
    constants = dict(leaf for leaf in leaves(whole.output, is_array) if not is_array(leaf[1]))
    constants |= {each.name: each.array for each, axis in zip(whole.arrays, axes, strict=False) if axis is None}
    return ProbeResult(layout, entries, image_shape=tuple(images.shape[1:]), constants=constants)


def _record(run: Run, count: int, recorder: InputRecorder, images: Array, model: str) -> Result:
    """Return what one run on a number of images returns, and what its layers received."""
    recorder.layers, is_array = [], recorder.ops.is_array
    try:
        output = run()
    except SitaError:
        raise
    except Exception as error:
        raise InputError(
            f"{model} fails on random images of {images.dtype} and shape {(count, *images.shape[1:])}: "
            f"{type(error).__name__}: {error} Expected a model that takes any number of such images, and of other "
            "arguments with one entry per image on their first axis. (Those of three and more axes are random, too.) "
            "Try: other shapes, a floating-point type, or an example, sita.adapt(model, example=images)."
        ) from error
    arrays = [recorder.values(path, array) for path, array in flatten(output, is_array)]
    layers = [each.by_image(count) for each in recorder.layers]
    others = [f"{path}={leaf!r}" for path, leaf in leaves(output, is_array) if not is_array(leaf)]
    return Result(output, [*(each.name for each in (*arrays, *layers)), *others], arrays, layers)


def _layout(  # noqa: PLR0917
    whole: Result,
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
    values = [None if axis is None else np.moveaxis(each.array, axis, 0) for each, axis in pairs]
    values = [x.astype(np.float64) if x is not None and x.dtype.kind == "f" else x for x in values]
    scores, why = resolve_scores(whole.output, values, adaptation.settings, is_array, image_rank, channel_axis)
    paths, shapes = tuple(each.name for each in whole.arrays), tuple(each.array.shape for each in whole.arrays)
    floats = tuple(each.array.dtype.kind == "f" for each in whole.arrays)
    layout = OutputLayout(paths, tuple(axes), shapes, floats, scores, why, find_mixed(scores, values))
    if adaptation.recipe.candidate_count > 1 and adaptation.recipe.combine != "mix":
        _check_vote(layout, image_rank)
    elif adaptation.recipe.candidate_count > 1 and scores is None:
        advice = "To adapt every image, use 'shift' or 'bn'."
        warnings.warn(f"{adaptation.model_name}: {layout.selection_note} {advice}", SitaWarning, stacklevel=2)
    return layout


def _check_vote(layout: OutputLayout, image_rank: int) -> None:
    """Raise if there are no scores to vote on, or if other outputs would not belong to the scores."""
    scores, others = layout.require_scores(), sum(axis is not None for axis in layout.axes) - 1
    rank = len(layout.shapes[scores.index])
    if others and rank > 2 and rank != image_rank:
        raise OutputError(
            f"{layout.paths[scores.index]} holds scores of several entries per image, beside other outputs: a vote on "
            "every entry would separate them from the other outputs. Try: 'auto' or 'shift'."
        )


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
    text = f"{adaptation.model_name} does not call {len(missed)} of its {len(names)} adapted layers, so these have no"
    text = f"{text} effect: {', '.join(missed[:4])}. Try: leave them out with layers=, if that is intended."
    warnings.warn(text, SitaWarning, stacklevel=2)


def not_batchnorm_error(wrong: Sequence[str], kind: str, adaptation: Adaptation) -> ModelError:
    """Return the error for adapted layers that do not normalize like BatchNorm."""
    return ModelError(
        f"{', '.join(wrong[:4])} ({kind}) does not normalize its input with its statistics as BatchNorm does: "
        "(x − mean) / sqrt(variance + ε) per channel, then anything. (Without an attribute `eps`, ε is 1e-5.) Try: "
        f"{leave_out(wrong, adaptation.layers)}."
    )
