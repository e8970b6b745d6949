"""The moments of every entry and channel of a layer's input, and the normalisation with others, each read and written
as few times as can be.

Outside this file there is `measure(x)`, and what it returns: means, variances, `normalise` and `affine`.

Eager torch.var_mean is one to two orders slower on the CPU than a BatchNorm layer. E[x²] − E[x]² takes two passes that
only read, but it cancels: where the mean exceeds a few σ, those channels are centred and measured again.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

from sita_adapters.statistics import output_affine, pool

from .ops import TORCH, is_channels_last, is_traced

_LARGEST_RATIO = 4.0
"""Up to so many σ of mean, E[x²] − E[x]² is right to 1e-5 (seen: 7e-6). 1 channel in 100 or fewer has more."""

_LONGEST_NORM = 1024
"""So many squares are added up in single precision at once; the error of their sum is then about 2e-7."""

_LONGEST_SUM = 64
"""So many numbers are added up one by one in single precision; random rounding then costs about 2e-7 of their size."""


@dataclass
class Features:
    """A layer's input x (N, C, …), with the mean and biased variance of each entry and channel, (N, C).

    `flat`: x is contiguous, so that BatchNorm's own kernel can take every channel of every entry for one of its
    channels. It is several times as fast as a multiply-add that broadcasts.
    """

    x: torch.Tensor
    means: torch.Tensor
    variances: torch.Tensor
    flat: bool = False

    def normalise(
        self,
        mean: torch.Tensor,
        variance: torch.Tensor,
        gamma: torch.Tensor | None,
        beta: torch.Tensor | None,
        epsilon: float,
    ) -> torch.Tensor:
        """Return γ · (x − m) / sqrt(v + ε) + β for statistics (N, C), and γ and β (C,)."""
        if self.flat:
            return self._batch_norm(mean, variance, _tile(gamma, mean), _tile(beta, mean), epsilon)
        scale, shift = output_affine(
            mean,
            variance,
            gamma=1.0 if gamma is None else gamma,
            beta=0.0 if beta is None else beta,
            epsilon=epsilon,
            xp=TORCH.xp,
        )
        return self.affine(scale, shift)

    def affine(self, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Return x · scale + shift, both (N, C)."""
        if self.flat:
            nothing = scale * 0  # of a size that a graph may not know
            return self._batch_norm(nothing, nothing + 1, scale.reshape(-1), shift.reshape(-1), 0.0)
        if torch.compiler.is_compiling():  # or its loop over the places works out roots and quotients at every place
            scale, shift = torch.stack((scale, shift))
        column = (*scale.shape, *[1] * (self.x.ndim - 2))
        return torch.addcmul(shift.view(column), TORCH.precise(self.x), scale.view(column))

    def _batch_norm(
        self,
        mean: torch.Tensor,
        variance: torch.Tensor,
        gamma: torch.Tensor | None,
        beta: torch.Tensor | None,
        epsilon: float,
    ) -> torch.Tensor:
        # Only the first size may differ from call to call, so that a trace keeps the others.
        channels, *space = map(int, self.x.shape[1:])
        flat = self.x.view(1, -1, math.prod(space), 1)
        out = torch.batch_norm(flat, gamma, beta, mean.reshape(-1), variance.reshape(-1), False, 0.0, epsilon, True)
        return out.view(-1, channels, *space)


