"""Combine the outputs of an image's rows into one answer.

The candidates are the rows whose outputs may become the answer. A single candidate's output is the answer. Several
candidates are mixed, vote, or are averaged. Only class scores are ever averaged: every other output comes from one row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .errors import SECOND_MODEL, OutputError
from .ops import Array, Ops
from .outputs import flatten
from .shift import area_weight
from .state import Call, ForwardContext
from .voting import Scores, Vote, decide, entropy, from_logits, select_lowest, to_logits, unmask

SELECTION_SHIFT = 0.14
"""d_1: without class scores, an adapted row supplies the outputs of images that are further away (docs/outputs.md)."""

SHIFT_ROUNDING = 1e-6
"""About the rounding error of a shift, which may come out as 0 or below."""


@dataclass(frozen=True)
class CandidateMeasurement:
    """What the L layer calls measured for one candidate of B images."""

    layers: tuple[str, ...]
    shifts: Array  # D (B,)
    layer_shifts: Array  # (B, L)
    layer_priors: Array | None  # (B, L), if a rule sets λ


@dataclass(frozen=True)
class Candidates:
    """The candidate rows of an output, and what was measured for each."""

    output: Any  # as the model returned it; the answer has the same structure
    arrays: list[Array]  # (images, candidates, …) if the output has an entry per row; constants unchanged
    measured: list[CandidateMeasurement | None]  # None for λ = 1, which is not measured


@dataclass(frozen=True)
class Combined:
    """The arrays of the answer, and how they came about."""

    arrays: list[Array]  # the images first
    weights: Array | None = None  # (B, P), of each candidate in a mix: 1 for a row that supplies all outputs
    vote: Vote | None = None


def keep_candidates(output: Any, context: ForwardContext) -> Candidates:
    """(B·R, …) → (B, P, …): keep the candidate rows of every array that has an entry for each row."""
    ops, plan = context.ops, context.plan
    assert context.probe is not None
    layout, measured = context.probe.layout, _measured_candidates(context)
    found = flatten(output, ops.is_array)
    if tuple([path for path, _ in found]) != layout.paths:
        raise OutputError(
            f"The output has {', '.join(path for path, _ in found)}; it had {', '.join(layout.paths)} in the probe. "
            f"Expected the same for inputs of the same kind. Try: {SECOND_MODEL}."
        )
    arrays = []
    for (path, array), axis, shape, is_float in zip(found, layout.axes, layout.shapes, layout.floats, strict=True):
        if len(array.shape) != len(shape) or ("float" in str(array.dtype)) != is_float:
            raise OutputError(
                f"Expected {path} of rank {len(shape)} in {'floating point' if is_float else 'integers'}, as in the "
                f"probe; received shape {tuple(array.shape)} in {array.dtype}. Try: {SECOND_MODEL}."
            )
        if axis is None:
            if any(size == context.rows != before for size, before in zip(array.shape, shape, strict=True)):
                raise OutputError(
                    f"{path} was a constant in the probe, and has {context.rows} entries now, one per row. Try: "
                    f"compute it in the forward pass, not in a hook; if the size of the images matters, {SECOND_MODEL}."
                )
            arrays.append(array)
            continue
        size = array.shape[axis]
        if size != context.rows and not (ops.is_symbol(size) or ops.is_symbol(context.rows)):
            raise OutputError(
                f"Expected {context.rows} entries of {path} on axis {axis}, one per row, as in the probe; "
                f"received shape {tuple(array.shape)}. Try: adapt a module that returns one entry per image."
            )
        first = ops.moveaxis(array, axis, 0) if axis else array
        images = size // plan.rows if type(size) is int else -1  # no −1 if another axis may be empty
        rows = ops.reshape(first, (images, plan.rows, *ops.shape(first)[1:]))
        every = plan.candidates == tuple(range(plan.rows))
        arrays.append(rows if every else ops.stack([rows[:, row] for row in plan.candidates], axis=1))
    return Candidates(output, arrays, measured)


def _measured_candidates(context: ForwardContext) -> list[CandidateMeasurement | None]:
    """Return what a forward pass measured for each candidate; None for a candidate with λ = 1, which is not measured.

    D = Σ_l a_l · d_l / Σ_l a_l,   with a_l from `area_weight`; D is 0 if every layer has a single position
    """
    measurements, plan, ops = context.measurements, context.plan, context.ops
    if not measurements:
        return [None] * len(plan.candidates)
    names = tuple([each.name for each in measurements])
    divergences = ops.concat([each.divergence for each in measurements], axis=-1)  # E (B, R, L)
    shifts = 0.5 * divergences - 0.5
    areas = [area_weight(each.positions, measurements[0].positions) for each in measurements]
    known = set(map(type, areas)) == {float}
    weights = ops.constant(areas, shifts) if known else ops.cast(ops.stack(areas), shifts)
    total = ops.sum(shifts * weights, axis=-1) / ((math.fsum(areas) if known else ops.sum(weights)) + 1e-30)
    priors = None if not plan.has_rule else ops.concat([each.priors for each in measurements], axis=-1)
    found: list[CandidateMeasurement | None] = []
    for row in (candidate - plan.first_blended for candidate in plan.candidates):
        layer_priors = None if priors is None else priors[:, row]
        found.append(None if row < 0 else CandidateMeasurement(names, total[:, row], shifts[:, row], layer_priors))
    return found


def join_parts(parts: Sequence[Candidates], call: Call) -> Candidates:
    """Return the candidates of several parts of a Plan."""
    arrays = join_arrays([part.arrays for part in parts], call.probe.layout.axes, 1, call.image_layout.ops)
    return Candidates(parts[0].output, arrays, [each for part in parts for each in part.measured])


def join_arrays(parts: Sequence[list[Array]], axes: Sequence[int | None], along: int, ops: Ops) -> list[Array]:
    """Return the arrays of several outputs joined into one list; constants come from the first output."""
    joined = []
    for axis, each in zip(axes, zip(*parts, strict=True), strict=True):
        shapes = {(*array.shape[:along], *array.shape[along + 1 :]) for array in each}
        if axis is not None and len(shapes) > 1 and all(type(size) is int for shape in shapes for size in shape):
            raise OutputError(
                "Expected outputs of the same size from all runs of a call with many images; received sizes "
                f"{', '.join(map(str, sorted(shapes)[:4]))}, as if the model padded to the largest in a run. Try: a "
                "larger max_rows, which makes a call one run; or adapt the module before the padding."
            )
        joined.append(each[0] if axis is None else ops.concat(each, axis=along))
    return joined


def combine(candidates: Candidates, call: Call) -> Combined:
    """(B, P, …) → (B, …): combine the candidates into the answer."""
    if len(call.plan.candidates) == 1:
        pairs = zip(candidates.arrays, call.probe.layout.axes, strict=True)
        return Combined([array if axis is None else array[:, 0] for array, axis in pairs])
    return _mix(candidates, call) if call.adaptation.recipe.combine == "mix" else _vote(candidates, call)


def _mix(candidates: Candidates, call: Call) -> Combined:
    """Return a convex combination of the candidates' class scores; or all outputs of the candidate with most weight.

    answer = Σ_p u_p · y_p / Σ_p u_p,    u_s = c_s for the source,    u_p = ρ · r_p · c_p for adapted candidates

    c is the confidence of a candidate, ρ the recipe's `adapted_weight`, and r_p the share of an adapted candidate: the
    closer its view of the image is to the source's statistics, the larger.

    Without class scores, an adapted candidate supplies all outputs if their mean shift exceeds d_1.
    """
    ops, scores, mixed = call.image_layout.ops, call.probe.layout.scores, call.probe.layout.mixed
    if scores is None:
        weights = _selection_weights(candidates.measured, ops)
    else:
        confidences = confidence(ops.precise(candidates.arrays[scores.index]), scores.kind, scores.class_axis, ops)
        weights = mix_weights(candidates.measured, confidences, call.adaptation.recipe.adapted_weight, ops)
    if mixed and scores is not None:
        if call.plan.has_views:
            _check_pixels(candidates.arrays[scores.index], call)
        kinds = zip(candidates.arrays, mixed, strict=True)
        arrays = [a if kind is None else mix_scores(a, weights, kind, scores.class_axis, ops) for a, kind in kinds]
        return Combined(arrays, weights)
    # If weights are NaN, `select_lowest` takes the first: an overflow must show in the answer.
    order = sorted(_unmoved(call), key=lambda place: candidates.measured[place] is None)
    axes = zip(candidates.arrays, call.probe.layout.axes, strict=True)
    chosen = [a if axis is None else select_lowest(a, -weights, order, ops) for a, axis in axes]
    candidate = range(len(call.plan.candidates))
    every = ops.constant([[float(p == q) for q in candidate] for p in candidate], weights)
    return Combined(chosen, select_lowest(0 * weights[:, :, None] + every, -weights, order, ops))


def mix_weights(
    measured: Sequence[CandidateMeasurement | None], confidences: Array, adapted_weight: float, ops: Ops
) -> Array:
    """Return the weights (B, P), which sum to 1 for every image, from c (B, P) and the shifts of adapted candidates.

    u_s = c_s,    u_p = ρ · r_p · c_p,    r_p = D_p^−4 / Σ_q D_q^−4
    """
    adapted = [each.shifts for each in measured if each is not None]
    shares = iter(_shares(ops.cast(ops.stack(adapted, axis=1), confidences), ops) if len(adapted) > 1 else [1.0])
    u = [
        confidences[:, p] * (1.0 if each is None else adapted_weight * next(shares)) for p, each in enumerate(measured)
    ]
    weights = ops.stack(u, axis=1)
    return weights / ops.sum(weights, axis=1, keepdims=True)


def _shares(shifts: Array, ops: Ops) -> list[Array]:
    """Return r (B,) of each adapted candidate from their shifts D (B, P)."""
    closeness = 1 / (shifts + SHIFT_ROUNDING)
    closeness = closeness / ops.sum(closeness, axis=1, keepdims=True)  # the power of a small shift would overflow
    raised = (closeness * closeness) ** 2
    shares = raised / ops.sum(raised, axis=1, keepdims=True)
    return [shares[:, place] for place in range(shifts.shape[1])]


def _selection_weights(measured: Sequence[CandidateMeasurement | None], ops: Ops) -> Array:
    """Return weights (B, P) of which the largest selects: d_1 of the source, and the mean shift of the best adapted."""
    adapted = [each.shifts for each in measured if each is not None]
    shifts = ops.stack(adapted, axis=1)
    mean, lowest = ops.mean(shifts, axis=1), ops.min(shifts, axis=1) + SHIFT_ROUNDING
    keys = [
        0 * mean + SELECTION_SHIFT if one is None else mean * (lowest / (one.shifts + SHIFT_ROUNDING))
        for one in measured
    ]
    return ops.stack(keys, axis=1)


def confidence(scores: Array, kind: Scores, class_axis: int, ops: Ops) -> Array:
    """Return c = e^−H (B, P) of scores (B, P, …): 1 if one class is certain, 1/K if K classes are equally likely.

    H is the entropy, averaged over pixels or labels. e^H is the perplexity.
    """
    entropies = entropy(scores, kind, class_axis, ops)
    others = tuple(range(2, len(entropies.shape)))
    return ops.exp(-(ops.mean(entropies, axis=others) if others else entropies))


def mix_scores(array: Array, weights: Array, kind: Scores, class_axis: int, ops: Ops) -> Array:
    """Return Σ_p w_p · y_p for candidates (B, P, …) of a kind and weights (B, P), in the dtype of the candidates.

    Probabilities are mixed as logarithms or log-odds: models with and without a final softmax then agree.
    """
    y = to_logits(ops.precise(array), kind, ops)
    if kind in ("logits", "log_probabilities"):
        y = unmask(y, class_axis, ops)
    column = ops.reshape(ops.cast(weights, y), (-1, y.shape[1], *[1] * (len(y.shape) - 2)))
    weighted = ops.where(column == 0, 0.0, y * column)  # a logit may be −∞
    return ops.cast(from_logits(ops.sum(weighted, axis=1), kind, class_axis, ops), array)


def _vote(candidates: Candidates, call: Call) -> Combined:
    """Return the voted scores, and the other outputs of the most confident candidate.

    Views that move pixels cannot supply the other outputs: their feature maps would be rotated or flipped.
    """
    ops, scores, vote = call.image_layout.ops, call.probe.layout.require_scores(), find_vote(candidates, call)
    pixels = tuple(range(2, len(vote.entropies.shape)))
    entropies = ops.mean(vote.entropies, axis=pixels) if pixels else vote.entropies
    eligible = _unmoved(call)
    arrays = []
    for index, (array, axis) in enumerate(zip(candidates.arrays, call.probe.layout.axes, strict=True)):
        if index == scores.index:
            arrays.append(ops.cast(vote.scores, array))
        else:
            arrays.append(array if axis is None else select_lowest(array, entropies, eligible, ops))
    return Combined(arrays, vote=vote)


def find_vote(candidates: Candidates, call: Call) -> Vote:
    """Return the vote of the candidates, or, of a mix, which does not vote, what they would decide."""
    recipe, plan, found = call.adaptation.recipe, call.plan, call.probe.layout.require_scores()
    scores = candidates.arrays[found.index]
    _check_pixels(scores, call)
    return decide(
        call.image_layout.ops.precise(scores),
        top_k=min(recipe.effective_top_k, len(plan.candidates)),
        combine="vote" if recipe.combine == "mix" else recipe.combine,
        kind=found.kind,
        class_axis=found.class_axis,
        ops=call.image_layout.ops,
    )


def _unmoved(call: Call) -> list[int]:
    """Return the positions of the candidates that keep all pixels in place."""
    return [place for place, row in enumerate(call.plan.candidates) if not call.plan.moves_pixels(row)]


def _check_pixels(scores: Array, call: Call) -> None:
    """Raise if the model labels every pixel, and candidates move them."""
    if len(scores.shape) > 3 and len(_unmoved(call)) < len(call.plan.candidates):
        raise OutputError(
            "The model labels every pixel, and views that move pixels cannot be averaged pixel by pixel. Try: "
            "task='segmentation', or views that do not move pixels: augment='blur'."
        )
