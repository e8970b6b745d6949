"""The candidates' vote (OPS): entropy, keep the most certain, majority.

Written with comparisons and sums alone, without argmax or argsort, which not every exporter can take. Scores are
(images, candidates, …) with the classes on any later axis; whatever other axes there are (pixels) vote each for
themselves.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from .errors import OutputError, suggestion
from .ops import Array, Ops

Scores: TypeAlias = Literal["logits", "probabilities", "sigmoid", "sigmoid_probabilities"]
"""What a model's scores are: of classes of which one is true, or ("sigmoid") of labels each true or not by itself."""

Combine: TypeAlias = Literal["vote", "mean"] | tuple[float, ...]
"""How candidates make an answer: the majority of the most certain, the mean of the probabilities, or a weighted one."""

SCORES: tuple[Scores, ...] = ("logits", "probabilities", "sigmoid", "sigmoid_probabilities")

_TINY = float(np.finfo(np.float32).tiny)

_LEAST = -1e4
"""The power of anything less is 0 in any precision, so that 0 · −∞ comes out as 0."""


@dataclass(frozen=True)
class Verdict:
    """What the candidates decided.

    `scores` is the answer (images, …), of the meaning that the candidates' had. The others have the candidates on
    axis 1 and a class axis of size 1: `labels`, what each candidate says; `entropies`, how sure it is, in nats; `kept`,
    whether it is one of the k most certain; `votes`, how many of the kept say the same. Where labels are each true or
    not by themselves, each votes for itself: the class axis keeps its size, and `labels` are 0 or 1.
    """

    scores: Array
    labels: Array
    entropies: Array
    kept: Array
    votes: Array


def read_scores(scores: str | None, default: Scores) -> Scores:
    """Return what a caller said the model's scores are, or the default."""
    if scores is None:
        return default
    if scores not in SCORES:
        raise OutputError(
            f"scores: expected {', '.join(map(repr, SCORES))}; received {scores!r}.{suggestion(str(scores), SCORES)}"
        )
    return scores


def decide(candidates: Array, *, top_k: int, combine: Combine, scores: Scores, class_axis: int, ops: Ops) -> Verdict:
    """Return the verdict of candidates (B, P, …) whose classes are on `class_axis`, counted from the end.

    H_p = −Σ softmax(z_p) · log softmax(z_p); the k candidates of lowest H are kept; the label is their majority's,
    a tie goes to the tied label with the lowest H.

    "vote" answers with the mean logits of the kept candidates that said so; where scores are probabilities, with the
    softmax of their mean logarithm, so that a model with and one without a final softmax agree. "mean" answers
    with the mean probabilities of the kept candidates, or their logarithm; weights, one for each candidate, with their
    weighted mean.

    Labels with a sigmoid each are decided one by one, as the two classes (not, so) of logits (0, z).
    """
    xp = ops.xp
    if scores in ("sigmoid", "sigmoid_probabilities"):
        return _decide_each_label(candidates, top_k, combine, scores, ops)
    z = _log(candidates, xp) if scores == "probabilities" else candidates
    entropies = _entropies(z, class_axis, xp)
    labels = _first_largest(z, class_axis, ops)

    ranks = _ranks(entropies, ops)
    kept = ranks < top_k
    votes = _votes(labels, kept, ops)
    if combine != "vote":
        shares = None if combine == "mean" else combine
        mean = _mean(xp.exp(_log_softmax(z, class_axis, xp)), kept, ops, shares)
        answer = mean if scores == "probabilities" else _log(mean, xp)
    else:
        answer = _mean(z, _winners(labels, kept, votes, ranks, xp), ops)
        if scores == "probabilities":
            answer = xp.exp(_log_softmax(answer, class_axis, xp))
    return Verdict(answer, labels, entropies, kept, votes)


def entropy(values: Array, *, scores: Scores, class_axis: int, xp: Any) -> Array:
    """Return H of scores, in nats; the class axis has size 1. NaN counts as infinitely uncertain.

    Labels with a sigmoid each have an entropy each, and the class axis keeps its size.
    """
    if scores in ("sigmoid", "sigmoid_probabilities"):
        pairs, kind = _two_classes(values, scores, xp)
        return entropy(pairs, scores=kind, class_axis=-1, xp=xp)[..., 0]
    return _entropies(_log(values, xp) if scores == "probabilities" else values, class_axis, xp)


NEAR = 1e-4
"""Entropies that are nearer to each other, in nats, may change places by rounding."""


