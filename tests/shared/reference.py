"""Independent references: plain loops in float64, written from the method's definition and not from the library."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # what has no torch has use for the rest
    import torch
    from torch import nn


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

    def prior(self, d: float, area: Area) -> float:
        """λ of one row."""
        return 1 - self.strength * d / (d + self.half_shift) * area_weight(area, self.half_area)


@dataclass(frozen=True)
class Excess:
    """λ of a layer whose mean shift on clean images is d_0: 1 up to that shift, d_0 / d beyond."""

    clean_shift: float

    def prior(self, d: float, _: Area) -> float:
        """λ of one row."""
        return 1.0 if d <= self.clean_shift else self.clean_shift / d


@dataclass(frozen=True)
class LayerCall:
    """What one row measured in one call of a layer, and its λ."""

    shift: float
    area: Area
    prior: float


@dataclass
class Row:
    """One row: which view it runs, its prior, and what the rows it draws statistics from weigh."""

    view: int
    prior: float | Rule | Excess
    weights: dict[int, float]


def first_area(measured: Sequence[Sequence[LayerCall]], positions: int) -> Area:
    """The area of a layer call, given what all rows measured before it."""
    return positions, next((calls[0].area[0] for calls in measured if calls), positions)


def augbn_rows(prior: float | Rule, n: int, first: int = 0) -> list[Row]:
    """A group of its own: the image weighs ½, each view 1/2n."""
    weights = {first: 0.5, **{first + 1 + i: 0.5 / n for i in range(n)}} if n else {first: 1.0}
    return [Row(view, prior, weights) for view in range(n + 1)]


def ops_rows(priors: Sequence[float | Rule], n: int) -> tuple[list[Row], list[int]]:
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


def blend(  # noqa: PLR0917
    row: Row,
    means: np.ndarray,
    variances: np.ndarray,
    source: tuple[np.ndarray, np.ndarray],
    epsilon: float,
    area: Area,
) -> tuple[np.ndarray, np.ndarray, LayerCall | None]:
    """Return the statistics that a row is normalized with, of the moments (R, C) of all rows, and what it measured."""
    if row.prior == 1:
        return *source, None
    drawn = list(row.weights)
    m_t, v_t = target_statistics(means[drawn], variances[drawn], list(row.weights.values()))
    d = shift(m_t, v_t, *source, epsilon=epsilon)
    prior = row.prior.prior(d, area) if isinstance(row.prior, Rule | Excess) else row.prior
    mean, variance = (prior * s + (1 - prior) * t for s, t in zip(source, (m_t, v_t), strict=True))
    return mean, variance, LayerCall(d, area, prior)


def run_rows(
    model: nn.Module,
    image: torch.Tensor,
    views: Sequence[Callable[[torch.Tensor], torch.Tensor]],
    rows: Sequence[Row],
    *,
    channel_axis: int = 1,
    adapted: Collection[str] | None = None,
    calls: list[list[LayerCall]] | None = None,
) -> Any:
    """Return the output of every row of one image (without batch axis), in float64.

    The rows run as one batch through a copy of the model. Behind every layer with running statistics its output is
    replaced: each row goes through a layer of its own, whose statistics are overwritten by the blend, so the
    framework's own layer does the rest. `adapted` names the layers; `calls` takes what each row measured.
    """
    import torch

    model = copy.deepcopy(model).double().eval()
    norms = {name: module for name, module in model.named_modules() if hasattr(module, "running_var")}
    measured: list[list[LayerCall]] = [[] for _ in rows] if calls is None else calls
    measured.extend([] for _ in range(len(rows) - len(measured)))
    for name, norm in norms.items():
        if adapted is None or name in adapted:
            hook = functools.partial(_normalize_row_by_row, copy.deepcopy(norm), rows, measured, channel_axis)
            norm.register_forward_hook(hook)
    with torch.no_grad():
        output = model(torch.cat([views[row.view](image.double()[None]) for row in rows]))
    assert any(measured) or all(row.prior == 1 for row in rows), "no layer ran"
    return list(output) if isinstance(output, torch.Tensor) else output


def _normalize_row_by_row(  # noqa: PLR0917
    layer: nn.Module,
    rows: Sequence[Row],
    measured: list[list[LayerCall]],
    channel_axis: int,
    _: nn.Module,
    args: tuple[torch.Tensor],
    output: torch.Tensor,
) -> torch.Tensor:
    """A row may have several entries of the batch: time or tokens that are folded in."""
    import torch

    parts = args[0].unflatten(0, (len(rows), -1)).unbind(0)
    by_channel = [part.movedim(channel_axis, 0).flatten(1).numpy() for part in parts]
    means, variances = (np.stack([getattr(each, kind)(axis=1) for each in by_channel]) for kind in ("mean", "var"))
    answers, area = [], first_area(measured, by_channel[0].shape[1])
    for r, (row, part) in enumerate(zip(rows, parts, strict=True)):
        own = copy.deepcopy(layer)
        source = own.running_mean.flatten().numpy(), own.running_var.flatten().numpy()
        mean, variance, call = blend(row, means, variances, source, own.eps, area)
        own.running_mean.copy_(torch.from_numpy(mean.copy()).view_as(own.running_mean))
        own.running_var.copy_(torch.from_numpy(variance.copy()).view_as(own.running_var))
        measured[r] += [] if call is None else [call]
        answers.append(own(part))
    return torch.cat(answers).reshape_as(output)


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


SOURCE_SHIFT = 0.05
"""d_0 of the default."""

SELECTION_SHIFT = 0.14
"""d_1: without class scores, the adapted row supplies the outputs of an image that is further away."""

BOLD = Rule(1.0, 0.5)
"""The rule of the default's adapted row."""

