"""From the outputs of an image's rows to its answer, in the structure that the model returns.

The rows that may answer are the candidates. One candidate answers as it is; several are mixed, or vote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .diagnostics import Diagnostics, Measured, diagnose_candidates, measure_candidates, observers_of
from .errors import OutputError
from .mixing import confidence, larger_row, mix_arrays, mix_scores, mix_weights
from .ops import Array, Ops
from .outputs import flatten, rebuild
from .plan import Plan
from .voting import Vote, decide, lowest_entropy

if TYPE_CHECKING:
    from .engine import Call, ForwardContext


@dataclass(frozen=True)
class Candidates:
    """The candidate rows of an output.

    `arrays` are (images, candidates, …) where the output has an entry per row; constants are as they came. `output` is
    the model's own, whose structure the answer takes.
    """

    output: Any
    arrays: list[Array]
    measured: list[Measured | None]


@dataclass(frozen=True)
class Answer:
    """One output for every image: the arrays, images first, for the structure of `output`."""

    output: Any
    arrays: list[Array]
    axes: tuple[int | None, ...]
    diagnostics: Diagnostics | None = None

    def rebuild(self, ops: Ops) -> Any:
        """Return the answer in the model's structure."""
        pairs = zip(self.arrays, self.axes, strict=True)
        arrays = [ops.xp.moveaxis(array, 0, axis) if axis else array for array, axis in pairs]
        return rebuild(self.output, arrays, ops.is_array)


def keep_candidates(output: Any, context: ForwardContext) -> Candidates:
    """Keep the candidate rows of every array that has an entry for each row."""
    ops, plan, layout = context.ops, context.plan, context.layout
    assert layout is not None
    found = flatten(output, ops.is_array)
    if tuple(path for path, _ in found) != layout.paths:
        raise OutputError(
            f"The output has {', '.join(path for path, _ in found)}; it had {', '.join(layout.paths)} in the probe. "
            "Expected the same for inputs of the same kind. Try: adapt a second model for these inputs, "
            "sita.adapt(model, example=…)."
        )
    arrays = []
    for (path, array), axis in zip(found, layout.axes, strict=True):
        if axis is not None and not _has_rows(array, axis, context):
            raise OutputError(
                f"Expected {context.rows} entries of {path} on axis {axis}, one per row, as in the probe; "
                f"received shape {tuple(array.shape)}. Try: adapt a module that returns one entry per image."
            )
        arrays.append(array if axis is None else _candidate_rows(array, axis, plan, ops))
    return Candidates(output, arrays, measure_candidates(context.measurements, plan, ops))


def _has_rows(array: Array, axis: int, context: ForwardContext) -> bool:
    if len(array.shape) <= axis:
        return False
    size = array.shape[axis]
    return context.ops.is_symbol(size) or context.ops.is_symbol(context.rows) or bool(size == context.rows)


def _candidate_rows(array: Array, axis: int, plan: Plan, ops: Ops) -> Array:
    """Return (B, P, …) of an array with B·R entries on an axis."""
    if axis:
        array = ops.xp.moveaxis(array, axis, 0)
    by_row = ops.xp.reshape(array, (-1, plan.rows, *ops.shape(array)[1:]))
    if plan.candidates == tuple(range(plan.rows)):
        return by_row
    return ops.xp.stack([by_row[:, row] for row in plan.candidates], axis=1)


def combine(parts: Sequence[Candidates], call: Call, *, diagnose: bool) -> Answer:
    """Return the answer of the candidates of all parts of a Plan."""
    candidates = parts[0] if len(parts) == 1 else _join(parts, call)
    several, how = len(call.plan.candidates) > 1, call.adaptation.recipe.combine
    vote = _vote(candidates, call) if (several and how != "mix") or diagnose else None
    if not several:
        pairs = zip(candidates.arrays, call.layout.axes, strict=True)
        arrays = [array if axis is None else array[:, 0] for array, axis in pairs]
    elif how == "mix":
        arrays = _mix(candidates, call)
    else:
        assert vote is not None
        arrays = _take_vote(candidates, vote, call)
    diagnostics = None
    if diagnose:
        diagnostics = diagnose_candidates(candidates, vote, arrays, call)
        for observer in observers_of(call.adaptation):
            observer.append(diagnostics, call.ops)
    return Answer(candidates.output, arrays, call.layout.axes, diagnostics)


