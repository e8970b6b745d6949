"""Voting among candidates (OPS): keep the candidates with the lowest entropy, then take the majority label.

It uses only comparisons and sums, because not every exporter supports argmax or argsort. Scores are (images,
candidates, …), with the classes on any later axis. Each remaining position (pixel) has an independent vote.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from .ops import NUMPY, Array, Ops

Scores: TypeAlias = Literal["logits", "probabilities", "log_probabilities", "sigmoid", "sigmoid_probabilities"]
"""The kind of scores: of mutually exclusive classes, or ("sigmoid", "sigmoid_probabilities") of independent labels."""

SCORES: tuple[Scores, ...] = get_args(Scores)

_TINY = float(np.finfo(np.float32).tiny)
_MASK = -1e30  # a logit below is a mask
_LEAST = -1e4  # exp of any smaller number is 0 in every precision; clipping makes 0 · −∞ = 0


@dataclass(frozen=True)
class Vote:
    """The result of a vote.

    All arrays except `scores` have the candidates on axis 1, and a class axis of size 1. Sigmoid labels are decided
    independently: the class axis keeps its size, and `labels` are 0 or 1.
    """

    scores: Array  # the answer (images, …), of the same kind as the candidates' scores
    labels: Array  # the label of each candidate
    entropies: Array  # the entropy of each candidate, in nats
    kept: Array  # whether a candidate is one of the k most confident
    votes: Array  # how many kept candidates have the same label


def decide(
    candidates: Array, *, top_k: int, combine: Literal["vote", "mean"], kind: Scores, class_axis: int, ops: Ops
) -> Vote:
    """Return the vote of candidates (B, P, …) whose classes are on `class_axis`, counted from the end.

    H_p = −Σ softmax(z_p) · log softmax(z_p). The k candidates with the lowest H are kept. The winning label is the
    majority among them. In a tie, the tied label with the lowest H wins.

    "vote" returns the mean logits of the kept candidates with the winning label. For probabilities, it averages the
    logarithms and normalizes them, so models with and without a final softmax agree. "mean" returns the mean
    probabilities of the kept candidates, or their logarithm if the model returns logits.

    Each sigmoid label is decided as two classes with logits (0, z).
    """
    z = to_logits(candidates, kind, ops)
    if kind in ("sigmoid", "sigmoid_probabilities"):
        zeros = ops.where(z == z, 0.0, z)  # noqa: PLR0124 (a NaN must stay one)
        pairs = ops.stack([zeros, z], axis=-1)
        vote = decide(pairs, top_k=top_k, combine=combine, kind="logits", class_axis=-1, ops=ops)
        answer = from_logits(vote.scores[..., 1] - vote.scores[..., 0], kind, class_axis, ops)
        return Vote(answer, *(each[..., 0] for each in (vote.labels, vote.entropies, vote.kept, vote.votes)))
    log_p = log_softmax(z, class_axis, ops)
    entropies = _entropy(log_p, class_axis, ops)
    # A NaN candidate counts as the least confident: every comparison with NaN is false, so it would get rank 0.
    entropies = ops.where(entropies == entropies, entropies, float("inf"))  # noqa: PLR0124
    labels, ranks = first_largest(z, class_axis, ops), _ranks(entropies, ops)
    kept = ranks < top_k
    votes = ops.sum(ops.cast((labels[:, :, None] == labels[:, None]) & kept[:, None], labels), axis=2)
    if combine == "mean":
        z = log_of(_mean(ops.exp(log_p), kept, ops), ops)
    else:
        z = _mean(z, _winners(labels, kept, votes, ranks, ops), ops)
    return Vote(from_logits(z, kind, class_axis, ops), labels, entropies, kept, votes)


def to_logits(scores: Array, kind: Scores, ops: Ops) -> Array:
    """Return scores as logits: the logarithm of probabilities, or the log-odds of sigmoid probabilities."""
    if kind == "probabilities":
        return log_of(scores, ops)
    return log_of(scores, ops) - log_of(1 - scores, ops) if kind == "sigmoid_probabilities" else scores


def from_logits(z: Array, kind: Scores, class_axis: int, ops: Ops) -> Array:
    """Return logits as scores of a kind."""
    if kind in ("probabilities", "log_probabilities"):
        z = log_softmax(z, class_axis, ops)
        return ops.exp(z) if kind == "probabilities" else z
    return 1 / (1 + ops.exp(-z)) if kind == "sigmoid_probabilities" else z


def probabilities(values: np.ndarray, kind: Scores, class_axis: int) -> np.ndarray:
    """Return numpy scores as probabilities."""
    if kind in ("probabilities", "sigmoid_probabilities"):
        return values
    wanted: Scores = "sigmoid_probabilities" if kind == "sigmoid" else "probabilities"
    return np.asarray(from_logits(values, wanted, class_axis, NUMPY))


def largest_probability(scores: Array, kind: Scores, class_axis: int, ops: Ops) -> Array:
    """Return the largest class probability, without the class axis; for sigmoid labels, max(p, 1 − p) of each."""
    if kind in ("sigmoid", "sigmoid_probabilities"):
        p = 1 / (1 + ops.exp(-scores)) if kind == "sigmoid" else scores
        return ops.where(p > 0.5, p, 1 - p)
    if kind == "probabilities":
        return ops.max(scores, axis=class_axis)
    top = ops.max(scores, axis=class_axis, keepdims=True)
    return 1 / ops.sum(ops.exp(scores - top), axis=class_axis)


def _entropy(log_p: Array, class_axis: int, ops: Ops) -> Array:
    """Return H = −Σ p · log p in nats, with the class axis kept."""
    return -ops.sum(ops.exp(log_p) * ops.maximum(log_p, _LEAST), axis=class_axis, keepdims=True)


def entropy(scores: Array, kind: Scores, class_axis: int, ops: Ops) -> Array:
    """Return H of scores in nats, without the class axis. Each sigmoid label has two classes."""
    z = to_logits(scores, kind, ops)
    if kind in ("sigmoid", "sigmoid_probabilities"):
        z, class_axis = ops.stack([ops.zeros_like(z), z], axis=-1), -1
    return ops.squeeze(_entropy(log_softmax(z, class_axis, ops), class_axis, ops), axis=class_axis)


def log_of(values: Array, ops: Ops) -> Array:
    """Return the logarithm of probabilities, clipped below at the smallest normal float."""
    return ops.log(ops.where(values < _TINY, _TINY, values))


def unmask(z: Array, class_axis: int, ops: Ops) -> Array:
    """Return logits (B, P, …) in which a class that only some of an image's candidates mask by −∞ has a finite value.

    It corresponds to the smallest probability, as in a model with a softmax. With −∞, one candidate could veto what
    another is certain of, and two could veto every class. The smallest number of a dtype is a mask, too.
    """
    masked, by_all = z < _MASK, ops.max(z, axis=1, keepdims=True) < _MASK
    lowest = ops.max(z, axis=class_axis, keepdims=True) + math.log(_TINY)
    return ops.where(masked, ops.where(by_all, z, lowest), z)


def log_softmax(z: Array, axis: int, ops: Ops) -> Array:
    """Return z − log Σ exp(z)."""
    shifted = z - ops.max(z, axis=axis, keepdims=True)
    return shifted - ops.log(ops.sum(ops.exp(shifted), axis=axis, keepdims=True))


def first_largest(z: Array, axis: int, ops: Ops) -> Array:
    """Return min {c : z_c ≥ max z}, as a float; the number of classes if there is none (NaN)."""
    count = z.shape[axis]
    indices = ops.reshape(ops.constant(list(range(count)), z), (count, *[1] * (-axis - 1)))
    largest = z >= ops.max(z, axis=axis, keepdims=True)
    return ops.min(ops.where(largest, indices, float(count)), axis=axis, keepdims=True)


def select_lowest(array: Array, keys: Array, candidates: Sequence[int], ops: Ops) -> Array:
    """Return, for each image, the part of an array (B, P, …) of the candidate with the lowest key (B, P, …).

    Each candidate is compared with the best so far, because not every exporter supports argmin.
    """
    first, *others = candidates
    chosen, lowest = array[:, first], keys[:, first]
    column = (-1, *lowest.shape[1:], *[1] * (len(array.shape) - len(keys.shape)))
    for candidate in others:
        better = keys[:, candidate] < lowest
        chosen = ops.where(ops.reshape(better, column), array[:, candidate], chosen)
        lowest = ops.where(better, keys[:, candidate], lowest)
    return chosen


def _ranks(entropies: Array, ops: Ops) -> Array:
    """rank_p = Σ_q [H_q < H_p, or H_q = H_p and q < p]: a permutation of 0 … P−1."""
    count, trailing = entropies.shape[1], len(entropies.shape) - 2
    order = ops.reshape(ops.constant(list(range(count)), entropies), (1, count, *[1] * trailing))
    p, q = entropies[:, :, None], entropies[:, None]
    ahead = (q < p) | ((q == p) & (order[:, None] < order[:, :, None]))
    return ops.sum(ops.cast(ahead, entropies), axis=2)


def _winners(labels: Array, kept: Array, votes: Array, ranks: Array, ops: Ops) -> Array:
    """Return which candidates are kept and have the winning label: most votes, then lowest rank."""
    count = labels.shape[1]
    standing = ops.where(kept, votes * count - ranks, -float(count))
    leads = standing >= ops.max(standing, axis=1, keepdims=True)
    winning = ops.min(ops.where(leads, labels, float("inf")), axis=1, keepdims=True)
    return kept & (labels == winning)


def _mean(values: Array, chosen: Array, ops: Ops) -> Array:
    """Return the mean over the chosen candidates. The others are ignored, even if they are infinite."""
    weights = ops.cast(chosen, values)
    total = ops.sum(ops.where(chosen, values, 0.0) * weights, axis=1)
    return total / ops.sum(weights, axis=1)
