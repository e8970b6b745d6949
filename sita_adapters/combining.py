"""Combine the outputs of an image's rows into one answer, in the structure that the model returns.

The candidates are the rows whose outputs may become the answer. A single candidate's output is the answer. Several
candidates are mixed, vote, or are averaged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .diagnostics import CandidateMeasurement, Diagnostics, diagnose_candidates, measure_candidates
from .errors import OutputError
from .ops import Array, Ops
from .outputs import flatten, rebuild
from .voting import Scores, Vote, decide, entropy, from_logits, select_lowest, to_logits

if TYPE_CHECKING:
    from .engine import Call, ForwardContext

SOURCE_SHIFT = 0.05
"""d_0: at this shift, with equal confidence, the source's and the adapted output have equal weight in a mix."""


@dataclass(frozen=True)
class Candidates:
    """The candidate rows of an output, and what was measured for each."""

    output: Any  # as the model returned it; the answer has the same structure
    arrays: list[Array]  # (images, candidates, …) if the output has an entry per row; constants unchanged
    measured: list[CandidateMeasurement | None]


@dataclass(frozen=True)
class Answer:
    """The answer for every image: arrays, with the images first, to fill the structure of `output`."""

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
    """(B·R, …) → (B, P, …): keep the candidate rows of every array that has an entry for each row."""
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
        if axis is None:
            arrays.append(array)
            continue
        size = array.shape[axis] if axis < len(array.shape) else 0
        if not (ops.is_symbol(size) or ops.is_symbol(context.rows)) and size != context.rows:
            raise OutputError(
                f"Expected {context.rows} entries of {path} on axis {axis}, one per row, as in the probe; "
                f"received shape {tuple(array.shape)}. Try: adapt a module that returns one entry per image."
            )
        first = ops.xp.moveaxis(array, axis, 0) if axis else array
        rows = ops.xp.reshape(first, (-1, plan.rows, *ops.shape(first)[1:]))
        every = plan.candidates == tuple(range(plan.rows))
        arrays.append(rows if every else ops.xp.stack([rows[:, row] for row in plan.candidates], axis=1))
    return Candidates(output, arrays, measure_candidates(context))


def combine(parts: Sequence[Candidates], call: Call, *, diagnose: bool) -> Answer:
    """(B, P, …) → (B, …): combine the candidates of all parts of a Plan into the answer."""
    measured = [each for part in parts for each in part.measured]
    candidates = Candidates(
        parts[0].output, _join([part.arrays for part in parts], call.layout.axes, 1, call.ops), measured
    )
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
    diagnostics = diagnose_candidates(candidates, vote, arrays, call) if diagnose else None
    return Answer(candidates.output, arrays, call.layout.axes, diagnostics)


def concatenate(answers: Sequence[Answer], ops: Ops) -> Answer:
    """Return the answers of several rounds joined into one."""
    first = answers[0]
    return Answer(first.output, _join([each.arrays for each in answers], first.axes, 0, ops), first.axes)


def _join(parts: Sequence[list[Array]], axes: Sequence[int | None], along: int, ops: Ops) -> list[Array]:
    """Return the arrays of several outputs joined into one list; constants come from the first output."""
    if len(parts) == 1:
        return parts[0]
    pairs = zip(axes, zip(*parts, strict=True), strict=True)
    return [each[0] if axis is None else ops.concat(each, axis=along) for axis, each in pairs]