@dataclass
class _Centred(Features):
    """Features of an ONNX graph, where x has become x − m on the way to its moments."""

    def affine(self, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Return x · scale + shift, which is (x − m) · scale + m · scale + shift."""
        return Features(self.x, self.means, self.variances, flat=True).affine(scale, self.means * scale + shift)


def measure(x: torch.Tensor) -> Features:
    """Return features (N, C, …) with their moments, in float32 or more, whatever the precision of x."""
    precise = TORCH.precise(x)
    if x.ndim == 2:
        return Features(precise, precise, torch.zeros_like(precise))
    if torch.onnx.is_in_onnx_export() and precise.dtype == torch.float32:
        return _measure_for_onnx(precise)
    if not x.is_cpu or is_traced() or (x.requires_grad and torch.is_grad_enabled()):
        return Features(precise, *_shifted_moments(precise))
    if is_channels_last(x):
        return Features(x, *_interleaved_moments(precise))
    x, precise = x.contiguous(), precise.contiguous()
    return Features(x, *_flat_moments(precise.flatten(2)), flat=True)


def _flat_moments(lines: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return E[x] and E[x²] − E[x]² of contiguous lines (N, C, A); E[(x − E[x])²] where the first would cancel."""
    area = lines.shape[2]
    means = lines.mean(2)
    squares = means * means
    variances = _sums_of_squares(lines) / area - squares
    cancelled = (squares > _LARGEST_RATIO**2 * variances).view(-1).nonzero().squeeze(1)
    if len(cancelled):
        centred = lines.view(-1, area).index_select(0, cancelled)
        centred.sub_(means.view(-1).index_select(0, cancelled).unsqueeze(1))
        variances.view(-1).index_copy_(0, cancelled, _sums_of_squares(centred).div_(area))
    return means, variances


def _sums_of_squares(lines: torch.Tensor) -> torch.Tensor:
    """Return Σx² of every line, from the norms of its parts where it is long."""
    parts = _parts(lines.shape[-1], _LONGEST_NORM)
    norms = torch.linalg.vector_norm(lines.view(*lines.shape[:-1], parts, -1), dim=-1)
    return norms.square_().sum(-1)  # type: ignore[no-any-return]


def _interleaved_moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and variance (N, C) of features that are channels last.

    The kernel adds up the places of a channel one after the other, in single precision: of 512² places the variance is
    off by 2e-3. So k neighbouring places are taken for k·C channels, each with the k-th part of the places, and the
    k parts are pooled.
    """
    count, channels = x.shape[:2]
    area = x[0, 0].numel()
    parts = _parts(area, _LONGEST_SUM)
    places = x.movedim(1, -1).reshape(count, area // parts, 1, parts * channels).permute(0, 3, 1, 2)
    moments = [torch.batch_norm_update_stats(row, None, None, 0.0) for row in torch.split(places, 1)]
    means, variances = (torch.stack(each).view(count, parts, channels) for each in zip(*moments, strict=True))
    return pool(means, variances, axis=1, xp=TORCH.xp)


def _shifted_moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and variance (N, C) from Σ(x − k) and Σ(x − k)², which a compiler adds up in one reading.

    k is the mean of the first 16th of the places. By Cauchy–Schwarz the mean of S places is within σ · sqrt(A / S) of
    that of all A: whatever the image, 4 σ at the most, where little is lost to cancellation (_LARGEST_RATIO). No size
    is looked at, so that what is traced at one size of images runs at others.
    """
    lines = x.flatten(2)
    sixteenth = (lines.shape[2] + 15) // 16
    shift = lines[:, :, :sixteenth].mean(2, keepdim=True)
    shifted = lines - shift
    mean = shifted.mean(2)
    variance = (shifted * shifted).mean(2) - mean * mean
    return mean + shift.squeeze(2), variance.clamp(min=0.0)


def _measure_for_onnx(x: torch.Tensor) -> Features:
    """Return moments that are exact on any runtime; not every one's LayerNormalization is."""
    space = tuple(range(2, x.ndim))
    mean = x.mean(space, keepdim=True)
    centred = x - mean
    return _Centred(centred, mean.reshape(-1, int(x.shape[1])), (centred * centred).mean(space))


@functools.cache
def _parts(area: int, longest: int) -> int:
    """Return the smallest divisor of the area that leaves parts of at most so many places."""
    return next(parts for parts in range(1, area + 1) if area % parts == 0 and area // parts <= longest)


def _tile(values: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    """Return values (C,) for every entry, in one line."""
    return None if values is None else values.expand(like.shape).reshape(-1)
