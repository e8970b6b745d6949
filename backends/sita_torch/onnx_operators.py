"""What an ONNX graph says in one operator, where a trace of PyTorch's operations would say it in several."""

from __future__ import annotations

import math
from typing import Any

import torch

_EPSILON = 1e-12
"""Keeps 1/σ finite where a row's channel is constant; far below the ε of any layer."""


def standardised(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (x − m) / sqrt(v) for the moments of every row and channel of (N, C, …), and m and v, (N, C).

    ONNX's LayerNormalization puts out all three. Runtimes have one careful kernel for it, which takes two thirds of the
    time of a mean, a difference, a square and another mean.
    """
    channels, *space = map(int, x.shape[1:])  # a graph keeps all sizes but the first
    area = math.prod(space)
    z, mean, variance = _Standardise.apply(x.reshape(-1, channels, area), channels, area)  # type: ignore[no-untyped-call]
    return z.reshape(-1, channels, *space), mean, variance


class _Standardise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, lines: torch.Tensor, channels: int, area: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Do it in PyTorch, while the graph is traced."""
        variance, mean = torch.var_mean(lines, dim=2, correction=0, keepdim=True)
        variance += _EPSILON
        return (lines - mean) / torch.sqrt(variance), mean.squeeze(2), variance.squeeze(2)

    @staticmethod
    def symbolic(graph: Any, lines: Any, channels: int, area: int) -> tuple[Any, Any, Any]:
        """Return the same as nodes of an ONNX graph."""
        one = graph.op("Constant", value_t=torch.ones(area))
        rows = graph.op("Constant", value_t=torch.tensor([-1, channels]))
        z, mean, inverse = graph.op("LayerNormalization", lines, one, axis_i=-1, epsilon_f=_EPSILON, outputs=3)
        variance = graph.op("Reciprocal", graph.op("Mul", inverse, inverse))
        return z, graph.op("Reshape", mean, rows), graph.op("Reshape", variance, rows)
