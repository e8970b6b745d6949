"""From the outputs of an image's rows to its answer, in the structure that the model returns.

The rows that may answer are the candidates. One candidate answers as it is; several are mixed, or vote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .diagnostics import Diagnostics, Measured, measure_candidates, observers_of
from .errors import OutputError
from .mixing import confidence, larger_row, mix_arrays, mix_scores, mix_weights
from .ops import Array, Ops
from .outputs import OutputLayout, flatten, rebuild
from .plan import Plan
from .voting import Vote, decide

if TYPE_CHECKING:
    from .engine import Adaptation, ForwardContext


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
    """One output for every image: the arrays, images first, for the structure of `output`; None: `output` as it is."""

    output: Any
    arrays: list[Array] | None
    axes: tuple[int | None, ...]
    diagnostics: Diagnostics | None = None

    def rebuild(self, ops: Ops) -> Any:
        """Return the answer in the model's structure."""
        if self.arrays is None:
            return self.output
        pairs = zip(self.arrays, self.axes, strict=True)
        return rebuild(
            self.output, [ops.xp.moveaxis(array, 0, axis) if axis else array for array, axis in pairs], ops.is_array
        )


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
    kept: dict[int, Array] = {}  # an array that occurs twice stays one array
    for (path, array), axis in zip(found, layout.axes, strict=True):
        if axis is not None and not _has_rows(array, axis, context):
            raise OutputError(
                f"Expected {context.rows} entries of {path} on axis {axis}, one per row, as in the probe; "
                f"received shape {tuple(array.shape)}. Try: adapt a module that returns one entry per image."
            )
        if id(array) not in kept:
            kept[id(array)] = array if axis is None else _candidate_rows(array, axis, plan, ops)
    return Candidates(
        output, [kept[id(array)] for _, array in found], measure_candidates(context.measurements, plan, ops)
    )


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
    if len(plan.candidates) == plan.rows:
        return by_row
    return ops.xp.stack([by_row[:, row] for row in plan.candidates], axis=1)


def combine(
    parts: Sequence[Candidates], plan: Plan, adaptation: Adaptation, layout: OutputLayout, ops: Ops, *, diagnose: bool
) -> Answer:
    """Return the answer of the candidates of all parts of a Plan."""
    candidates = parts[0] if len(parts) == 1 else _join(parts, layout, ops)
    several, how = len(plan.candidates) > 1, adaptation.recipe.combine
    vote = _vote(candidates, plan, adaptation, layout, ops) if (several and how != "mix") or diagnose else None
    if not several:
        pairs = zip(candidates.arrays, layout.axes, strict=True)
        arrays = [array if axis is None else array[:, 0] for array, axis in pairs]
    elif how == "mix":
        arrays = _mix(candidates, plan, layout, ops)
    else:
        assert vote is not None
        arrays = _take_vote(candidates, vote, plan, layout, ops)
    diagnostics = None
    if diagnose:
        diagnostics = _diagnose(candidates, vote, arrays, plan, layout, ops)
        for observer in observers_of(adaptation):
            observer.append(diagnostics, ops)
    return Answer(candidates.output, None if plan.rows == 1 else arrays, layout.axes, diagnostics)


def _join(parts: Sequence[Candidates], layout: OutputLayout, ops: Ops) -> Candidates:
    """Return the candidates of several parts of a Plan side by side."""
    joined: dict[int, Array] = {}  # an array that occurs twice stays one array
    for *each, axis in zip(*(part.arrays for part in parts), layout.axes, strict=True):
        if id(each[0]) not in joined:
            joined[id(each[0])] = each[0] if axis is None else ops.concat(each, axis=1)
    arrays = [joined[id(array)] for array in parts[0].arrays]
    return Candidates(parts[0].output, arrays, [each for part in parts for each in part.measured])


def concatenate(answers: Sequence[Answer], ops: Ops) -> Answer:
    """Return the answers of several rounds as those of one call."""
    first = answers[0]
    found = [images_first(answer, ops) for answer in answers]
    joined = [
        each[0] if axis is None else ops.concat(each, axis=0) for axis, *each in zip(first.axes, *found, strict=True)
    ]
    return Answer(first.output, joined, first.axes)


def images_first(answer: Answer, ops: Ops) -> list[Array]:
    """Return the arrays of an answer, images first; constants as they are."""
    if answer.arrays is not None:
        return answer.arrays
    pairs = zip(flatten(answer.output, ops.is_array), answer.axes, strict=True)
    return [ops.xp.moveaxis(array, axis, 0) if axis else array for (_, array), axis in pairs]


