"""The moments of every row and channel, by the cheapest exact kernel that the device and the layout have.

Eager torch.var_mean is one to two orders slower on the CPU than a BatchNorm layer. E[x²] − E[x]² takes two passes that
only read, which is as cheap as it gets, but it cancels: where the mean exceeds a few σ, a kernel that centres before it
squares measures those channels again.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch

from sita_adapters.statistics import normalising, pool

from .arrays import TORCH

_Pair = tuple[torch.Tensor, torch.Tensor]
_MaybePair = tuple[torch.Tensor | None, torch.Tensor | None]

_EPSILON = 1e-12
"""Keeps 1/σ finite where a row's channel is constant; far below the ε of any layer."""

_LARGEST_RATIO = 4.0
"""Up to so many σ of mean, E[x²] − E[x]² is right to 1e-5 (seen: 7e-6). 1 channel in 100 or fewer has more."""

_LONGEST_NORM = 1024
"""So many squares are added up in single precision at once; the error of their sum is then about 2e-7."""

_SMALL_AREA = 16
"""Up to here BatchNorm's own kernel, which sums in double precision, costs no more than norms. Group norm's, the one
with a derivative, is off by 2.5e-5 of the variance of 2×2 places, where the mean is 100 σ."""

_LONGEST_SUM = 64
"""So many numbers are added up one by one in single precision; random rounding then costs about 2e-7 of their size."""


