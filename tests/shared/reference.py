"""Independent references: plain loops in float64, written from the method's definition and not from the library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


def target_statistics(
    means: np.ndarray, variances: np.ndarray, weights: Sequence[float]
) -> tuple[np.ndarray, np.ndarray]:
    """m_t = Σ w_i m_i and v_t = Σ w_i (v_i + (m_i − m_t)²), one channel at a time."""
    mean, variance = np.zeros(means.shape[1]), np.zeros(means.shape[1])
    for c in range(means.shape[1]):
        for i, w in enumerate(weights):
            mean[c] += w * means[i, c]
        for i, w in enumerate(weights):
            variance[c] += w * (variances[i, c] + (means[i, c] - mean[c]) ** 2)
    return mean, variance


def shift(m_t: np.ndarray, v_t: np.ndarray, m_s: np.ndarray, v_s: np.ndarray, epsilon: float) -> float:
    """d, the mean over channels of KL(N(m_t, v_t) ‖ N(m_s, v_s)), one channel at a time."""
    total = 0.0
    for m, v, m_0, v_0 in zip(m_t, v_t + epsilon, m_s, v_s + epsilon, strict=True):
        total += math.log(math.sqrt(v_0 / v)) + (v + (m - m_0) ** 2) / (2 * v_0) - 0.5
    return total / len(m_t)


Area = tuple[int, int]
"""The number of spatial positions of a layer's features, and of those of the first adapted layer."""


def area_weight(area: Area, half_area: float = 1 / 64) -> float:
    """a = (A − 1) / (A − 1 + h · A_1)."""
    return (area[0] - 1) / (area[0] - 1 + half_area * area[1])


@dataclass(frozen=True)
class Rule:
    """λ by the shift that a layer measures: 1 − s · d/(d + d_½) · a."""

    strength: float
    half_shift: float
    half_area: float = 1 / 64

    def priors(self, d: float, area: Area) -> tuple[float, float]:
        """λ of one row, for the mean and for the variance."""
        prior = 1 - self.strength * d / (d + self.half_shift) * area_weight(area, self.half_area)
        return prior, prior


LEAST = 5e-6
"""k · t of a channel that never varies. (A shift that is only rounding is less.)"""


@dataclass(frozen=True)
class Reliability:
    """λ by the shift and by the reliability of each channel of a layer; 1 without a shift.

    w = s · d/(d + d_½) · a;   1 − λ of the mean = w · d/(d + k · t_c);   1 − λ of the variance = w · d/(d + k · e_c)
    """

    means: Sequence[float]
    variances: Sequence[float]
    caution: float = 1.0
    strength: float = 1.0
    half_shift: float = 0.5

    def priors(self, d: float, area: Area) -> tuple[np.ndarray, np.ndarray]:
        """λ of one row, for the mean and for the variance of each channel."""
        w = self.strength * d / (d + self.half_shift) * area_weight(area)

        def prior(spread: float) -> float:
            return 1 - w * d / (d + max(self.caution * float(spread), LEAST))

        return np.array([prior(t) for t in self.means]), np.array([prior(e) for e in self.variances])


Prior = float | Rule | Mapping[str, Reliability]
"""Of a row: a number, a rule, or the rule of every layer by the layer's name."""


def priors_of(prior: Prior, layer: str, d: float, area: Area) -> tuple[float | np.ndarray, float | np.ndarray]:
    """λ of the mean and of the variance, in a layer that measures the shift d."""
    if isinstance(prior, Mapping):
        return prior[layer].priors(d, area)
    return prior.priors(d, area) if isinstance(prior, Rule) else (prior, prior)


@dataclass(frozen=True)
class LayerCall:
    """What one row measured in one call of a layer, and its λ: the mean over mean and variance, and over channels."""

    shift: float
    area: Area
    prior: float


@dataclass
class Row:
    """One row: which view it runs, its prior, and what the rows it draws statistics from weigh."""

    view: int
    prior: Prior
    weights: dict[int, float]


def first_area(measured: Sequence[Sequence[LayerCall]], positions: int) -> Area:
    """The area of a layer call, given what all rows measured before it."""
    return positions, next((calls[0].area[0] for calls in measured if calls), positions)


