"""The moments of every entry and channel of a layer's input, and the normalisation with others.

Everything is read and written as few times as can be: a pass over the features costs as much as a BatchNorm layer, and
eager torch.var_mean ten times that. Outside this file there is `measure(x)`, and the Features that it returns.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch

from sita_adapters.statistics import output_affine, pool, sampled_lines, target

from .ops import TORCH, is_channels_last, is_traced

_Pair = tuple[torch.Tensor, torch.Tensor]

_LARGEST_RATIO = 4.0
"""Up to so many σ of mean, E[x²] − E[x]² is right to 1e-5 (seen: 7e-6). 1 channel in 100 or fewer has more."""

_LONGEST_NORM = 1024
"""So many squares are added up in single precision at once; the error of their sum is then about 2e-7."""

_LONGEST_SUM = 64
"""So many numbers are added up one by one in single precision; random rounding then costs about 2e-7 of their size."""


class TooLargeError(OverflowError):
    """Finite features whose squares are not: they have to be measured in double precision."""


@dataclass
class Features:
    """A layer's input x (N, C, …), with the mean and biased variance of each entry and channel, (N, C)."""

    x: torch.Tensor
    means: torch.Tensor
    variances: torch.Tensor

    @property
    def area(self) -> int:
        """How many places an entry has."""
        return math.prod([_known(size) for size in self.x.shape[2:]])

    def target(self, weights: torch.Tensor, origins: torch.Tensor) -> _Pair:
        """Return the statistics that the R rows of each image estimate together, (B, R, C), for weights (R, R).

        Of one line of weights, (1, R), these are (B, 1, C).
        """
        shape = (-1, weights.shape[1], int(self.means.shape[1]))
        means, variances = self.means.reshape(shape), self.variances.reshape(shape)
        return target(means, variances, weights=weights, origins=origins, xp=TORCH.xp)

    def normalise(self, statistics: _Pair, gamma: torch.Tensor, beta: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Return γ · (x − m) / sqrt(v + ε) + β for statistics (N, C), or (1, C) for all, and γ and β (C,)."""
        return self.affine(*output_affine(*statistics, gamma=gamma, beta=beta, epsilon=epsilon, xp=TORCH.xp))

    def affine(self, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Return x · scale + shift, both (N, C), or (1, C) for all."""
        if torch.compiler.is_compiling():  # or its loop over the places works out roots and quotients at every place
            scale, shift = torch.stack((scale, shift))
        column = (*scale.shape, *[1] * (self.x.ndim - 2))
        return torch.addcmul(shift.view(column), TORCH.precise(self.x), scale.view(column))


class _Contiguous(Features):
    """Features in eager PyTorch on the CPU, channels first.

    BatchNorm's own kernel normalises, with every channel of every entry for one of its channels: it is several times as
    fast as a multiply-add that broadcasts.
    """

    def normalise(self, statistics: _Pair, gamma: torch.Tensor, beta: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Return γ · (x − m) / sqrt(v + ε) + β by BatchNorm's kernel."""
        shape = statistics[0].shape
        return _batch_norm(self.x, *statistics, for_each_entry(gamma, shape), for_each_entry(beta, shape), epsilon)

    def affine(self, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Return x · scale + shift by BatchNorm's kernel."""
        return _batch_norm(self.x, torch.zeros_like(scale), torch.ones_like(scale), scale, shift, 0.0)


class _Whole(_Contiguous):
    """Such features, of which all places count.

    E[x²] − E[x]² takes two passes that only read, but it cancels: where the mean exceeds a few σ, the features are
    centred and measured again.
    """

    def __init__(self, x: torch.Tensor, measured: torch.Tensor) -> None:
        self.x = x
        self.lines = TORCH.precise(measured).flatten(2)
        self.means = self.lines.mean(2)
        self.squares = _sums_of_squares(self.lines)

    @functools.cached_property
    def variances(self) -> torch.Tensor:  # type: ignore[override]
        """E[x²] − E[x]², or E[(x − E[x])²] where the first would cancel."""
        area, square = self.lines.shape[2], self.means * self.means
        variances = self.squares / area - square
        room = _room(square, variances)
        if room is None:
            return variances
        _check_size(self.means, self.squares)
        cancelled = (room > 0).view(-1).nonzero().squeeze(1)
        channels = self.means.shape[1]
        centred = self.lines[cancelled // channels, cancelled % channels]
        centred.sub_(self.means.view(-1).index_select(0, cancelled).unsqueeze(1))
        variances.view(-1).index_copy_(0, cancelled, _sums_of_squares(centred).div_(area))
        return variances

    def target(self, weights: torch.Tensor, origins: torch.Tensor) -> _Pair:
        """Return the same in fewer operations, of the squares of all rows together, unless that would cancel.

        m = Σ_q w_q · m_q,   v = Σ_q w_q · E[x_q²] − m²
        """
        shape = (-1, weights.shape[1], self.means.shape[1])
        means, squares = self.means.view(shape), self.squares.view(shape)
        weights_of_images = weights.expand(means.shape[0], -1, -1)
        mean = torch.bmm(weights_of_images, means)
        square = mean * mean
        variance = torch.baddbmm(square, weights_of_images, squares, beta=-1, alpha=1 / self.lines.shape[2])
        room = _room(square, variance)
        if room is None:
            return mean, variance
        # Image by image: an answer must not depend on what else is in its batch, to the last bit.
        safe = (room <= 0).all(2, keepdim=True).all(1, keepdim=True)
        exact_mean, exact_variance = super().target(weights, origins)
        return torch.where(safe, mean, exact_mean), torch.where(safe, variance, exact_variance)


class _Exported(Features):
    """Features of an ONNX graph. The moments are exact on any runtime; not every one's LayerNormalization is.

    Where all places count, x becomes x − m on the way to them.
    """

    def __init__(self, x: torch.Tensor, sample: torch.Tensor) -> None:
        space = tuple(range(2, x.ndim))
        mean = sample.mean(space, keepdim=True)
        centred = sample - mean
        self.means, self.variances = mean.reshape(-1, int(x.shape[1])), (centred * centred).mean(space)
        self.is_centred = sample is x
        self.x = centred if self.is_centred else x

    def normalise(self, statistics: _Pair, gamma: torch.Tensor, beta: torch.Tensor, epsilon: float) -> torch.Tensor:
        """Return γ · (x − m) / sqrt(v + ε) + β by the runtime's BatchNormalization."""
        mean, variance = statistics
        zeros = mean * 0  # of a size that the graph does not know
        mean = mean - self.means if self.is_centred else mean
        return _batch_norm(self.x, mean, variance, zeros + gamma, zeros + beta, epsilon)

    def affine(self, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
        """Return x · scale + shift, which is (x − m) · scale + m · scale + shift."""
        zeros = scale * 0
        shift = self.means * scale + shift if self.is_centred else shift
        return _batch_norm(self.x, zeros, zeros + 1, scale, shift, 0.0)


def measure(x: torch.Tensor, places: int | None = None, entries: slice = slice(None)) -> Features:
    """Return features (N, C, …) with the moments of these entries, in float32 or more, whatever the precision of x.

    They come from about so many places, or from all; also where a graph leaves the sizes open.
    """
    traced = is_traced()
    if x.ndim == 2:
        precise = TORCH.precise(x)
        means = precise[entries]
        moments = means, torch.zeros_like(means)
        if x.is_cpu and not traced:
            _check_spread(*moments)
        return Features(precise, *moments)
    if not traced and x.is_cpu and not (x.requires_grad and torch.is_grad_enabled()):
        if is_channels_last(x):
            moments = _interleaved_moments(TORCH.precise(_sample(x, places, entries)))
            _check_spread(*moments)
            return Features(x, *moments)
        x = x.contiguous()
        if places is None:
            return _Whole(x, x[entries])
        moments = centred_moments(TORCH.precise(_sample(x, places, entries)))
        _check_spread(*moments)
        return _Contiguous(x, *moments)
    precise, sample = TORCH.precise(x), _sample(x, places, entries)
    if torch.onnx.is_in_onnx_export() and precise.dtype == torch.float32:
        return _Exported(precise, precise if sample is x else TORCH.precise(sample))
    moments = _shifted_moments(TORCH.precise(sample))
    if x.is_cpu and not traced:
        _check_spread(*moments)
    return Features(precise, *moments)


def _sample(x: torch.Tensor, places: int | None, entries: slice) -> torch.Tensor:
    """Return the lines of these entries that the moments of x come from; x itself where all do."""
    sample = _sampled(x, places)
    return sample if entries.step is None else sample[entries]


def _sampled(x: torch.Tensor, places: int | None) -> torch.Tensor:
    if places is None:
        return x
    sizes = tuple(map(_known, x.shape[2:]))
    # A compiler takes sizes for numbers, and compiles again for others; an exporter for all sizes takes all places.
    if not torch.compiler.is_compiling() and any(isinstance(size, torch.SymInt) for size in sizes):
        return x
    if any(isinstance(size, torch.Tensor) for size in sizes):
        return x.index_select(2, _traced_lines(sizes, places).to(x.device))
    lines = sampled_lines(sizes, places)
    return x if lines.step == 1 else x[:, :, lines]


def _traced_lines(sizes: tuple[Any, ...], places: int) -> torch.Tensor:
    """Return the numbers of the lines of `sampled_lines` in a trace, which may run at other sizes than its example."""
    first = torch.as_tensor(sizes[0])
    step = torch.minimum(torch.as_tensor(math.prod(sizes)) // places, first)
    step = torch.clamp(step - (step + 1) % 2, min=1)
    return torch.arange((first - 1) % step // 2, first, step)  # type: ignore[call-overload, no-any-return]


def _known(size: Any) -> Any:
    """Return a size as a number where a file is written that has one; a trace has sizes as tensors."""
    return int(size) if isinstance(size, torch.Tensor) and torch.onnx.is_in_onnx_export() else size


def for_each_entry(parameter: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return γ or β, (C,) or one number, for N entries of shape (N, C): (N · C,)."""
    if parameter.ndim and shape[0] <= 16:  # the cheapest way for few
        return torch.cat([parameter] * shape[0]) if shape[0] > 1 else parameter
    return parameter.expand(shape).reshape(-1)


def _room(square: torch.Tensor, variance: torch.Tensor) -> torch.Tensor | None:
    """Return m² − 16 · v, which is above 0 where E[x²] − E[x]² = v cancels; None where all is well."""
    room = torch.add(square, variance, alpha=-(_LARGEST_RATIO**2))
    least, most = torch.aminmax(room)
    fine = most.item() <= 0 and least.item() > -math.inf  # which a NaN is not, and squares may be infinite
    return None if fine else room


def _check_size(means: torch.Tensor, squares: torch.Tensor) -> None:
    """Raise where features are finite and their squares are not."""
    if squares.dtype != torch.float64 and (~squares.isfinite() & means.isfinite()).any():
        raise TooLargeError


def _check_spread(means: torch.Tensor, variances: torch.Tensor) -> None:
    """Raise where the variance of two rows taken together may not be finite, of which each by itself is."""
    _check_size(means, variances + 4 * means * means)


def centred_moments(x: torch.Tensor) -> _Pair:
    """Return mean and variance (N, C) in two passes, which cost little where places are few, and cannot cancel."""
    lines = x.flatten(2)
    means = lines.mean(2, keepdim=True)
    squares = _sums_of_squares(lines - means)
    return means.squeeze(2), squares.div_(lines.shape[2])


def _shifted_moments(x: torch.Tensor) -> _Pair:
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


def _interleaved_moments(x: torch.Tensor) -> _Pair:
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


def _sums_of_squares(lines: torch.Tensor) -> torch.Tensor:
    """Return Σx² of every line, from the norms of its parts where it is long."""
    parts = _parts(lines.shape[-1], _LONGEST_NORM)
    if parts == 1:
        return torch.linalg.vector_norm(lines, dim=-1).square_()  # type: ignore[no-any-return]
    norms = torch.linalg.vector_norm(lines.view(*lines.shape[:-1], parts, -1), dim=-1)
    return norms.square_().sum(-1)  # type: ignore[no-any-return]


@functools.cache
def _parts(area: int, longest: int) -> int:
    """Return the smallest divisor of the area that leaves parts of at most so many places."""
    return next(parts for parts in range(1, area + 1) if area % parts == 0 and area // parts <= longest)


def _batch_norm(  # noqa: PLR0917
    x: torch.Tensor,
    mean: torch.Tensor,
    variance: torch.Tensor,
    gamma: torch.Tensor,
    beta: torch.Tensor,
    epsilon: float,
) -> torch.Tensor:
    """Return γ · (x − m) / sqrt(v + ε) + β of contiguous x; γ, β and statistics are (N, C), or (1, C) for all."""
    # Only the first size may differ from call to call, so that a trace keeps the others.
    channels, *space = map(int, x.shape[1:])
    flat = x if mean.shape[0] == 1 else x.view(1, -1, math.prod(space), 1)
    gamma, beta, mean, variance = (each.reshape(-1) for each in (gamma, beta, mean, variance))
    return torch.batch_norm(flat, gamma, beta, mean, variance, False, 0.0, epsilon, True).view(-1, channels, *space)
