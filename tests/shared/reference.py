"""Independent references: plain loops in float64, written from the method's definition and not from the library."""

from __future__ import annotations

import copy
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


@dataclass
class Row:
    """One row: which view it runs, its prior, and what the rows it draws statistics from weigh."""

    view: int
    prior: float
    weights: dict[int, float]


def augbn_rows(prior: float, n: int, first: int = 0) -> list[Row]:
    """A group of its own: the image weighs ½, each view 1/2n."""
    weights = {first: 0.5, **{first + 1 + i: 0.5 / n for i in range(n)}} if n else {first: 1.0}
    return [Row(view, prior, weights) for view in range(n + 1)]


def ops_rows(priors: Sequence[float], n: int) -> tuple[list[Row], list[int]]:
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


class _Stop(Exception):
    pass


def run_rows(
    model: nn.Module, image: torch.Tensor, views: Sequence[Callable[[torch.Tensor], torch.Tensor]], rows: Sequence[Row]
) -> list[torch.Tensor]:
    """Return the output of every row of one image (without batch axis), in float64.

    Every row has a model of its own. Layer after layer, in the order in which they run: each row is run up to the
    layer, the moments of its input are taken, and the running statistics of each row's layer are overwritten by the
    blend. The framework's own BatchNorm then does the rest. Layers must run once a forward.
    """
    import torch

    models = [copy.deepcopy(model).double().eval() for _ in rows]
    inputs = [views[row.view](image.double()[None]) for row in rows]
    for name in _layers_in_order(models[0], inputs[0]):
        moments = [_input_moments(m.get_submodule(name), m, x) for m, x in zip(models, inputs, strict=True)]
        for r, row in enumerate(rows):
            if row.prior == 1:
                continue
            chosen = list(row.weights)
            mean, variance = target_statistics(
                np.stack([moments[q][0] for q in chosen]),
                np.stack([moments[q][1] for q in chosen]),
                list(row.weights.values()),
            )
            layer = models[r].get_submodule(name)
            layer.running_mean.mul_(row.prior).add_((1 - row.prior) * torch.from_numpy(mean))
            layer.running_var.mul_(row.prior).add_((1 - row.prior) * torch.from_numpy(variance))
    with torch.no_grad():
        return [m(x)[0] for m, x in zip(models, inputs, strict=True)]


def _layers_in_order(model: nn.Module, x: torch.Tensor) -> list[str]:
    import torch

    order: list[str] = []
    handles = [
        module.register_forward_pre_hook(lambda *_, name=name: order.append(name))
        for name, module in model.named_modules()
        if hasattr(module, "running_var")
    ]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    assert len(order) == len(set(order))
    return order


def _input_moments(layer: nn.Module, model: nn.Module, x: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    import torch

    seen: list[torch.Tensor] = []

    def stop(_: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
        seen.append(args[0])
        raise _Stop

    handle = layer.register_forward_pre_hook(stop)
    try:
        with torch.no_grad():
            model(x)
    except _Stop:
        pass
    finally:
        handle.remove()
    by_channel = seen[0].movedim(1, 0).flatten(1).numpy()
    return by_channel.mean(axis=1), by_channel.var(axis=1)


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