def _join(parts: Sequence[Candidates], call: Call) -> Candidates:
    """Return the candidates of several parts of a Plan side by side."""
    arrays = [
        each[0] if axis is None else call.ops.concat(each, axis=1)
        for axis, *each in zip(call.layout.axes, *(part.arrays for part in parts), strict=True)
    ]
    return Candidates(parts[0].output, arrays, [each for part in parts for each in part.measured])


def concatenate(answers: Sequence[Answer], ops: Ops) -> Answer:
    """Return the answers of several rounds as those of one call."""
    first = answers[0]
    arrays = [
        each[0] if axis is None else ops.concat(each, axis=0)
        for axis, *each in zip(first.axes, *(answer.arrays for answer in answers), strict=True)
    ]
    return Answer(first.output, arrays, first.axes)


def _mix(candidates: Candidates, call: Call) -> list[Array]:
    """Return the arrays of the answer: a convex combination of the source's and the adapted candidate's."""
    ops, scores, source = call.ops, call.layout.scores, call.plan.source
    assert source is not None
    measured = candidates.measured[1 - source]
    assert measured is not None
    confidences = None
    if scores is not None:
        confidences = confidence(ops.precise(candidates.arrays[scores.index]), scores.kind, scores.class_axis, ops.xp)
        confidences = ops.cast(confidences, measured.shifts)
    pair = mix_weights(measured.shifts, confidences, source)
    weights = pair if source == 0 else pair[::-1]
    mixed = []
    for index, (array, axis) in enumerate(zip(candidates.arrays, call.layout.axes, strict=True)):
        if axis is None:
            mixed.append(array)
            continue
        rows = [array[:, 0], array[:, 1]]
        if call.layout.has_integers:
            mixed.append(larger_row(rows, weights, ops.xp))
        elif scores is not None and index == scores.index:
            mixed.append(mix_scores(rows, weights, scores.kind, scores.class_axis, ops))
        else:
            mixed.append(mix_arrays(rows, weights, ops))
    return mixed


def _vote(candidates: Candidates, call: Call) -> Vote | None:
    """Return the vote of the candidates; None if one candidate, or a mix, has no class scores to report on."""
    recipe, plan = call.adaptation.recipe, call.plan
    if call.layout.scores is None and (recipe.combine == "mix" or len(plan.candidates) == 1):
        return None
    found = call.layout.require_scores()
    scores = candidates.arrays[found.index]
    if len(scores.shape) > 3 and any(map(plan.moves_pixels, plan.candidates)):
        raise OutputError(
            "The model answers for every pixel, and views that move pixels cannot be averaged pixel by pixel. Try: "
            "task='segmentation', or an ensemble of views that keep them: augment='blur'."
        )
    return decide(
        call.ops.precise(scores),
        top_k=min(recipe.effective_top_k, len(plan.candidates)),
        combine="vote" if recipe.combine == "mix" else recipe.combine,
        kind=found.kind,
        class_axis=found.class_axis,
        ops=call.ops,
    )


def _take_vote(candidates: Candidates, vote: Vote, call: Call) -> list[Array]:
    """Return the arrays of the answer: the voted scores; all else comes from the most confident candidate.

    Views that move pixels are excluded, since their feature maps would be rotated or flipped.
    """
    xp, plan, scores = call.ops.xp, call.plan, call.layout.require_scores()
    pixels = tuple(range(2, len(vote.entropies.shape)))
    entropies = xp.mean(vote.entropies, axis=pixels) if pixels else vote.entropies
    eligible = [index for index, row in enumerate(plan.candidates) if not plan.moves_pixels(row)]
    arrays = []
    for index, (array, axis) in enumerate(zip(candidates.arrays, call.layout.axes, strict=True)):
        if index == scores.index:
            arrays.append(call.ops.cast(vote.scores, array))
        else:
            arrays.append(array if axis is None else lowest_entropy(array, entropies, eligible, xp))
    return arrays