@dataclass
class Features:
    """Features x (N, C, …), with the mean and biased variance of each row and channel, (N, C).

    The moments are of `precise`, which is x in float32 or float64; x itself may have less, since BatchNorm's kernel
    works in float32 all the same.

    `squares`, where known, are Σx² over `area` places, from which a variance may come cheaper; then the rows' own
    wait to be asked for.

    `flat`: BatchNorm's own kernel can apply what comes of them, with every channel of every row as one of its
    channels. It is several times as fast as a multiply-add that broadcasts. `interleaved`: it is the other way round,
    which is so where channels are last and x is precise.
    """

    x: torch.Tensor
    precise: torch.Tensor
    mean: torch.Tensor
    known_variance: torch.Tensor | None = None
    squares: torch.Tensor | None = None
    area: int = 0
    flat: bool = False
    interleaved: bool = False

    @property
    def variance(self) -> torch.Tensor:
        """The biased variance of each row and channel."""
        if self.known_variance is None:
            assert self.squares is not None
            self.known_variance = _variances(self.precise, self.mean, self.squares)
        return self.known_variance

    def normalised(self, statistics: _Pair, gamma_beta: _MaybePair, epsilon: float) -> torch.Tensor:
        """Return γ · (x − m) / sqrt(v + ε) + β for γ and β (C,), and statistics (N, C), or (C,) for all alike."""
        mean, variance = statistics
        gamma, beta = gamma_beta
        if mean.ndim == 1 and not self.interleaved and not mean.requires_grad:  # by which the kernel has no derivative
            return _batch_norm(self.x, statistics, gamma_beta, epsilon)
        if mean.ndim == 2 and self.flat:
            return self._flat_batch_norm(statistics, (_tiled(gamma, mean), _tiled(beta, mean)), epsilon)
        scale, shift = normalising(
            mean,
            variance,
            gamma=1.0 if gamma is None else gamma,
            beta=0.0 if beta is None else beta,
            epsilon=epsilon,
            xp=TORCH.xp,
        )
        return self.affine(scale, shift)

    def affine(self, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Return x · scale + shift, both (N, C), or (C,) for all alike."""
        if self.flat:
            nothing, one = torch.zeros_like(scale), torch.ones_like(scale)
            if scale.ndim == 1:
                return _batch_norm(self.x, (nothing, one), (scale, shift), 0.0)
            return self._flat_batch_norm((nothing, one), (scale.reshape(-1), shift.reshape(-1)), 0.0)
        if torch.compiler.is_compiling():  # or its loop over the places works out roots and quotients at every place
            scale, shift = torch.stack((scale, shift))
        column = (*scale.shape, *[1] * (self.x.ndim - 2))
        return torch.addcmul(shift.view(column), self.precise, scale.view(column))

    def _flat_batch_norm(self, statistics: _Pair, gamma_beta: _MaybePair, epsilon: float) -> torch.Tensor:
        # Only the first size may differ from call to call, so that a trace keeps the others.
        channels, *space = map(int, self.x.shape[1:])
        flat = self.x.view(1, -1, math.prod(space), 1)
        return _batch_norm(flat, statistics, gamma_beta, epsilon).view(-1, channels, *space)


@dataclass
class Centred(Features):
    """Features of an ONNX graph, where x has become x − m on the way to its moments."""

    @classmethod
    def measured(cls, x: torch.Tensor) -> Centred:
        """Return features with moments that are exact on any runtime; not every one's LayerNormalization is."""
        space = tuple(range(2, x.ndim))
        mean = x.mean(space, keepdim=True)
        centred = x - mean
        variance = (centred * centred).mean(space)
        return cls(centred, centred, mean.reshape(-1, int(x.shape[1])), variance)

    def affine(self, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Return x · scale + shift, which is (x − m) · scale + m · scale + shift."""
        shift = self.mean * scale + shift
        nothing = scale * 0  # of a size that the graph does not know
        return self._flat_batch_norm((nothing, nothing + 1), (scale.reshape(-1), shift.reshape(-1)), 0.0)


def _tiled(values: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor | None:
    """Return values (C,) for every row, in one line."""
    if values is None:
        return None
    return values.expand(like.shape).reshape(-1)


def _batch_norm(x: torch.Tensor, statistics: _Pair, gamma_beta: _MaybePair, epsilon: float) -> torch.Tensor:
    mean, variance = statistics
    gamma, beta = gamma_beta
    return torch.batch_norm(x, gamma, beta, mean.reshape(-1), variance.reshape(-1), False, 0.0, epsilon, True)


def measure(x: torch.Tensor) -> Features:
    """Return the features with their moments, which are in float32 at the least, whatever precision x comes in."""
    if x.ndim == 2:
        precise = _precise(x)
        return Features(precise, precise, precise, torch.zeros_like(precise))
    if not x.is_cpu or is_traced():
        return _measured_by_a_compiler(x)
    if x.requires_grad and torch.is_grad_enabled():
        return _measured_with_a_derivative(_precise(x))
    channels_last = not x.is_contiguous() and _is_channels_last(x)
    if not channels_last:
        x = x.contiguous()
    precise = _precise(x)
    if channels_last:
        return Features(x, precise, *_interleaved_moments(precise), interleaved=precise is x)
    lines = precise.flatten(2)
    area = lines.shape[2]
    if area > _SMALL_AREA:
        return Features(x, precise, lines.mean(2), squares=_sums_of_squares(lines), area=area, flat=True)
    moments = torch.batch_norm_update_stats(lines.view(1, -1, area, 1), None, None, 0.0)
    mean, variance = (moment.view(lines.shape[:2]) for moment in moments)
    return Features(x, precise, mean, variance, flat=True)


def _precise(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _measured_by_a_compiler(x: torch.Tensor) -> Features:
    """Return moments in operations that a compiler, an exporter or a GPU has its own ways with."""
    x = _precise(x)
    if torch.onnx.is_in_onnx_export() and x.dtype == torch.float32:
        return Centred.measured(x)
    if is_traced():
        return Features(x, x, *_shifted_moments(x))
    variance, mean = torch.var_mean(x, dim=tuple(range(2, x.ndim)), correction=0)
    return Features(x, x, mean, variance)


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


def _measured_with_a_derivative(x: torch.Tensor) -> Features:
    if x[0, 0].numel() <= _SMALL_AREA:
        variance, mean = torch.var_mean(x, dim=tuple(range(2, x.ndim)), correction=0)
        return Features(x, x, mean, variance)
    return Features(x, x, *_group_norm_moments(x.contiguous()))


def exact_enough(mean: torch.Tensor, variance: torch.Tensor) -> torch.Tensor | None:
    """Return for which images E[x²] − E[x]², (B, R, C), does not cancel too much, (B, 1, 1); None for all of them."""
    room = torch.addcmul(variance, mean, mean, value=-(_LARGEST_RATIO**-2))
    if room.min().item() >= 0:  # which a NaN is not
        return None
    return (room >= 0).all(2, keepdim=True).all(1, keepdim=True)


def _variances(x: torch.Tensor, mean: torch.Tensor, squares: torch.Tensor) -> torch.Tensor:
    """Return E[x²] − E[x]² of contiguous features, where that does not cancel, and there E[(x − E[x])²]."""
    lines = x.view(mean.numel(), -1)
    area = lines.shape[1]
    square = mean * mean
    variance = squares / area - square
    cancelled = (square > _LARGEST_RATIO**2 * variance).view(-1).nonzero().squeeze(1)
    if len(cancelled):
        centred = lines.index_select(0, cancelled).sub_(mean.view(-1).index_select(0, cancelled).unsqueeze(1))
        variance.view(-1).index_copy_(0, cancelled, _sums_of_squares(centred).div_(area))
    return variance


def _sums_of_squares(lines: torch.Tensor) -> torch.Tensor:
    """Return Σx² of every line, from the norms of its parts where it is long."""
    parts = _parts(lines.shape[-1], _LONGEST_NORM)
    if parts == 1:
        norm = torch.linalg.vector_norm(lines, dim=-1)
        return norm * norm  # type: ignore[no-any-return]
    norms = torch.linalg.vector_norm(lines.view(*lines.shape[:-1], parts, -1), dim=-1)
    return norms.square_().sum(-1)  # type: ignore[no-any-return]


def _group_norm_moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and variance (N, C) of contiguous features. It writes standardised features on the way."""
    count, channels = x.shape[:2]
    area = x[0, 0].numel()
    _, mean, inverse = torch.native_group_norm(x, None, None, count, channels, area, channels, _EPSILON)
    return mean, (inverse**-2 - _EPSILON).clamp(min=0.0)


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
    means, variances = (torch.stack(each) for each in zip(*moments, strict=True))
    if parts == 1:
        return means, variances
    return pool(means.view(count, parts, channels), variances.view(count, parts, channels), axis=1, xp=TORCH.xp)


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
    return x.ndim in layouts and x.is_contiguous(memory_format=layouts[x.ndim])