def near_ties(entropies: np.ndarray, kept: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return where rounding could decide a vote otherwise, of arrays (N, P, …) in numpy: (N, …).

    Where the last candidate that is kept is as certain as the first that is not; or where two labels have as many
    votes, and their most certain candidates are as certain.
    """
    outside = np.where(kept, np.inf, entropies).min(axis=1)
    inside = np.where(kept, entropies, -np.inf).max(axis=1)
    votes = ((labels[:, :, None] == labels[:, None]) & kept[:, None]).sum(axis=2)
    leads = kept & (votes == np.where(kept, votes, 0).max(axis=1, keepdims=True))
    certain = np.where(leads, entropies, np.inf)
    first = np.take_along_axis(labels, certain.argmin(axis=1, keepdims=True), axis=1)
    rivals = np.where(leads & (labels != first), entropies, np.inf).min(axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray((outside - inside < NEAR) | (rivals - certain.min(axis=1) < NEAR))


def probabilities(values: np.ndarray, scores: str, class_axis: int) -> np.ndarray:
    """Return scores, in numpy, as the probabilities that they stand for."""
    if scores == "logits" and values.ndim > 1:
        powers = np.exp(values - values.max(axis=class_axis, keepdims=True))
        return np.asarray(powers / powers.sum(axis=class_axis, keepdims=True))
    return np.asarray(0.5 * (1.0 + np.tanh(values / 2))) if scores == "sigmoid" else values


def _entropies(z: Array, class_axis: int, xp: Any) -> Array:
    """Return H = −Σ p · log p of p = softmax(z), which is log Σ eˢ − Σ eˢ · s / Σ eˢ with s = z − max z."""
    shifted = z - xp.max(z, axis=class_axis, keepdims=True)
    powers = xp.exp(shifted)
    total = xp.sum(powers, axis=class_axis, keepdims=True)
    spread = xp.sum(powers * xp.maximum(shifted, _LEAST), axis=class_axis, keepdims=True)
    certain = xp.log(total) - spread / total
    # A candidate that is NaN counts as the least certain of all; no comparison would reach it otherwise.
    return xp.where(certain == certain, certain, float("inf"))  # noqa: PLR0124


def _decide_each_label(candidates: Array, top_k: int, combine: Combine, scores: Scores, ops: Ops) -> Verdict:
    pairs, kind = _two_classes(candidates, scores, ops.xp)
    verdict = decide(pairs, top_k=top_k, combine=combine, scores=kind, class_axis=-1, ops=ops)
    answer = verdict.scores[..., 1] - verdict.scores[..., 0] if kind == "logits" else verdict.scores[..., 1]
    return Verdict(answer, *(each[..., 0] for each in (verdict.labels, verdict.entropies, verdict.kept, verdict.votes)))


def _two_classes(values: Array, scores: Scores, xp: Any) -> tuple[Array, Scores]:
    """Return every label's two classes, not and so, along a new last axis, and what these scores are."""
    if scores == "sigmoid":
        zeros = xp.where(values == values, 0.0, values)  # noqa: PLR0124 (a NaN is to stay one)
        return xp.stack([zeros, values], axis=-1), "logits"
    return xp.stack([1 - values, values], axis=-1), "probabilities"


def _log(probabilities: Array, xp: Any) -> Array:
    """Return the logarithm; of the smallest normal float for anything less."""
    return xp.log(xp.where(probabilities < _TINY, _TINY, probabilities))


def _log_softmax(z: Array, axis: int, xp: Any) -> Array:
    shifted = z - xp.max(z, axis=axis, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=axis, keepdims=True))


def _first_largest(z: Array, axis: int, ops: Ops) -> Array:
    """Return min {c : z_c ≥ max z}, as a float; K where there is none, as among NaNs."""
    count = z.shape[axis]
    indices = ops.xp.reshape(ops.constant(list(range(count)), z), (count, *[1] * (-axis - 1)))
    largest = z >= ops.xp.max(z, axis=axis, keepdims=True)
    found = ops.xp.where(largest, indices, float(count))
    return ops.xp.min(found, axis=axis, keepdims=True)


def _pairs(array: Array) -> tuple[Array, Array]:
    """(B, P, …) with p along axis 1 and with q along axis 2: ready to compare every p with every q."""
    return array[:, :, None], array[:, None]


def _ranks(entropies: Array, ops: Ops) -> Array:
    """rank_p = Σ_q [H_q < H_p, or H_q = H_p and q < p]: a permutation of 0 … P−1."""
    count, trailing = entropies.shape[1], len(entropies.shape) - 2
    places = ops.xp.reshape(ops.constant(list(range(count)), entropies), (1, count, *[1] * trailing))
    (first, second), (first_place, second_place) = _pairs(entropies), _pairs(places)
    ahead = (second < first) | ((second == first) & (second_place < first_place))
    return ops.xp.sum(ops.mask_to_float(ahead, entropies), axis=2)


def _votes(labels: Array, kept: Array, ops: Ops) -> Array:
    """votes_p = Σ_q [label_p = label_q and kept_q]."""
    first, second = _pairs(labels)
    _, second_kept = _pairs(kept)
    return ops.xp.sum(ops.mask_to_float((first == second) & second_kept, labels), axis=2)


def _winners(labels: Array, kept: Array, votes: Array, ranks: Array, xp: Any) -> Array:
    """Return the kept candidates that say what the majority says: most votes, then lowest rank."""
    count = labels.shape[1]
    standing = xp.where(kept, votes * count - ranks, -float(count))
    leads = standing >= xp.max(standing, axis=1, keepdims=True)
    winning = xp.min(xp.where(leads, labels, float("inf")), axis=1, keepdims=True)
    return kept & (labels == winning)


def _mean(values: Array, chosen: Array, ops: Ops, shares: tuple[float, ...] | None = None) -> Array:
    """Return the mean of the chosen candidates; what the others hold, be it infinite, leaves no trace."""
    weights = ops.mask_to_float(chosen, values)
    if shares is not None:
        column = (1, -1, *[1] * (len(values.shape) - 2))
        weights = weights * ops.xp.reshape(ops.constant(shares, values), column)
    total = ops.xp.sum(ops.xp.where(chosen, values, 0.0) * weights, axis=1)
    return total / ops.xp.sum(weights, axis=1)
