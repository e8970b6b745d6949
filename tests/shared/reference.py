"""Independent references: plain loops in float64, written from the method's definition and not from the library."""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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


@dataclass(frozen=True)
class Rule:
    """λ by the shift that a layer sees: 1 − s · d/(d + d_½) · A/(A + A_½)."""

    strength: float
    half_shift: float
    half_area: float

    def prior(  # noqa: PLR0917
        self, m_t: np.ndarray, v_t: np.ndarray, m_s: np.ndarray, v_s: np.ndarray, epsilon: float, area: int
    ) -> float:
        """λ of one row, one channel at a time."""
        total = 0.0
        for m, v, m_0, v_0 in zip(m_t, v_t + epsilon, m_s, v_s + epsilon, strict=True):
            total += math.log(math.sqrt(v_0 / v)) + (v + (m - m_0) ** 2) / (2 * v_0) - 0.5
        d = total / len(m_t)
        return 1 - self.strength * d / (d + self.half_shift) * area / (area + self.half_area)


@dataclass
class Row:
    """One row: which view it runs, its prior, and what the rows it draws statistics from weigh."""

    view: int
    prior: float | Rule
    weights: dict[int, float]


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


def run_rows(
    model: nn.Module, image: torch.Tensor, views: Sequence[Callable[[torch.Tensor], torch.Tensor]], rows: Sequence[Row]
) -> list[torch.Tensor]:
    """Return the output of every row of one image (without batch axis), in float64.

    The rows run as one batch through a copy of the model. Behind every layer with running statistics its output is
    replaced: each row goes through a layer of its own, whose statistics are overwritten by the blend, so that the
    framework's own layer does the rest.
    """
    import torch

    model = copy.deepcopy(model).double().eval()
    norms = {name: module for name, module in model.named_modules() if hasattr(module, "running_var")}
    calls: list[str] = []
    for name, norm in norms.items():
        own = [copy.deepcopy(norm) for _ in rows]
        norm.register_forward_hook(functools.partial(_normalise_row_by_row, name=name, own=own, rows=rows, calls=calls))
    with torch.no_grad():
        output = model(torch.cat([views[row.view](image.double()[None]) for row in rows]))
    assert sorted(calls) == sorted(norms), "every layer must run once a forward"
    return list(output)


def _normalise_row_by_row(
    _: nn.Module,
    args: tuple[torch.Tensor],
    output: torch.Tensor,
    *,
    name: str,
    own: list[nn.Module],
    rows: Sequence[Row],
    calls: list[str],
) -> torch.Tensor:
    """A row may have several entries of the batch: time or tokens that are folded in."""
    import torch

    calls.append(name)
    parts = args[0].unflatten(0, (len(rows), -1)).unbind(0)
    by_channel = [part.movedim(1, 0).flatten(1).numpy() for part in parts]
    means, variances = (np.stack([getattr(each, kind)(axis=1) for each in by_channel]) for kind in ("mean", "var"))
    answers = []
    for row, layer, part in zip(rows, own, parts, strict=True):
        if row.prior != 1:
            drawn = list(row.weights)
            mean, variance = target_statistics(means[drawn], variances[drawn], list(row.weights.values()))
            prior = row.prior
            if isinstance(prior, Rule):
                source = layer.running_mean.numpy(), layer.running_var.numpy()
                prior = prior.prior(mean, variance, *source, epsilon=layer.eps, area=by_channel[0].shape[1])
            layer.running_mean.mul_(prior).add_((1 - prior) * torch.from_numpy(mean))
            layer.running_var.mul_(prior).add_((1 - prior) * torch.from_numpy(variance))
        answers.append(layer(part))
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
