"""The moments of every row and channel, by the cheapest exact kernel that the device and the layout have.

Eager torch.var_mean is one to two orders slower on the CPU than a BatchNorm layer. E[x²] − E[x]² takes two passes that
only read, which is as cheap as it gets, but it cancels: where the mean exceeds a few σ, a kernel that centres before it
squares measures those channels again.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from sita_adapters.statistics import pool

from .arrays import TORCH

_EPSILON = 1e-12
"""Keeps 1/σ finite where a row's channel is constant; far below the ε of any layer."""

_LARGEST_RATIO = 4.0
"""Up to so many σ of mean, E[x²] − E[x]² is right to 1e-5 (seen: 7e-6). 1 channel in 100 or fewer has more."""

_LONGEST_NORM = 1024
"""So many squares are added up in single precision at once; the error of their sum is then about 2e-7."""

_SMALL_AREA = 16
"""Up to here group norm's kernel is not exact enough (2.5e-5 of the variance of 2×2 places, where the mean is 100 σ);
BatchNorm's own, which sums in double precision, is, and costs no more on so few places."""

_LONGEST_SUM = 64
"""So many numbers are added up one by one in single precision; random rounding then costs about 2e-7 of their size."""


@dataclass
class Features:
    """Features x (N, C, …) in float32 or float64, with the mean and biased variance of each row and channel, (N, C).

    `in_one_pass`: BatchNorm's own kernel can apply what comes of them, with every channel of every row as one of its
    channels. It is several times as fast as a multiply-add that broadcasts.
    """

    x: torch.Tensor
    mean: torch.Tensor
    variance: torch.Tensor
    in_one_pass: bool = False

    def affine(self, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Return x · scale + shift, both (N, C)."""
        if self.in_one_pass:
            nothing, one = torch.zeros_like(scale).view(-1), torch.ones_like(scale).view(-1)
            flat = self.x.view(1, scale.numel(), -1, 1)
            scaled = torch.batch_norm(flat, scale.view(-1), shift.view(-1), nothing, one, False, 0.0, 0.0, False)
            return scaled.view(self.x.shape)
        column = (*scale.shape, *[1] * (self.x.ndim - 2))
        return torch.addcmul(shift.view(column), self.x, scale.view(column))


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
    if torch.is_grad_enabled() and x.requires_grad:
        return Features(precise, *_group_norm_moments(precise.contiguous()))  # the only kernel here with a derivative
    if _is_channels_last(precise):
        return Features(precise, *_interleaved_moments(precise, area))
    precise = precise.contiguous()
    if area > _SMALL_AREA:
        return Features(precise, *_norm_moments(precise), in_one_pass=True)
    mean, variance = torch.batch_norm_update_stats(precise.view(1, count * channels, area, 1), None, None, 0.0)
    return Features(precise, mean.view(count, channels), variance.view(count, channels), in_one_pass=True)


def _group_norm_moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and variance (N, C) of contiguous features. It writes standardised features on the way."""
    count, channels = x.shape[:2]
    area = x[0, 0].numel()
    _, mean, inverse = torch.native_group_norm(x, None, None, count, channels, area, channels, _EPSILON)
    return mean, (inverse**-2 - _EPSILON).clamp(min=0.0)


def _norm_moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and variance (N, C) of contiguous features: v = E[x²] − E[x]², where that does not cancel."""
    count, channels = x.shape[:2]
    flat = x.view(count * channels, -1)
    area = flat.shape[1]
    mean = flat.mean(1)
    squares = torch.linalg.vector_norm(flat.view(len(flat), _parts(area, _LONGEST_NORM), -1), dim=2).square_()
    squared_mean = mean * mean
    variance = squares.sum(1).div_(area).sub_(squared_mean)
    cancelled = (squared_mean > _LARGEST_RATIO**2 * variance).nonzero().squeeze(1)
    if len(cancelled):
        rows = flat[cancelled]
        centred = rows - rows.mean(1, keepdim=True)
        norms = torch.linalg.vector_norm(centred.view(len(rows), _parts(area, _LONGEST_NORM), -1), dim=2).square_()
        variance[cancelled] = norms.sum(1).div_(area).sub_(centred.mean(1).square_())
    return mean.view(count, channels), variance.view(count, channels)


def _interleaved_moments(x: torch.Tensor, area: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and variance (N, C) of features that are channels last.

    The kernel adds up the places of a channel one after the other, in single precision: of 512² places the variance is
    off by 2e-3. So k neighbouring places are taken for k·C channels, each with the k-th part of the places, and the
    k parts are pooled.
    """
    count, channels = x.shape[:2]
    parts = _parts(area, _LONGEST_SUM)
    places = x.movedim(1, -1).reshape(count, area // parts, 1, parts * channels).permute(0, 3, 1, 2)
    moments = [torch.batch_norm_update_stats(row, None, None, 0.0) for row in torch.split(places, 1)]
    means, variances = (torch.stack(each).view(count, parts, channels) for each in zip(*moments, strict=True))
    return pool(means, variances, axis=1, xp=TORCH.xp)


@functools.cache
def _parts(area: int, longest: int) -> int:
    """Return the smallest divisor of the area that leaves parts of at most so many places."""
    return next(parts for parts in range(1, area + 1) if area % parts == 0 and area // parts <= longest)


def is_traced() -> bool:
    """Whether a compiler or exporter is following: it fuses plain operations itself, and cannot look at values."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    )


def _is_channels_last(x: torch.Tensor) -> bool:
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.ndim in layouts and x.is_contiguous(memory_format=layouts[x.ndim]) and not x.is_contiguous()
