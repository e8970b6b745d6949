"""λ from the shift itself: how far an image's statistics are from the source's, layer by layer.

A layer whose statistics are the source's keeps them; one that is far off takes the image's. So an image that is like
the source's is left as it is, and nothing is run twice to find out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .errors import RecipeError
from .ops import Array


@dataclass(frozen=True, kw_only=True)
class ByShift:
    """A prior that every layer sets for every image, as the forward pass goes.

        λ = 1 − s · d / (d + d_½) · A / (A + A_½)

    d is the shift that the layer sees, the mean over its channels of KL(N(m, v) ‖ N(m_s, v_s)); A how many places its
    features have: the statistics of few places are little to go by. `strength` s is the most that 1 − λ can be; at a
    shift of `half_shift`, and at `half_area` places, it is half of that.
    """

    strength: float = 0.375
    half_shift: float = 0.5
    half_area: float = 200.0

    def __post_init__(self) -> None:
        for name, most in (("strength", 1.0), ("half_shift", math.inf), ("half_area", math.inf)):
            value = getattr(self, name)
            number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
            least = number >= 0.0 if name == "half_area" else number > 0.0
            if not (least and number <= most and math.isfinite(number)):
                expected = "a number from 0 (not itself) to 1" if most == 1.0 else "a number above 0"
                raise RecipeError(f"priors: {name} of ByShift: expected {expected}; received {value!r}.")
            object.__setattr__(self, name, number)

    def __str__(self) -> str:
        return f"by shift, at least {1 - self.strength:.3g}"


def divergence_from_source(
    mean: Array, variance: Array, source_mean: Array, source_variance: Array, *, epsilon: float, xp: Any
) -> Array:
    """Return D (B, R, 1), the sum over the channels c of (v + (m − m_s)²) / v_s − ln(v / v_s), with ε in v and v_s.

    Of statistics (B, R, C), and the source's (C,). It is C where they are equal, and the shift that a layer sees is

    d = mean over c of KL(N(m, v) ‖ N(m_s, v_s)) = ½ · (D / C − 1)
    """
    widened, source_widened = variance + epsilon, source_variance + epsilon
    offset = mean - source_mean
    divergence = (widened + offset * offset) / source_widened - xp.log(widened / source_widened)
    return xp.sum(divergence, axis=-1, keepdims=True)


def priors_by_shift(divergence: Array, channels: int, area: Any, *, rules: Sequence[Any]) -> Array:
    """Return λ (B, R, 1) of a layer with so many places, for s, d_½ and A_½: numbers, or (R, 1). Where s is 0, λ is 1.

    λ = 1 − w · d / (d + d_½) = 1 − w + w · d_½ · 2C / (D + 2C · (d_½ − ½)),   w = s · A / (A + A_½)
    """
    strengths, half_shifts, half_areas = rules
    most = strengths * area / (half_areas + area)
    if not isinstance(half_shifts, float) or half_shifts != 0.5:  # the usual one, with which there is nothing to add
        divergence = divergence + 2 * channels * (half_shifts - 0.5)
    return (1 - most) + (most * half_shifts * 2 * channels) / divergence