def augbn_rows(prior: Prior, n: int, first: int = 0) -> list[Row]:
    """A group of its own: the image weighs ½, each view 1/2n."""
    weights = {first: 0.5, **{first + 1 + i: 0.5 / n for i in range(n)}} if n else {first: 1.0}
    return [Row(view, prior, weights) for view in range(n + 1)]


def ops_rows(priors: Sequence[Prior], n: int) -> tuple[list[Row], list[int]]:
    """A group for each prior; λ = 1 runs without views. Also returned: the rows that answer."""
    rows: list[Row] = []
    answers = []
    for prior in priors:
        answers.append(len(rows))
        rows += [Row(0, 1.0, {})] if prior == 1 else augbn_rows(prior, n, first=len(rows))
    return rows, answers


def shared_rows(priors: Sequence[float], n: int) -> tuple[list[Row], list[int]]:
    """The image under each prior, and one set of views under the lowest."""
    count, lowest = len(priors), int(np.argmin(priors))
    views = {count + i: 0.5 / n for i in range(n)}
    rows = [Row(0, prior, {p: 0.5, **views}) for p, prior in enumerate(priors)]
    rows += [Row(1 + i, priors[lowest], {lowest: 0.5, **views}) for i in range(n)]
    return rows, list(range(count))


def mix_rows(priors: Sequence[Prior], views: Sequence[int]) -> tuple[list[Row], list[int]]:
    """The image under λ = 1, and each of these views (0: the image) under each prior; every row answers."""
    rows = [Row(0, 1.0, {})]
    for prior in priors:
        rows += [Row(view, prior, {len(rows) + i: 1.0}) for i, view in enumerate(views)]
    return rows, list(range(len(rows)))


PAPER_PRIORS = tuple(0.5 + 0.5 * p / 7 for p in range(8))
"""The priors of OPS."""

GENTLE, BOLD = Rule(0.375, 0.5), Rule(1.0, 0.5)
"""The rule of the recipe "shift", and of the adapted rows of a mix."""

ADAPTED_WEIGHTS = {"auto": 2.0, "restore": 4.0}
"""ρ of the recipes that mix."""

SEGMENTATION_WEIGHT = 8.0
"""ρ of the same recipes for segmentation."""


def rows_of(recipe: str, n: int = 0, priors: Sequence[Prior] = PAPER_PRIORS) -> tuple[list[Row], list[int]]:
    """The rows of a recipe for an image with n views, and those of them that answer."""
    if recipe in ("ops", "ops_shared"):
        return (ops_rows if recipe == "ops" else shared_rows)(priors, n)
    if recipe in ("auto", "restore"):
        return mix_rows([BOLD], range(1) if recipe == "auto" else range(1, n + 1))
    prior = {"bn": 16 / 17, "ptn": 0.0, "shift": GENTLE, "augbn": priors[0]}[recipe]
    return augbn_rows(prior, n if recipe == "augbn" else 0), [0]


def blend(  # noqa: PLR0917
    row: Row,
    means: np.ndarray,
    variances: np.ndarray,
    source: tuple[np.ndarray, np.ndarray],
    epsilon: float,
    area: Area,
    layer: str = "",
) -> tuple[np.ndarray, np.ndarray, LayerCall | None]:
    """Return the statistics that a row is normalized with, of the moments (R, C) of all rows, and what it measured."""
    if row.prior == 1:
        return *source, None
    drawn = list(row.weights)
    m_t, v_t = target_statistics(means[drawn], variances[drawn], list(row.weights.values()))
    d = shift(m_t, v_t, *source, epsilon=epsilon)
    priors = priors_of(row.prior, layer, d, area)
    mean, variance = (p * s + (1 - p) * t for p, s, t in zip(priors, source, (m_t, v_t), strict=True))
    return mean, variance, LayerCall(d, area, float(np.mean(priors)))


def entropy(logits: Sequence[float]) -> float:
    """−Σ p log p of softmax(logits), in nats."""
    top = max(logits)
    exponentials = [math.exp(z - top) for z in logits]
    total = sum(exponentials)
    return -sum(e / total * math.log(e / total) for e in exponentials if e > 0)


