"""λ from the measured shift: the further an image's statistics are from the source's, the more weight they get."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import Any, TypeAlias

from .errors import RecipeError
from .ops import Array, Ops

HALF_AREA = 1 / 64
"""The share of the first layer's positions at which statistics get half their weight: 1/8 of its height and width."""


def area_weight(positions: Any, first_positions: Any, half_area: float = HALF_AREA) -> Any:
    """Return the weight a of a layer's statistics, from its A positions and the A_1 of the first adapted layer.

    a = (A − 1) / (A − 1 + h · A_1)

    A single position has no variance, so a = 0. The result is a tensor if the sizes are open in a graph.
    """
    return (positions - 1) / (positions - 1 + half_area * first_positions)


@dataclass(frozen=True, kw_only=True)
class ByShift:
    """A prior that every layer sets for every image during the forward pass.

        λ = 1 − s · d / (d + d_½) · a,    a = (A − 1) / (A − 1 + h · A_1)

    d is the shift that the layer measures: the mean over its channels of KL(N(m_t, v_t) ‖ N(m_s, v_s)). A is the number
    of spatial positions of its features, and A_1 is the number in the first adapted layer. Small feature maps get less
    weight, because their statistics are less reliable.

    Attributes:
        strength: s, the largest possible value of 1 − λ.
        half_shift: d_½, the shift at which 1 − λ is half of its largest value.
        half_area: h, the share of the first layer's positions at which 1 − λ is about half of its largest value.
    """

    strength: float = 0.375
    half_shift: float = 0.5
    half_area: float = HALF_AREA

    def __post_init__(self) -> None:
        for name, most in (("strength", 1.0), ("half_shift", 1e30), ("half_area", 1.0)):
            value = getattr(self, name)
            number = float(value) if not isinstance(value, bool) and isinstance(value, Real) else math.nan
            if not 0.0 < number <= most:
                raise RecipeError(f"priors: {name}: expected a number above 0, at most {most:g}; received {value!r}.")
            object.__setattr__(self, name, number)

    def __str__(self) -> str:
        own, usual = vars(self), vars(ByShift(strength=self.strength))
        changed = [f", {name}={own[name]:.3g}" for name in ("half_shift", "half_area") if own[name] != usual[name]]
        return f"by shift ({1 - self.strength:.3g} to 1{''.join(changed)})"

    def priors(self, divergence: Array, name: str, positions: Any, first_positions: Any, ops: Ops) -> Array:
        """Return λ (B, R, 1) for E (B, R, 1) in a layer; NaN if E is infinite.

        λ = 1 − w · d / (d + d_½) = ((1 − w) · e + 2 · d_½ · w) / e,   e = E + 2 · d_½ − 1,   w = s · a
        """
        w = self.strength * area_weight(positions, first_positions, self.half_area)
        if self.half_shift != 0.5:  # the default adds 0
            divergence = divergence + (2 * self.half_shift - 1)
        rest, share = (ops.scalar(number, divergence) for number in (1 - w, 2 * self.half_shift * w))
        return (divergence * rest + share) / divergence


@dataclass(frozen=True)
class ByExcessShift:
    """A prior that keeps the source's statistics until an image is further from them than clean images are.

        λ = min(1, d_0 / d)

    d is the shift that a layer measures, as for `ByShift`. `calibrate` measures d_0, its mean over clean images.

    Attributes:
        clean_shifts: d_0 of every adapted layer, by name.
    """

    clean_shifts: Mapping[str, float]

    def __post_init__(self) -> None:
        given: dict[str, Any] = dict(self.clean_shifts)
        if not given or not all(isinstance(d, Real) and 0.0 <= float(d) < math.inf for d in given.values()):
            expected = "a non-negative number for each layer"
            raise RecipeError(f"priors: clean_shifts: expected {expected}; received {given!r:.200}.")
        object.__setattr__(self, "clean_shifts", MappingProxyType({name: float(d) for name, d in given.items()}))

    def __hash__(self) -> int:
        return hash(tuple(self.clean_shifts.items()))

    def __reduce__(self) -> tuple[Any, ...]:  # pickle and deepcopy do not support mapping proxies
        return ByExcessShift, (dict(self.clean_shifts),)

    def check_layers(self, names: Sequence[str]) -> None:
        """Raise a RecipeError if an adapted layer has no clean shift."""
        missing = [name for name in names if name not in self.clean_shifts]
        if missing:
            raise RecipeError(
                f"priors: expected the clean shift of every adapted layer; {len(missing)} of {len(names)} have none "
                f"({missing[0]!r}, …). The recipe was calibrated for another model. Try: sita.calibrate(model, images)."
            )

    def __str__(self) -> str:
        return "by excess shift over clean images"

    def priors(self, divergence: Array, name: str, positions: Any, first_positions: Any, ops: Ops) -> Array:
        """Return λ (B, R, 1) for E (B, R, 1) in a layer; NaN if E is not finite."""
        # Neither `minimum` nor `maximum`: compiled by XLA, they may hide NaN.
        clean = ops.scalar(max(2 * self.clean_shifts[name], 1e-12), divergence)
        doubled = divergence - 1
        return clean / ops.where(doubled < clean, clean, doubled) + 0 * divergence


Rule: TypeAlias = ByShift | ByExcessShift
"""A prior that every layer sets for every image."""


def scaled_divergence(
    mean: Array, variance: Array, source_mean: Array, source_variance: Array, *, epsilon: Any, ops: Ops
) -> Array:
    """Return E (B, R, 1) of statistics (B, R, C) from the source's (C,), with ε added to both variances.

    E = mean over channels of (v + (m − m_s)²) / v_s + ln(v_s / v) = 2d + 1

    d, the mean over channels of KL(N(m, v) ‖ N(m_s, v_s)), is computed once, after the last layer, because every
    operation in every layer costs microseconds.
    """
    variance, source_variance = variance + epsilon, source_variance + epsilon
    offset = mean - source_mean
    squares = ops.addcmul(variance, offset, offset)
    return ops.mean(ops.addcdiv(ops.log(source_variance / variance), squares, source_variance), axis=-1, keepdims=True)
