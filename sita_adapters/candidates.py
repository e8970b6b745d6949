"""Collapse: from the outputs of an image's rows to its answer, in the structure that the model puts out.

The rows that may answer are the candidates. One answers for itself; several vote, and whatever else is in the output
comes from the most certain of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import OutputError
from .gauge import Gauge, read_gauge
from .observe import LayerPriors, is_observed, record_vote, refuse_compiled
from .ops import Array, Ops, SymbolicError
from .outputs import find_scores, flatten, rebuild
from .plan import Plan
from .trial import WHOLE, checked_axes, whole_error
from .votable import check_scores, could_be_scores
from .voting import Verdict, decide

if TYPE_CHECKING:
    from .engine import Adaptation, Call


@dataclass(frozen=True)
class Candidates:
    """A model's output in which every array of the images is (images, candidates, …); constants are as they came.

    `axes` tells where each array had its images (None: a constant). The memory of the other rows is not kept. `whole`
    is the output itself where each image has one row.
    """

    output: Any
    arrays: list[Array]
    axes: list[int | None]
    whole: Any = None
    layer_priors: LayerPriors | None = None
    """λ that the layers set by a rule, where somebody observes."""


@dataclass(frozen=True)
class Answer:
    """One output for every image, of the type that the model's own has, and the axis of the images in its arrays."""

    output: Any
    axes: list[int | None]
    gauge: Gauge | None = None


def keep_candidates(output: Any, call: Call) -> Candidates:
    """Keep the candidate rows of every array that has an entry for each row."""
    ops, plan = call.ops, call.plan
    found = flatten(output, ops.is_array)
    axes = checked_axes(found, call.findings)
    if plan.rows == 1 and call.findings is None:  # nothing is cut, so nothing has to be known
        axes = [0 if _entries(array, 0, call) else None for _, array in found]
    kept: dict[int, Array] = {}  # an array that is there twice is one array afterwards
    alone = plan.rows == 1 and (call.adaptation is None or call.adaptation.max_rows is None)
    for (path, array), axis in zip(found, axes, strict=True):
        if axis == WHOLE and not alone:
            raise whole_error(path, array)
        if axis is not None and axis != WHOLE and not _entries(array, axis, call):
            raise _misfit(path, array, axis, call)
        if id(array) not in kept:
            kept[id(array)] = array if axis in (None, WHOLE) else _candidate_rows(array, axis, plan, ops)
    if all(axis in (None, WHOLE) for axis in axes):
        shapes = ", ".join(f"{path} {tuple(array.shape)}" for path, array in found)
        raise OutputError(
            f"Expected an output for each of the {call.entries} rows; received {shapes or type(output).__name__}: the "
            "model merges its batch. Remedy: adapt a module that keeps it."
        )
    arrays = [kept[id(array)] for _, array in found]
    whole = output if plan.rows == 1 else None
    return Candidates(rebuild(output, iter(arrays), ops.is_array), arrays, axes, whole, _layer_priors(call))


def _layer_priors(call: Call) -> LayerPriors | None:
    """Return λ of every candidate in every layer, (B, P, L), and the shift that it saw."""
    if not call.priors_set:
        return None
    names, priors, shifts = zip(*call.priors_set, strict=True)
    # An exported graph puts out λ, and has no use for the shift.
    watched = call.adaptation is not None and is_observed(call.adaptation)
    seen = _of_candidates(shifts, math.nan, call) if watched else None
    return LayerPriors(names, _of_candidates(priors, 1.0, call), seen)


def _of_candidates(layers: Sequence[Array], otherwise: float, call: Call) -> Array:
    """Return what the layers have of the departing rows, (B, R, 1) each, for every candidate: (B, P, L)."""
    xp, plan = call.ops.xp, call.plan
    by_row = call.ops.concat(layers, axis=-1)
    last = by_row.shape[1] - 1  # one line of them may serve all rows
    others = xp.ones_like(by_row[:, 0]) * otherwise
    rows = [
        others if plan.priors[row] == 1.0 else by_row[:, min(row - plan.first, last)] for row in plan.candidate_rows
    ]
    return xp.stack(rows, axis=1)


