"""The statistics' algebra: from the moments of every row to the normalisation of every row.

Arrays are (images, rows, channels), of any namespace `xp` with numpy's names: numpy itself, array_api_compat.torch,
keras.ops. Variances are biased throughout.
"""

from __future__ import annotations

from typing import Any

from .arrays import Array


def pool(means: Array, variances: Array, *, axis: int, xp: Any) -> tuple[Array, Array]:
    """Return the moments of equally large parts taken together.

    m = mean(m_i),   v = mean(v_i + (m_i − m)²)
    """
    mean = xp.mean(means, axis=axis, keepdims=True)
    variance = xp.mean(variances + (means - mean) ** 2, axis=axis, keepdims=False)
    return xp.sum(mean, axis=axis, keepdims=False), variance


def blend(
    means: Array,
    variances: Array,
    *,
    weights: Array,
    priors: Array,
    source_mean: Array,
    source_variance: Array,
    xp: Any,
) -> tuple[Array, Array]:
    """Return the statistics that every row is normalised with (paper, eq. 3 and 4).

    m_t = Σ_q w_q · m_q,   v_t = Σ_q w_q · (v_q + (m_q − m_t)²)
    m   = λ · m_s + (1 − λ) · m_t,   v = λ · v_s + (1 − λ) · v_t

    `means` and `variances` are (B, R, C), `weights` (R, R), `priors` (R, 1), the source's statistics (C,). The spread
    between rows is Σ_q w_q · d_q² − (Σ_q w_q · d_q)² with d_q = m_q − m_0: measured from the image's own first
    row it cannot cancel the way moments about zero do, and no (B, R, R, C) array is made.
    """
    origin = means[:, :1]
    offsets = means - origin
    target_offset = xp.matmul(weights, offsets)
    spread = xp.matmul(weights, variances + offsets * offsets) - target_offset * target_offset
    target_variance = xp.maximum(spread, 0.0)
    target_mean = origin + target_offset
    # Written so that λ = 1 gives the source's statistics exactly.
    complement = 1 - priors
    mean = priors * source_mean + complement * target_mean
    variance = priors * source_variance + complement * target_variance
    return mean, variance


def rewriting(
    mean: Array, variance: Array, *, source_mean: Array, source_variance: Array, epsilon: float, xp: Any
) -> tuple[Array, Array]:
    """Return the scale and shift which, applied to a layer's input, make it normalise with (mean, variance).

    scale = sqrt((v_s + ε) / (v + ε)),   shift = m_s − m · scale

    so that (x · scale + shift − m_s) / sqrt(v_s + ε) = (x − m) / sqrt(v + ε): the layer itself stays untouched.
    """
    scale = xp.sqrt((source_variance + epsilon) / (variance + epsilon))
    return scale, source_mean - mean * scale


def normalising(
    mean: Array, variance: Array, *, gamma: Array, beta: Array, epsilon: float, xp: Any
) -> tuple[Array, Array]:
    """Return the scale and shift that do a layer's whole work with (mean, variance): out = x · scale + shift.

    scale = γ / sqrt(v + ε),   shift = β − m · scale
    """
    scale = gamma / xp.sqrt(variance + epsilon)
    return scale, beta - mean * scale
