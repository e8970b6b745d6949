"""The shortest way through a layer: one row of every image departs from the source, by a rule, from few places.

That is the default recipe in eager PyTorch on the CPU. Between two convolutions nothing small is in a cache, so that
every operation costs some microseconds, whatever its size: there are as few as can be. A test holds what comes out
equal to what the general way gives.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from sita_adapters.engine import Call
from sita_adapters.shift import divergence_from_source, priors_by_shift
from sita_adapters.statistics import blend_with_source, sampled_lines

from .moments import TooLargeError, centred_moments, for_each_entry
from .ops import TORCH, is_traced

_lines = functools.cache(sampled_lines)


def is_lone_row(x: torch.Tensor, layer: Any, call: Call) -> bool:
    """Whether this way is open to a layer, for features x (N, C, …)."""
    return (
        call.plan.lone
        and call.places is not None
        and x.ndim > 2
        and x.shape[0] == call.entries
        and x.is_cpu
        and x.dtype is layer.running_mean.dtype is torch.float32
        and x.is_contiguous()
        and layer.weight is not None
        and layer.bias is not None
        and not (x.requires_grad and torch.is_grad_enabled())
        and not is_traced()
        and call.adaptation is not None
        and call.adaptation.recipe.share == "image"
    )


def normalise_lone_row(x: torch.Tensor, layer: Any, call: Call, name: str) -> torch.Tensor:
    """Return γ · (x − m) / sqrt(v + ε) + β with the blended statistics; raise a TooLargeError where they overflow."""
    plan, epsilon, (entries, channels, *space) = call.plan, layer.eps, x.shape
    area = math.prod(space)
    source = layer.running_mean, layer.running_var
    lines = _lines(tuple(space), call.places)
    row = x[plan.first :: plan.rows]
    estimated = centred_moments(row if lines.step == 1 else row[:, :, lines])
    divergence: Any = divergence_from_source(*estimated, *source, epsilon=epsilon, xp=TORCH.xp)
    total = (divergence if entries == plan.rows else divergence.sum()).item()
    if not math.isfinite(total):
        raise TooLargeError  # or there is a NaN: the general way tells
    if entries == plan.rows:
        divergence = total  # of one image: Python's own arithmetic is quicker
    priors: Any = priors_by_shift(divergence, channels, area, rules=call.rules)  # type: ignore[arg-type]
    if call.priors_set is not None:
        shifts = 0.5 / channels * divergence - 0.5
        call.priors_set.append((name, _column(priors, x), _column(shifts, x)))
    blended = blend_with_source(*estimated, *source, priors=priors, xp=TORCH.xp)
    mean, variance = (_of_all_rows(*each, call) for each in zip(blended, source, strict=True))
    gamma, beta = for_each_entry(layer.weight, x.shape[:2]), for_each_entry(layer.bias, x.shape[:2])
    flat = x.view(1, -1, area, 1)
    return torch.batch_norm(flat, gamma, beta, mean, variance, False, 0.0, epsilon, True).view(x.shape)


def _column(values: Any, x: torch.Tensor) -> torch.Tensor:
    """Return what was set for each image, a number where there is one image, as (B, 1, 1)."""
    return torch.as_tensor(values, dtype=x.dtype).view(-1, 1, 1)


def _of_all_rows(statistic: torch.Tensor, source: torch.Tensor, call: Call) -> torch.Tensor:
    """Return a statistic (B, C) of the departing row, and the source's (C,) of the others, as (B · R · C,)."""
    before, after = call.plan.first, call.plan.rows - call.plan.first - 1
    if not before + after:
        return statistic.view(-1)
    if statistic.shape[0] == 1:
        return torch.cat([*[source] * before, statistic.view(-1), *[source] * after])
    others = source.expand_as(statistic)
    return torch.cat([*[others] * before, statistic, *[others] * after], 1).view(-1)