def _mix(candidates: Candidates, plan: Plan, layout: OutputLayout, ops: Ops) -> list[Array]:
    """Return the arrays of the answer: a convex combination of the source's and the adapted candidate's."""
    source, scores = plan.source, layout.scores
    assert source is not None
    measured = candidates.measured[1 - source]
    assert measured is not None
    confidences = None
    if scores is not None:
        confidences = confidence(ops.precise(candidates.arrays[scores.place]), scores.kind, scores.class_axis, ops.xp)
        confidences = ops.cast(confidences, measured.shifts)
    pair = mix_weights(measured.shifts, confidences, source)
    weights = pair if source == 0 else pair[::-1]
    mixed: dict[int, Array] = {}
    for array, axis in zip(candidates.arrays, layout.axes, strict=True):
        if axis is None or id(array) in mixed:
            continue
        rows = [array[:, 0], array[:, 1]]
        if layout.selects:
            mixed[id(array)] = larger_row(rows, weights, ops.xp)
        elif scores is not None and array is candidates.arrays[scores.place]:
            mixed[id(array)] = mix_scores(rows, weights, scores.kind, scores.class_axis, ops)
        else:
            mixed[id(array)] = mix_arrays(rows, weights, ops)
    return [mixed.get(id(array), array) for array in candidates.arrays]


def _vote(candidates: Candidates, plan: Plan, adaptation: Adaptation, layout: OutputLayout, ops: Ops) -> Vote | None:
    """Return the vote of the candidates; None if one candidate, or a mix, has no class scores to report on."""
    recipe = adaptation.recipe
    if layout.scores is None and (recipe.combine == "mix" or len(plan.candidates) == 1):
        return None
    found = layout.require_scores()
    scores = candidates.arrays[found.place]
    if len(scores.shape) > 3 and any(map(plan.moves_pixels, plan.candidates)):
        raise OutputError(
            "The model answers for every pixel, and views that move pixels cannot be averaged pixel by pixel. Try: "
            "task='segmentation', or an ensemble of views that keep them: augment='blur'."
        )
    return decide(
        ops.precise(scores),
        top_k=min(recipe.effective_top_k, len(plan.candidates)),
        combine="vote" if recipe.combine == "mix" else recipe.combine,
        kind=found.kind,
        class_axis=found.class_axis,
        ops=ops,
    )


def _take_vote(candidates: Candidates, vote: Vote, plan: Plan, layout: OutputLayout, ops: Ops) -> list[Array]:
    """Return the arrays of the answer: the voted scores; all else comes from the most confident candidate.

    A view that moves pixels supplies nothing else: its feature map would be turned.
    """
    scores = candidates.arrays[layout.require_scores().place]
    in_place = [place for place, row in enumerate(plan.candidates) if not plan.moves_pixels(row)]
    arrays = []
    for array, axis in zip(candidates.arrays, layout.axes, strict=True):
        if array is scores:
            arrays.append(ops.cast(vote.scores, array))
        else:
            arrays.append(array if axis is None else _most_confident(array, vote.entropies, in_place, ops.xp))
    return arrays


def _most_confident(array: Array, entropies: Array, candidates: list[int], xp: Any) -> Array:
    """Return, of an array (B, P, …), the candidate with the lowest mean entropy.

    Each is compared with the best so far: not every exporter supports argmin.
    """
    positions = tuple(range(2, len(entropies.shape)))
    means = xp.mean(entropies, axis=positions) if positions else entropies
    column = (-1, *[1] * (len(array.shape) - 2))
    first, *others = candidates
    chosen, lowest = array[:, first], means[:, first]
    for candidate in others:
        better = means[:, candidate] < lowest
        chosen = xp.where(xp.reshape(better, column), array[:, candidate], chosen)
        lowest = xp.where(better, means[:, candidate], lowest)
    return chosen


def _diagnose(  # noqa: PLR0917
    candidates: Candidates, vote: Vote | None, arrays: list[Array], plan: Plan, layout: OutputLayout, ops: Ops
) -> Diagnostics:
    some = next(array for array, axis in zip(arrays, layout.axes, strict=True) if axis is not None)
    zeros = ops.precise(ops.xp.zeros_like(ops.xp.reshape(some, (ops.shape(some)[0], -1))[:, 0]))
    if vote is None or layout.scores is None:
        return Diagnostics(plan.candidate_priors, candidates.measured, zeros)
    scores, place = layout.scores, layout.scores.place
    return Diagnostics(
        plan.candidate_priors, candidates.measured, zeros, vote, candidates.arrays[place], scores, arrays[place]
    )
