"""The moments of every row and channel, by the cheapest exact kernel that the device and the layout have.

Eager torch.var_mean is one to two orders slower on the CPU than a BatchNorm layer, and E[x²] − E[x]² cancels. What is
taken instead always centres before it squares.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from sita_adapters.statistics import pool

from .arrays import TORCH

_EPSILON = 1e-12
"""Keeps 1/σ finite where a row's channel is constant; far below the ε of any layer."""

_SMALL_AREA = 16
"""Up to here group norm's kernel is not exact enough (2.5e-5 of the variance of 2×2 places, where the mean is 100 σ);
BatchNorm's own, which sums in double precision, is, and costs no more on so few places."""

_LONGEST_SUM = 64
"""So many numbers are added up one by one in single precision; random rounding then costs about 2e-7 of their size."""


@dataclass
class Features:
    """Features x (N, C, …) in float32 or float64, with the mean and biased variance of each row and channel, (N, C).

    Some kernels give standardised features on the way, (x − mean) · inverse: memory of our own, to go on in.
    """

    x: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor
    standardised: torch.Tensor | None = None
    inverse: torch.Tensor | None = None

    def affine(self, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Return x · scale + shift, both (N, C)."""
        column = (*scale.shape, *[1] * (self.x.ndim - 2))
        if self.standardised is None or self.inverse is None:
            return torch.addcmul(shift.view(column), self.x, scale.view(column))
        factor = (scale / self.inverse).view(column)
        offset = torch.addcmul(shift, self.mean, scale).view(column)
        if self.standardised.requires_grad or factor.requires_grad:
            return torch.addcmul(offset, self.standardised, factor)
        return self.standardised.mul_(factor).add_(offset)


def measure(x: torch.Tensor) -> Features:
    """Return the features with their moments, in float32 at the least, whatever precision they come in."""
    precise = x if x.dtype == torch.float64 else x.float()
    count, channels = x.shape[:2]
    if x.ndim == 2:
        return Features(precise, precise, torch.zeros_like(precise))
    if x.device.type != "cpu" or is_traced():
        variance, mean = torch.var_mean(precise, dim=tuple(range(2, x.ndim)), correction=0)
        return Features(precise, mean, variance)
    area = precise[0, 0].numel()
    if not (torch.is_grad_enabled() and x.requires_grad):  # these kernels have no derivative
        if _is_channels_last(precise):
            return Features(precise, *_interleaved_moments(precise, area))
        if area <= _SMALL_AREA:
            flat = precise.reshape(1, count * channels, area, 1)
            mean, variance = torch.batch_norm_update_stats(flat, None, None, 0.0)
            return Features(precise, mean.view(count, channels), variance.view(count, channels))
    standardised, mean, inverse = torch.native_group_norm(
        precise.contiguous(), None, None, count, channels, area, channels, _EPSILON
    )
    variance = (inverse**-2 - _EPSILON).clamp(min=0.0)
    return Features(precise, mean, variance, standardised, inverse)


def _interleaved_moments(x: torch.Tensor, area: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and variance (N, C) of features that are channels last.

    The kernel adds up the places of a channel one after the other, in single precision: of 512² places the variance is
    off by 2e-3. So k neighbouring places are taken for k·C channels, each with the k-th part of the places, and the
    k parts are pooled.
    """
    count, channels = x.shape[:2]
    parts = _parts(area)
    places = x.movedim(1, -1).reshape(count, area // parts, 1, parts * channels).permute(0, 3, 1, 2)
    moments = [torch.batch_norm_update_stats(row, None, None, 0.0) for row in torch.split(places, 1)]
    means, variances = (torch.stack(each).view(count, parts, channels) for each in zip(*moments, strict=True))
    return pool(means, variances, axis=1, xp=TORCH.xp)


@functools.cache
def _parts(area: int) -> int:
    """Return the smallest divisor of the area that leaves parts of at most _LONGEST_SUM places."""
    return next(parts for parts in range(1, area + 1) if area % parts == 0 and area // parts <= _LONGEST_SUM)


def is_traced() -> bool:
    """Whether a compiler or exporter is following: it fuses plain operations itself, and cannot look at values."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def _is_channels_last(x: torch.Tensor) -> bool:
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.ndim in layouts and x.is_contiguous(memory_format=layouts[x.ndim]) and not x.is_contiguous()