def _entries(array: Array, axis: int, call: Call) -> bool:
    """Whether an array has an entry for each row on this axis."""
    if len(array.shape) <= axis:
        return False
    size = array.shape[axis]
    return call.ops.is_symbol(size) or call.ops.is_symbol(call.entries) or bool(size == call.entries)


def _misfit(path: str, array: Array, axis: int, call: Call) -> OutputError:
    if call.findings is None:
        return OutputError(
            f"Expected {path} to have an entry for each of the {call.entries} rows; received shape "
            f"{tuple(array.shape)}. While a model is compiled or traced, it cannot be found out where the images are "
            "in such an output. Remedy: sita.adapt(model, example=images), or call the adapted model once before."
        )
    return OutputError(
        f"Expected {path} to have {call.entries} entries on axis {axis}, one for each row, as when the model was tried "
        f"out; received shape {tuple(array.shape)}. Remedy: adapt a module whose output has one for every image."
    )


def _candidate_rows(array: Array, axis: int, plan: Plan, ops: Ops) -> Array:
    if axis:
        array = ops.xp.moveaxis(array, axis, 0)
    by_row = ops.xp.reshape(array, (-1, plan.rows, *ops.shape(array)[1:]))
    if len(plan.candidate_rows) == plan.rows:
        return by_row
    return ops.xp.stack([by_row[:, row] for row in plan.candidate_rows], axis=1)


def collapse(
    parts: Sequence[Candidates], plan: Plan, adaptation: Adaptation, ops: Ops, *, gauged: bool = False
) -> Answer:
    """Return the answer of the candidates that the parts of a Plan have; `gauged` adds the gauge of shift."""
    candidates = parts[0] if len(parts) == 1 else _join(parts, ops)
    several = len(plan.candidate_rows) > 1
    gauge = None
    if several or gauged or is_observed(adaptation):
        vote = _vote(candidates, plan, adaptation, ops)
        gauge = vote.gauge(candidates, plan, adaptation, ops) if gauged else None
    if several:
        arrays = _decided(candidates, vote, plan, ops)
    elif plan.rows == 1:
        return Answer(candidates.whole, candidates.axes, gauge)
    else:
        pairs = zip(candidates.arrays, candidates.axes, strict=True)
        arrays = [array if axis is None else array[:, 0] for array, axis in pairs]
    pairs = zip(arrays, candidates.axes, strict=True)
    arrays = [ops.xp.moveaxis(array, 0, axis) if axis else array for array, axis in pairs]
    return Answer(rebuild(candidates.output, iter(arrays), ops.is_array), candidates.axes, gauge)


def _join(parts: Sequence[Candidates], ops: Ops) -> Candidates:
    """Return the candidates of several parts of a Plan side by side."""
    first = parts[0]
    joined: dict[int, Array] = {}  # an array that is there twice is one array afterwards
    for *each, axis in zip(*(part.arrays for part in parts), first.axes, strict=True):
        if id(each[0]) not in joined:
            joined[id(each[0])] = each[0] if axis is None else ops.concat(each, axis=1)
    arrays = [joined[id(array)] for array in first.arrays]
    layer_priors = _join_layer_priors(parts, ops)
    return Candidates(rebuild(first.output, iter(arrays), ops.is_array), arrays, first.axes, layer_priors=layer_priors)


def _join_layer_priors(parts: Sequence[Candidates], ops: Ops) -> LayerPriors | None:
    found = next((part.layer_priors for part in parts if part.layer_priors), None)
    if found is None:
        return None
    ones = ops.xp.ones_like(found.values[:, :1])  # a part without a rule is that of λ = 1
    each = [ones if part.layer_priors is None else part.layer_priors.values for part in parts]
    if found.shifts is None:
        return LayerPriors(found.names, ops.concat(each, axis=1))
    shifts = [math.nan * ones if part.layer_priors is None else part.layer_priors.shifts for part in parts]
    return LayerPriors(found.names, ops.concat(each, axis=1), ops.concat(shifts, axis=1))


