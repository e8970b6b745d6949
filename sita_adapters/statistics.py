"""The statistics' algebra: from the moments of every row to the normalisation of every row.

Arrays are (images, rows, channels), of any namespace `xp` with numpy's names: numpy itself, array_api_compat.torch,
keras.ops. Variances are biased throughout.
"""

from __future__ import annotations

import math
from typing import Any

from .ops import Array

_LARGEST = 3e38
"""What a variance in single precision may be."""


def sampled_lines(sizes: tuple[int, ...], places: int | None) -> slice:
    """Return which lines, along the first axis of features with these sizes, have about so many places together.

    They are an odd number of lines apart, since an even one would beat with the blocks of a JPEG, and as far from one
    edge as from the other. Features with no more places than that are taken whole.
    """
    first, *others = sizes
    step = 1 if places is None else first * math.prod(others) // places
    step = max(1, min(step, first) - (min(step, first) + 1) % 2)  # odd
    return slice((first - 1) % step // 2, None, step)


def pool(means: Array, variances: Array, *, axis: int, xp: Any) -> tuple[Array, Array]:
    """Return the moments of equally large parts taken together.

    m = mean(m_i),   v = mean(v_i + (m_i − m)²)
    """
    mean = xp.mean(means, axis=axis, keepdims=True)
    variance = xp.mean(variances + (means - mean) ** 2, axis=axis, keepdims=False)
    return xp.sum(mean, axis=axis, keepdims=False), variance


def target(means: Array, variances: Array, *, weights: Array, origins: Array, xp: Any) -> tuple[Array, Array]:
    """Return the statistics that the rows estimate together, for every row (paper, eq. 3).

    m_t = Σ_q w_q · m_q,   v_t = Σ_q w_q · (v_q + (m_q − m_t)²)

    `means` and `variances` are (B, R, C), `weights` (R, R), or (1, R) where one line serves all rows. The spread of the
    rows is Σ_q w_q · d_q² − (Σ_q w_q · d_q)² with d_q = m_q − m_o, where o is a row that they all draw from (`origins`,
    (R,), as in the Plan): it cannot cancel the way moments about zero do, and no (B, R, R, C) array is made.
    """
    origin = xp.take(means, origins, axis=1)
    offsets = means - origin
    offset = xp.matmul(weights, offsets)
    spread = xp.matmul(weights, variances + offsets * offsets) - offset * offset
    # Rounding may leave it below 0. (Not by `maximum`: compiled by XLA, that of NaN and 0 is 0.)
    return origin[:, : weights.shape[0]] + offset, xp.where(spread < 0, 0.0, spread)


def blend_with_source(
    mean: Array, variance: Array, source_mean: Array, source_variance: Array, *, priors: Any, xp: Any
) -> tuple[Array, Array]:
    """Return the statistics that every row is normalised with (paper, eq. 4).

    m = λ · m_s + (1 − λ) · m_t,   v = λ · v_s + (1 − λ) · v_t

    `priors` are (R, 1) or a number, the source's statistics (C,). λ = 1 gives the source's statistics exactly.
    """
    mix = getattr(xp, "lerp", _lerp)
    return mix(mean, source_mean, priors), mix(variance, source_variance, priors)


def _lerp(start: Array, end: Array, weight: Array) -> Array:
    return (1 - weight) * start + weight * end


def mark_overflow(variance: Array, xp: Any) -> Array:
    """Return NaN for what is infinite: x / sqrt(∞) would be 0, which looks like an answer."""
    return xp.where(variance < _LARGEST, variance, float("nan"))


def input_affine(
    mean: Array, variance: Array, *, source_mean: Array, source_variance: Array, epsilon: float, xp: Any
) -> tuple[Array, Array]:
    """Return the scale and shift which, applied to a layer's input, make the layer normalise with (mean, variance).

    scale = sqrt((v_s + ε) / (v + ε)),   shift = m_s − m · scale

    so that (x · scale + shift − m_s) / sqrt(v_s + ε) = (x − m) / sqrt(v + ε): the layer itself stays untouched.
    """
    scale = xp.sqrt((source_variance + epsilon) / (variance + epsilon))
    return scale, source_mean - mean * scale


def output_affine(
    mean: Array, variance: Array, *, gamma: Array, beta: Array, epsilon: float, xp: Any
) -> tuple[Array, Array]:
    """Return the scale and shift that give a layer's output with (mean, variance): out = x · scale + shift.

    scale = γ / sqrt(v + ε),   shift = β − m · scale
    """
    scale = gamma / xp.sqrt(variance + epsilon)
    return scale, beta - mean * scale