def _mix(candidates: Candidates, call: Call) -> list[Array]:
    """Return the arrays of the answer: a convex combination of the candidates', one weight per candidate and image.

    answer = Σ_p u_p · y_p / Σ_p u_p,    u_p = s_p² · c_p

    For an adapted candidate, s is D, the shift that it measured over all layers. For the source, s is √n · d_0 beside n
    adapted candidates, which therefore share the weight of one. c is the candidate's confidence, or 1 if the output is
    not class scores. An adapted output gets more weight if the image is far from the source's statistics, and if it is
    more confident than the source.
    """
    ops, scores = call.ops, call.layout.scores
    some = next(each.shifts for each in candidates.measured if each is not None)
    source_shift = SOURCE_SHIFT * math.sqrt(sum(each is not None for each in candidates.measured))
    shifts = [0 * some + source_shift if each is None else each.shifts for each in candidates.measured]
    confidences = None
    if scores is not None:
        confidences = confidence(ops.precise(candidates.arrays[scores.index]), scores.kind, scores.class_axis, ops.xp)
        confidences = ops.cast(confidences, some)
    weights = mix_weights(ops.xp.stack(shifts, axis=1), confidences, ops.xp)
    # If weights are NaN, `select_lowest` takes the first: an overflow must show in the answer.
    adapted_first = sorted(range(len(shifts)), key=lambda place: candidates.measured[place] is None)
    mixed = []
    for index, (array, axis) in enumerate(zip(candidates.arrays, call.layout.axes, strict=True)):
        if axis is None:
            mixed.append(array)
        elif call.layout.has_integers:  # they cannot be averaged: the candidate with the largest weight answers
            mixed.append(select_lowest(array, -weights, adapted_first, ops.xp))
        elif scores is not None and index == scores.index:
            mixed.append(mix_scores(array, weights, scores.kind, scores.class_axis, ops))
        else:
            mixed.append(mix_arrays(array, weights, ops))
    return mixed


def confidence(scores: Array, kind: Scores, class_axis: int, xp: Any) -> Array:
    """Return c = e^−H (B, P) of scores (B, P, …): 1 if one class is certain, 1/K if K classes are equally likely.

    H is the entropy, averaged over pixels or labels. e^H is the perplexity.
    """
    entropies = entropy(scores, kind, class_axis, xp)
    others = tuple(range(2, len(entropies.shape)))
    return xp.exp(-(xp.mean(entropies, axis=others) if others else entropies))


def mix_weights(shifts: Array, confidences: Array | None, xp: Any) -> Array:
    """Return the weights (B, P), which sum to 1 for every image, from s (B, P) and c (B, P)."""
    shares = shifts / xp.sum(shifts, axis=1, keepdims=True)  # the square of a huge shift would overflow
    u = shares * shares if confidences is None else shares * shares * confidences
    return u / xp.sum(u, axis=1, keepdims=True)


def mix_arrays(array: Array, weights: Array, ops: Ops) -> Array:
    """Return Σ_p w_p · y_p for candidates (B, P, …) and weights (B, P), in the dtype of the candidates."""
    y = ops.precise(array)
    column = ops.xp.reshape(ops.cast(weights, y), (-1, y.shape[1], *[1] * (len(y.shape) - 2)))
    return ops.cast(ops.xp.sum(y * column, axis=1), array)


def mix_scores(array: Array, weights: Array, kind: Scores, class_axis: int, ops: Ops) -> Array:
    """Return mixed scores of the same kind. Probabilities are mixed as logarithms or log-odds.

    Models with and without a final softmax then agree.
    """
    mixed = mix_arrays(to_logits(ops.precise(array), kind, ops.xp), weights, ops)
    return ops.cast(from_logits(mixed, kind, class_axis, ops.xp), array)


def _vote(candidates: Candidates, call: Call) -> Vote | None:
    """Return the vote; None if there are no class scores and the answer does not need them (one candidate, a mix)."""
    recipe, plan = call.adaptation.recipe, call.plan
    if call.layout.scores is None and (recipe.combine == "mix" or len(plan.candidates) == 1):
        return None
    found = call.layout.require_scores()
    scores = candidates.arrays[found.index]
    if len(scores.shape) > 3 and any(map(plan.moves_pixels, plan.candidates)):
        raise OutputError(
            "The model labels every pixel, and views that move pixels cannot be averaged pixel by pixel. Try: "
            "task='segmentation', or views that do not move pixels: augment='blur'."
        )
    return decide(
        call.ops.precise(scores),
        top_k=min(recipe.effective_top_k, len(plan.candidates)),
        combine="vote" if recipe.combine == "mix" else recipe.combine,  # a mix does not vote; for diagnostics only
        kind=found.kind,
        class_axis=found.class_axis,
        ops=call.ops,
    )


def _take_vote(candidates: Candidates, vote: Vote, call: Call) -> list[Array]:
    """Return the arrays of the answer: the voted scores, and the other outputs of the most confident candidate.

    Views that move pixels cannot supply the other outputs: their feature maps would be rotated or flipped.
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
            arrays.append(array if axis is None else select_lowest(array, entropies, eligible, xp))
    return arrays
