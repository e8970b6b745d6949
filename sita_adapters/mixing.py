"""combine="mix": a convex combination of the candidates' outputs, with one weight per candidate and image.

    answer = Σ_p u_p · y_p / Σ_p u_p,    u_p = (s_p · c_p)²

s is d_0 for the source model, and for the adapted candidate D, the shift that it measured over all layers. c is a
candidate's confidence: its largest class probability, or 1 where the output isn't class scores. So the adapted output
counts for more the further the image is from the source's statistics, and the more confident it is.
"""

from __future__ import annotations

from typing import Any

from .ops import Array, Ops
from .voting import Scores, from_logits, to_logits

SOURCE_SHIFT = 0.05
"""d_0: at this shift, with equal confidence, the source's and the adapted output count the same."""


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


def mix_weights(shifts: Array, confidences: Array | None, xp: Any) -> Array:
    """Return the weights (B, P), which sum to 1 for every image, from s (B, P) and c (B, P)."""
    u = shifts if confidences is None else shifts * confidences
    u = u * u
    return u / xp.sum(u, axis=1, keepdims=True)


def mix_arrays(array: Array, weights: Array, ops: Ops) -> Array:
    """Return Σ_p w_p · y_p for candidates (B, P, …) and weights (B, P), in the dtype of the candidates."""
    y = ops.precise(array)
    column = ops.xp.reshape(ops.cast(weights, y), (-1, y.shape[1], *[1] * (len(y.shape) - 2)))
    return ops.cast(ops.xp.sum(y * column, axis=1), array)


def mix_scores(array: Array, weights: Array, kind: Scores, class_axis: int, ops: Ops) -> Array:
    """Return mixed scores of the same kind: of probabilities, the logarithms or log-odds are mixed.

    A model with a final softmax and one without then agree.
    """
    mixed = mix_arrays(to_logits(ops.precise(array), kind, ops.xp), weights, ops)
    return ops.cast(from_logits(mixed, kind, class_axis, ops.xp), array)
