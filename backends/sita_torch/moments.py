"""Measure the moments of a layer's input, and normalize it with other statistics."""

from __future__ import annotations

import functools
import math

import torch

from sita_adapters.statistics import output_affine

from .ops import TORCH, is_traced

_LONGEST_NORM = 1024
"""Squares that are added up at once in single precision; the relative error of their sum is then about 2e-7."""


def measure(x: torch.Tensor, n: int, first: int, stop: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and biased variance (B, stop − first, C) of features (N, C, …), in float32 or better.

    Each image has n entries; those from `first` up to `stop` are measured. Two passes: the mean, then the mean square
    of what is left. One pass would cancel where the mean is large.
    """
    rows = x if stop - first == n == 1 else x.view(-1, n, *x.shape[1:])[:, first:stop]
    rows = TORCH.precise(rows if rows.ndim > x.ndim else rows.unsqueeze(1))
    if x.ndim == 2:
        return rows, torch.zeros_like(rows)
    lines = rows.flatten(3)
    mean = lines.mean(-1, keepdim=True)
    return mean.squeeze(-1), _mean_square(lines - mean)


def _mean_square(lines: torch.Tensor) -> torch.Tensor:
    """Return the mean of the squares of every line."""
    if is_traced() or lines.requires_grad:
        return (lines * lines).mean(-1)
    count = lines.shape[-1]
    parts = _parts(count)
    if parts > 1:
        lines = lines.view(*lines.shape[:-1], parts, -1)
    squares: torch.Tensor = torch.linalg.vector_norm(lines, dim=-1).square_()
    return (squares.sum(-1) if parts > 1 else squares).div_(count)


@functools.cache
def _parts(count: int) -> int:
    """Return the smallest divisor that leaves parts of at most _LONGEST_NORM positions."""
    return next(parts for parts in range(1, count + 1) if count % parts == 0 and count // parts <= _LONGEST_NORM)


def positions_of(x: torch.Tensor) -> int:
    """Return the number of spatial positions of features (N, C, …)."""
    sizes = x.shape[2:]  # tensors in a trace
    return math.prod(sizes if torch._C._get_tracing_state() is None else map(int, sizes))


def normalize(  # noqa: PLR0917
    x: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    gamma: torch.Tensor | None,
    beta: torch.Tensor | None,
    epsilon: float,
) -> torch.Tensor:
    """Return γ · (x − m) / sqrt(v + ε) + β for features (N, C, …), statistics (N, C), and γ and β (C,).

    BatchNorm's own kernel does it in one pass, with every channel of every entry as one of its channels.
    """
    precise = TORCH.precise(x)
    compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()  # which fuses plain operations
    if compiled or not precise.is_contiguous() or x.ndim == 2:
        one, zero = mean.new_ones(()), mean.new_zeros(())
        scale, shift = output_affine(
            mean,
            variance,
            gamma=one if gamma is None else TORCH.cast(gamma, mean),
            beta=zero if beta is None else TORCH.cast(beta, mean),
            epsilon=epsilon,
            xp=TORCH.xp,
        )
        return TORCH.cast(affine(precise, scale, shift), x)
    weights = [None if each is None else _for_each_entry(TORCH.cast(each, mean), mean) for each in (gamma, beta)]
    flat = precise.reshape(1, -1, positions_of(x), 1)
    statistics = mean.reshape(-1), variance.reshape(-1)
    out = torch.batch_norm(flat, weights[0], weights[1], *statistics, False, 0.0, epsilon, True)
    return TORCH.cast(out.view(-1, *[int(size) for size in x.shape[1:]]), x)


def _for_each_entry(parameter: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """Return γ or β, (C,), for all N entries of the statistics (N, C): (N · C,)."""
    if is_traced():  # N may be open
        return (0 * mean + parameter).reshape(-1)
    return torch.cat([parameter] * mean.shape[0])  # the fastest way for few


def affine(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Return x · scale + shift for features (N, C, …), and scale and shift (N, C)."""
    if torch.compiler.is_compiling():  # or its loop over the positions computes roots and quotients at each
        scale, shift = torch.stack((scale, shift))
    column = (*scale.shape, *[1] * (x.ndim - 2))
    return torch.addcmul(shift.view(column), x, scale.view(column))
