"""The arithmetic of the statistics: from the moments of every row to the statistics that normalize it.

Arrays are (images, rows, channels). Variances are biased.
"""

from __future__ import annotations

from typing import Any

from .ops import Array, Ops


def pool(means: Array, variances: Array, *, axis: int, ops: Ops) -> tuple[Array, Array]:
    """Return the moments of several parts of equal size, pooled along an axis.

    m = mean(m_i),   v = mean(v_i + (m_i − m)²)
    """
    mean = ops.mean(means, axis=axis, keepdims=True)
    variance = ops.mean(variances + (means - mean) ** 2, axis=axis, keepdims=False)
    return ops.sum(mean, axis=axis, keepdims=False), variance


def target(means: Array, variances: Array, *, weights: Array, references: Array, ops: Ops) -> tuple[Array, Array]:
    """Return the target statistics of every row, (B, R, C) (paper, eq. 3).

    m_t = Σ_q w_q · m_q,   v_t = Σ_q w_q · (v_q + (m_q − m_t)²)

    `means` and `variances` are (B, R, C), `weights` (R, R). The spread between rows is computed as
    Σ_q w_q · d_q² − (Σ_q w_q · d_q)² with d_q = m_q − m_o. The reference row o is one of the rows with w_q > 0: line r
    of `references`, (R, R), has a 1 there. Without a reference, large means would cancel and lose precision.
    """
    reference = ops.matmul(references, means)
    offsets = means - reference
    offset = ops.matmul(weights, offsets)
    variance = ops.matmul(weights, variances + offsets * offsets) - offset * offset
    # Rounding may leave it below 0. (Not `maximum`: compiled by XLA, the maximum of NaN and 0 is 0.)
    return reference + offset, ops.where(variance < 0, 0.0, variance)


def blend_with_source(
    mean: Array, variance: Array, source_mean: Array, source_variance: Array, *, priors: tuple[Any, Any], ops: Ops
) -> tuple[Array, Array]:
    """Return the statistics to normalize every row with (paper, eq. 4).

    m = λ · m_s + (1 − λ) · m_t,   v = λ · v_s + (1 − λ) · v_t

    `priors` are λ of the mean and of the variance, and broadcast to (B, R, C); the source's statistics are (C,). λ = 1
    gives the source's statistics exactly.
    """
    of_mean, of_variance = priors
    return ops.lerp(mean, source_mean, of_mean), ops.lerp(variance, source_variance, of_variance)


def input_affine(
    mean: Array, variance: Array, *, source_mean: Array, source_variance: Array, epsilon: float, ops: Ops
) -> tuple[Array, Array]:
    """Return the scale and shift of a layer's input that make the layer normalize with (mean, variance).

    scale = sqrt((v_s + ε) / (v + ε)),   shift = m_s − m · scale

    Then (x · scale + shift − m_s) / sqrt(v_s + ε) = (x − m) / sqrt(v + ε), and the layer itself is unchanged.
    """
    scale = ops.sqrt((source_variance + epsilon) / (variance + epsilon))
    return scale, source_mean - mean * scale


def output_affine(
    mean: Array, variance: Array, *, gamma: Array, beta: Array, epsilon: float, ops: Ops
) -> tuple[Array, Array]:
    """Return the scale and shift for which x · scale + shift is a layer's output with (mean, variance).

    scale = γ / sqrt(v + ε),   shift = β − m · scale
    """
    scale = gamma / ops.sqrt(variance + epsilon)
    return scale, beta - mean * scale