def vote(candidates: np.ndarray, top_k: int) -> np.ndarray:
    """Return the mean logits of the winners among candidates (P, K): the k of lowest entropy, majority, ties to the
    tied label with the lowest entropy."""
    entropies = [entropy(list(map(float, z))) for z in candidates]
    kept = sorted(range(len(candidates)), key=lambda p: (entropies[p], p))[:top_k]
    labels = {p: int(np.argmax(candidates[p])) for p in kept}
    counts = {label: sum(1 for p in kept if labels[p] == label) for label in labels.values()}
    winner = next(labels[p] for p in kept if counts[labels[p]] == max(counts.values()))
    return np.mean([candidates[p] for p in kept if labels[p] == winner], axis=0)


def mean_probabilities(candidates: np.ndarray, top_k: int) -> np.ndarray:
    """Return the mean softmax of the k candidates of lowest entropy."""
    entropies = [entropy(list(map(float, z))) for z in candidates]
    kept = sorted(range(len(candidates)), key=lambda p: (entropies[p], p))[:top_k]
    total = np.zeros(candidates.shape[1])
    for p in kept:
        exponentials = np.exp(candidates[p] - candidates[p].max())
        total += exponentials / exponentials.sum()
    return total / len(kept)


SELECTION_SHIFT = 0.14
"""d_1: without class scores, an adapted row supplies the outputs of an image that is further away."""


def image_shift(calls: Sequence[LayerCall]) -> float | None:
    """D = Σ a_l d_l / Σ a_l over all layer calls; 0 if all have a single position; None if nothing was measured."""
    weights = [area_weight(call.area) for call in calls]
    total = sum(a * call.shift for a, call in zip(weights, calls, strict=True))
    return total / (sum(weights) or 1.0) if calls else None


def softmax(z: np.ndarray) -> np.ndarray:
    """The softmax over the last axis."""
    raised = np.exp(z - z.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def confidence(scores: np.ndarray, kind: str) -> float:
    """c of one image's scores, classes last: e^−H, H the mean entropy over pixels and labels (each label is true or
    not: two classes)."""
    if kind.startswith("sigmoid"):
        p = 1 / (1 + np.exp(-scores)) if kind == "sigmoid" else scores
        p = np.stack([p, 1 - p], -1)
    else:
        p = scores if kind == "probabilities" else softmax(scores)
    return math.exp((p * np.log(np.maximum(p, 1e-300))).sum(-1).mean())


def mix_weights(
    candidates: Sequence[np.ndarray],
    shifts: Sequence[float | None],
    kind: str | None,
    adapted_weight: float = ADAPTED_WEIGHTS["auto"],
) -> list[float]:
    """The weights of an image's candidates, whose shift is None for λ = 1; of their scores, classes last.

    u_s = c_s,   u_p = ρ · r_p · c_p,   r_p = D_p^−4 / Σ_q D_q^−4;   without a kind of scores, 1 for one of them
    """
    if kind is None:
        return selection_weights(shifts)
    closeness = [0.0 if d is None else d**-4.0 if shifts.count(None) < len(shifts) - 1 else 1.0 for d in shifts]
    u = []
    for scores, d, near in zip(candidates, shifts, closeness, strict=True):
        share = 1.0 if d is None else adapted_weight * near / sum(closeness)
        u.append(share * confidence(scores, kind))
    return [each / sum(u) for each in u]


def selection_weights(shifts: Sequence[float | None], eligible: Sequence[int] | None = None) -> list[float]:
    """1 for the candidate with the largest key, of the eligible: d_1 for λ = 1, mean(D) · min(D)/D_p for the others."""
    adapted = [d for d in shifts if d is not None]
    keys = [SELECTION_SHIFT if d is None else sum(adapted) / len(adapted) * min(adapted) / d for d in shifts]
    chosen = max(range(len(shifts)) if eligible is None else eligible, key=lambda p: keys[p])
    return [float(p == chosen) for p in range(len(shifts))]


def mix(candidates: Sequence[np.ndarray], weights: Sequence[float], kind: str | None = None) -> np.ndarray:
    """The mean of one image's outputs, classes last, with these weights."""
    y = np.asarray(candidates)
    if kind == "probabilities":
        return softmax(mix(np.log(y), weights))
    if kind == "log_probabilities":
        return np.log(softmax(mix(y, weights)))
    if kind == "sigmoid_probabilities":
        return np.asarray(1 / (1 + np.exp(-mix(np.log(y / (1 - y)), weights))))
    return sum(weight * each for weight, each in zip(weights, y, strict=True))
