"""The moments of every row and channel, by the cheapest exact kernel that the device and the layout have.

Eager torch.var_mean is one to two orders slower on the CPU than a BatchNorm layer, and E[x²] − E[x]² cancels. What is
taken instead always centres before it squares.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_EPSILON = 1e-12
"""Keeps 1/σ finite where a row's channel is constant; far below the ε of any layer."""


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
    if _is_channels_last(precise) and not (torch.is_grad_enabled() and x.requires_grad):  # it has no derivative
        moments = [torch.batch_norm_update_stats(row, None, None, 0.0) for row in torch.split(precise, 1)]
        return Features(
            precise,
            torch.stack([mean for mean, _ in moments]),
            torch.stack([variance for _, variance in moments]),
        )
    area = precise[0, 0].numel()
    standardised, mean, inverse = torch.native_group_norm(
        precise.contiguous(), None, None, count, channels, area, channels, _EPSILON
    )
    variance = (inverse**-2 - _EPSILON).clamp(min=0.0)
    return Features(precise, mean, variance, standardised, inverse)


def is_traced() -> bool:
    """Whether a compiler or exporter is following: it fuses plain operations itself, and cannot look at values."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def _is_channels_last(x: torch.Tensor) -> bool:
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.ndim in layouts and x.is_contiguous(memory_format=layouts[x.ndim]) and not x.is_contiguous()
