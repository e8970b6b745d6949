"""AugBN in float64, from the method's equation: one forward pass for each row, all of them in lockstep.

    m_t = Σ_i w_i · mean_i,   v_t = Σ_i w_i · (var_i + (mean_i − m_t)²),   w = (½, 1/2n, …, 1/2n)
    m = λ · m_s + (1 − λ) · m_t,   v = λ · v_s + (1 − λ) · v_t

Each row (the image, and each of its views) runs as a batch of one, in a thread with a copy of the model. At
every normalization the threads wait for each other and exchange means and variances. So nothing is assumed about how a
model treats its batch, and nothing can mix rows but the equation above.
"""

from __future__ import annotations

import copy
import itertools
import threading
from typing import Any

import torch
from torch import nn

from .torch_layers import Found, Statistics, changed, moments, statistics_of


def views_of(image: torch.Tensor) -> list[torch.Tensor]:
    """Return an image (1, …, h, w) and its two views, as the method's description names them: both quarter turns of a
    square; of any other, it upside down and mirrored."""
    if image.shape[-1] == image.shape[-2]:
        return [image, torch.rot90(image, 1, (-2, -1)), torch.rot90(image, -1, (-2, -1))]
    return [image, image.flip(-2), image.flip(-1)]


class Exchange:
    """Where the rows of an image meet at every normalization."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.barrier = threading.Barrier(rows, timeout=120)
        self.brought: dict[tuple[int, int], Statistics] = {}

    def target(self, call: int, row: int, own: Statistics) -> Statistics:
        """Bring a row's own statistics to the call-th normalization; return those of all rows together."""
        self.brought[call, row] = own
        self.barrier.wait()
        weights = [0.5] + [0.5 / (self.rows - 1)] * (self.rows - 1)
        rows = [self.brought[call, each] for each in range(self.rows)]
        mean = sum(w * m for w, (m, _) in zip(weights, rows, strict=True))
        variance = sum(w * (v + (m - mean) ** 2) for w, (m, v) in zip(weights, rows, strict=True))
        return mean, variance  # type: ignore[return-value]


def augbn(source: nn.Module, image: torch.Tensor, prior: float, found: Found, skipped: set[str]) -> Any:
    """Return the output of a float64 source for one image (1, …), adapted to it except for the skipped layers."""
    views = views_of(image)
    exchange = Exchange(len(views))
    outputs: dict[int, Any] = {}
    errors: list[BaseException] = []
    # The weights are shared; what a frozen layer holds in buffers, and what a model caches, is each copy's own.
    copies = [copy.deepcopy(source, {id(each): each for each in source.parameters()}) for _ in views]

    def run(row: int) -> None:
        calls = itertools.count()
        modules = dict(copies[row].named_modules())
        kept = {id(statistics[0]) for name in skipped if (statistics := statistics_of(modules[name]))}

        def blend(x: torch.Tensor, statistics: Statistics) -> Statistics:
            if id(statistics[0]) in kept:
                return statistics
            target = exchange.target(next(calls), row, moments(x, statistics[0].numel()))
            mean, variance = (prior * s.reshape(-1) + (1 - prior) * t for s, t in zip(statistics, target, strict=True))
            return mean, variance

        try:
            with torch.no_grad(), changed(copies[row], found.by_itself, blend):
                outputs[row] = copies[row](views[row])
        except BaseException as error:
            errors.append(error)
            exchange.barrier.abort()

    threads = [threading.Thread(target=run, args=(row,)) for row in range(len(views))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    causes = [error for error in errors if not isinstance(error, threading.BrokenBarrierError)]
    if errors:
        raise (causes or errors)[0]
    return outputs[0]
