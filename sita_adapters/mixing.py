"""combine="mix": a convex combination of the source row's output and the adapted row's, with one weight per image.

    answer = (u_s · y_s + u_a · y_a) / (u_s + u_a),    u_s = (d_0 · c_s)²,    u_a = (D · c_a)²

D is the shift that the adapted row measured, over all layers. c is a row's confidence: its largest class probability,
or 1 where the output isn't class scores. So the adapted row counts for more the further the image is from the source's
statistics, and the more confident it is compared with the source.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .ops import Array, Ops
from .voting import Scores, from_logits, to_logits

SOURCE_SHIFT = 0.05
"""d_0: at this shift, with equal confidence, both rows count the same."""


def largest_probability(scores: Array, kind: Scores, class_axis: int, xp: Any) -> Array:
    """Return the largest class probability of scores, without their class axis; of sigmoids, max(p, 1 − p) of each."""
    if kind in ("sigmoid", "sigmoid_probabilities"):
        p = 1 / (1 + xp.exp(-scores)) if kind == "sigmoid" else scores
        return xp.where(p > 0.5, p, 1 - p)
    if kind == "probabilities":
        return xp.max(scores, axis=class_axis)
    top = xp.max(scores, axis=class_axis, keepdims=True)
    return 1 / xp.sum(xp.exp(scores - top), axis=class_axis)


def confidence(scores: Array, kind: Scores, class_axis: int, xp: Any) -> Array:
    """Return c (B, P) of scores (B, P, …): the largest class probability, averaged over pixels or labels."""
    largest = largest_probability(scores, kind, class_axis, xp)
    others = tuple(range(2, len(largest.shape)))
    return xp.mean(largest, axis=others) if others else largest


def mix_weights(shift: Array, confidences: Array | None, source: int) -> tuple[Array, Array]:
    """Return the weights (B,) of the source row and of the adapted row, which sum to 1, from D (B,) and c (B, 2)."""
    u_source, u_adapted = SOURCE_SHIFT + 0 * shift, shift
    if confidences is not None:
        u_source, u_adapted = u_source * confidences[:, source], u_adapted * confidences[:, 1 - source]
    u_source, u_adapted = u_source * u_source, u_adapted * u_adapted
    total = u_source + u_adapted
    return u_source / total, u_adapted / total


def mix_arrays(rows: Sequence[Array], weights: Sequence[Array], ops: Ops) -> Array:
    """Return Σ w_p · y_p for rows (B, …) and weights (B,), in the dtype of the rows."""
    mixed = 0.0
    for row, weight in zip(rows, weights, strict=True):
        column = ops.xp.reshape(weight, (-1, *[1] * (len(row.shape) - 1)))
        mixed = mixed + ops.precise(row) * ops.cast(column, ops.precise(row))
    return ops.cast(mixed, rows[0])


def mix_scores(rows: Sequence[Array], weights: Sequence[Array], kind: Scores, class_axis: int, ops: Ops) -> Array:
    """Return mixed scores of the same kind: of probabilities, the logarithms or log-odds are mixed.

    A model with a final softmax and one without then agree.
    """
    mixed = mix_arrays([to_logits(ops.precise(row), kind, ops.xp) for row in rows], weights, ops)
    return ops.cast(from_logits(mixed, kind, class_axis, ops.xp), rows[0])


def larger_row(rows: Sequence[Array], weights: Sequence[Array], xp: Any) -> Array:
    """Return, for each image, the row with the larger weight: integers and labels have no mean."""
    first, second = rows
    chosen = xp.reshape(weights[0] >= weights[1], (-1, *[1] * (len(first.shape) - 1)))
    return xp.where(chosen, first, second)