def concatenate(answers: Sequence[Answer], ops: Ops) -> Any:
    """Return the answers of several rounds as the output of one call."""
    first = answers[0]
    found = [flatten(answer.output, ops.is_array) for answer in answers]
    joined = [
        each[0][1] if axis is None else ops.concat([array for _, array in each], axis=axis)
        for axis, *each in zip(first.axes, *found, strict=True)
    ]
    return rebuild(first.output, iter(joined), ops.is_array)


def _decided(candidates: Candidates, vote: _Vote, plan: Plan, ops: Ops) -> list[Array]:
    """Return the arrays of the answer: the scores as voted, the rest from the most certain candidate.

    A view that moves pixels lends nothing to the rest: a feature map would come back turned.
    """
    scores, verdict = candidates.arrays[vote.place], vote.verdict
    in_place = [p for p, row in enumerate(plan.candidate_rows) if not plan.moves_pixels(row)]
    arrays = []
    for array, axis in zip(candidates.arrays, candidates.axes, strict=True):
        if array is scores:
            arrays.append(ops.cast(verdict.scores, array))
        elif axis is None:
            arrays.append(array)
        else:
            arrays.append(_of_most_certain(array, verdict.entropies, in_place, ops.xp))
    return arrays


def _of_most_certain(array: Array, entropies: Array, candidates: list[int], xp: Any) -> Array:
    """Return, of an array (B, P, …), the candidate with the lowest entropy, on average over an image's places.

    Each is compared with the best so far, rather than all at once by argmin, which not every exporter follows.
    """
    places = tuple(range(2, len(entropies.shape)))
    means = xp.mean(entropies, axis=places) if places else entropies
    column = (-1, *[1] * (len(array.shape) - 2))
    first, *others = candidates
    chosen, lowest = array[:, first], means[:, first]
    for candidate in others:
        better = means[:, candidate] < lowest
        chosen = xp.where(xp.reshape(better, column), array[:, candidate], chosen)
        lowest = xp.where(better, means[:, candidate], lowest)
    return chosen


@dataclass(frozen=True)
class _Vote:
    """Where in the output the scores are, where in them the classes, from the end, and what was decided."""

    place: int
    class_axis: int
    verdict: Verdict

    def gauge(self, candidates: Candidates, plan: Plan, adaptation: Adaptation, ops: Ops) -> Gauge:
        """Return the gauge of shift that it gives."""
        return read_gauge(
            candidates.arrays[self.place],
            self.verdict,
            plan,
            candidates.layer_priors,
            class_axis=self.class_axis,
            scores=adaptation.scores,
            ops=ops,
        )


def _vote(candidates: Candidates, plan: Plan, adaptation: Adaptation, ops: Ops) -> _Vote:
    """Return what the candidates decide, after finding the scores in the output."""
    pairs = zip(candidates.arrays, candidates.axes, strict=True)
    eligible = {id(array) for array, axis in pairs if axis == 0 and could_be_scores(array, 1, adaptation, ops)}
    place = find_scores(candidates.output, adaptation.output, ops.is_array, lambda array: id(array) in eligible)
    scores, axis = candidates.arrays[place], candidates.axes[place]
    if axis != 0:
        where = "no axis for the images" if axis is None else f"the images on axis {axis}"
        raise OutputError(
            f"Expected scores {ops.scores_layout} to vote on; received some with {where}. Remedy: adapt a module that "
            "puts the images first, say with output= where the scores are, or take a recipe with one prior ('augbn')."
        )
    shape = (scores.shape[0], *scores.shape[2:])
    check_scores(shape, ops.is_float(scores), plan, adaptation, ops)
    class_axis = ops.class_axis - (len(shape) if ops.class_axis > 0 else 0)
    precise = ops.precise(scores)
    verdict = decide(
        precise,
        top_k=min(adaptation.recipe.kept, len(plan.candidate_rows)),
        combine=adaptation.recipe.combine,  # type: ignore[arg-type]
        scores=adaptation.scores,
        class_axis=class_axis,
        ops=ops,
    )
    if is_observed(adaptation):
        try:
            record_vote(
                adaptation,
                precise,
                verdict,
                plan,
                candidates.layer_priors,
                class_axis=class_axis,
                scores=adaptation.scores,
                ops=ops,
            )
        except SymbolicError as error:
            raise refuse_compiled("The adapted model") from error
    return _Vote(place, class_axis, verdict)
