"""λ from the measured shift: how far an image's statistics are from the source's, layer by layer.

A layer whose statistics match the source's keeps them; one that is far off takes the image's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

from .errors import RecipeError
from .ops import Array

HALF_AREA = 200.0
"""A_½: statistics of so many positions count half. It also weighs the layers in an image's shift, D."""


@dataclass(frozen=True, kw_only=True)
class ByShift:
    """A prior that every layer sets for every image during the forward pass.

        λ = 1 − s · d / (d + d_½) · A / (A + A_½)

    d is the shift that the layer measures, the mean over its channels of KL(N(m_t, v_t) ‖ N(m_s, v_s)). A is the number
    of spatial positions of its features: statistics of few positions are unreliable.

    Attributes:
        strength: s, the largest value of 1 − λ.
        half_shift: d_½, the shift at which 1 − λ is half of its largest value.
        half_area: A_½, the number of positions at which it is half.
    """

    strength: float = 0.375
    half_shift: float = 0.5
    half_area: float = HALF_AREA

    def __post_init__(self) -> None:
        for name, most in (("strength", 1.0), ("half_shift", math.inf), ("half_area", math.inf)):
            value = getattr(self, name)
            number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
            least = number >= 0.0 if name == "half_area" else number > 0.0
            if not (least and number <= most and math.isfinite(number)):
                expected = "a number above 0, at most 1" if most == 1.0 else "a number above 0"
                raise RecipeError(f"priors: {name} of ByShift: expected {expected}; received {value!r}.")
            object.__setattr__(self, name, number)

    def __str__(self) -> str:
        return f"by shift, at least {1 - self.strength:.3g}"


def shift_from_source(
    mean: Array, variance: Array, source_mean: Array, source_variance: Array, *, epsilon: float, xp: Any
) -> Array:
    """Return d (B, R, 1) of statistics (B, R, C) from the source's (C,), with ε added to both variances.

    d = mean over channels of KL(N(m, v) ‖ N(m_s, v_s)) = mean of ½ · (v / v_s + (m − m_s)² / v_s − ln(v / v_s) − 1)
    """
    source_variance = source_variance + epsilon
    ratio = (variance + epsilon) / source_variance
    offset = mean - source_mean
    divergence = ratio + offset * offset / source_variance - xp.log(ratio)
    return 0.5 * xp.mean(divergence, axis=-1, keepdims=True) - 0.5


def priors_by_shift(shift: Array, positions: Any, *, strengths: Any, half_shifts: Any, half_areas: Any) -> Array:
    """Return λ (B, R, 1) for shifts d (B, R, 1) in a layer with A positions. Where s is 0, λ is 1.

    λ = 1 − s · d / (d + d_½) · A / (A + A_½)
    """
    return 1 - strengths * positions / (half_areas + positions) * shift / (shift + half_shifts)