AUTO_ROWS = [Row(0, 1.0, {}), Row(0, BOLD, {1: 1.0})]


def image_shift(calls: Sequence[LayerCall]) -> float:
    """D = Σ a_l d_l / Σ a_l over all layer calls; 0 if all have a single position."""
    weights = [area_weight(call.area) for call in calls]
    return sum(a * call.shift for a, call in zip(weights, calls, strict=True)) / (sum(weights) or 1.0)


def softmax(z: np.ndarray) -> np.ndarray:
    """The softmax over the last axis."""
    raised = np.exp(z - z.max(-1, keepdims=True))
    return np.asarray(raised / raised.sum(-1, keepdims=True))


def confidence(scores: np.ndarray, kind: str | None) -> float:
    """c of one image's scores, classes last: e^−H, H the mean entropy over pixels and labels (each label is true or
    not: two classes); 1 without scores."""
    if kind is None:
        return 1.0
    if kind.startswith("sigmoid"):
        p = 1 / (1 + np.exp(-scores)) if kind == "sigmoid" else scores
        p = np.stack([p, 1 - p], -1)
    else:
        p = scores if kind == "probabilities" else softmax(scores)
    return math.exp((p * np.log(np.maximum(p, 1e-300))).sum(-1).mean())


def adapted_weight(d: float, source: np.ndarray, adapted: np.ndarray, kind: str | None) -> float:
    """The weight of the adapted row, u_a / (u_s + u_a): u_s = 0.05² c_s, u_a = D² c_a."""
    u_s = SOURCE_SHIFT**2 * confidence(source, kind)
    u_a = d**2 * confidence(adapted, kind)
    return u_a / (u_s + u_a)


def mix(source: np.ndarray, adapted: np.ndarray, weight: float, kind: str | None = None) -> np.ndarray:
    """The mix of two outputs of one image, classes last, of which the adapted one has this weight."""
    if kind == "probabilities":
        return softmax(mix(np.log(source), np.log(adapted), weight))
    if kind == "log_probabilities":
        return np.log(softmax(mix(source, adapted, weight)))
    if kind == "sigmoid_probabilities":
        odds = mix(np.log(source / (1 - source)), np.log(adapted / (1 - adapted)), weight)
        return np.asarray(1 / (1 + np.exp(-odds)))
    return (1 - weight) * source + weight * adapted
