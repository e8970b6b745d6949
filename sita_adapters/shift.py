"""λ from the measured shift: the further an image's statistics are from the source's, the more weight they get."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from .errors import expect_number
from .ops import Array, Ops

HALF_AREA = 1 / 64
"""The share of the first layer's positions at which statistics get half their weight: 1/8 of its height and width."""


def area_weight(positions: Any, first_positions: Any, half_area: float = HALF_AREA) -> Any:
    """Return the weight a of a layer's statistics, from its A positions and the A_1 of the first adapted layer.

    a = (A − 1) / (A − 1 + h · A_1)

    A single position has no variance, so a = 0. The result is a tensor if the sizes are open in a graph.
    """
    return (positions - 1) / (positions - 1 + half_area * first_positions)


class LayerStatistics(NamedTuple):
    """What a layer knows of its blended rows when a rule sets their λ."""

    name: str
    means: Array  # the target statistics, (B, R, C)
    variances: Array
    source_mean: Array  # (C,)
    source_variance: Array
    epsilon: Any
    divergence: Array  # E, (B, R, 1)
    positions: Any
    first_positions: Any  # of the first adapted layer

    def of_rows(self, first: int, end: int) -> LayerStatistics:
        """Return the statistics of some of the rows."""
        some = {name: getattr(self, name)[:, first:end] for name in ("means", "variances", "divergence")}
        return self._replace(**some)


class Rule(ABC):
    """A prior that every layer sets for every image during the forward pass."""

    per_channel: ClassVar[bool] = False
    """Whether every channel has a λ of its own."""

    @abstractmethod
    def priors(self, layer: LayerStatistics, ops: Ops) -> tuple[Array, Array]:
        """Return λ of the mean and of the variance, (B, R, 1), or (B, R, C) if each channel has its own."""

    def check_layers(self, names: Sequence[str]) -> None:  # noqa: B027 (a rule may apply to every model)
        """Raise a RecipeError if the rule does not apply to these adapted layers."""

    def keep_arrays(self, convert: Callable[[Any], Array]) -> None:  # noqa: B027 (most rules have none)
        """Convert the arrays of the rule to those of a framework, once: compilers do not trace it in calls."""

    def to_dict(self) -> dict[str, Any]:
        """Return the rule's fields as values that JSON can hold."""
        return dict(vars(self))


def resolve_fields(rule: Rule, limits: dict[str, tuple[float, float]]) -> None:
    """Make these fields of a rule numbers above the first and at most the second limit; raise if one is not."""
    for name, (above, most) in limits.items():
        object.__setattr__(rule, name, expect_number(f"priors: {name}", getattr(rule, name), above, most))


@dataclass(frozen=True, kw_only=True)
class ByShift(Rule):
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
        resolve_fields(self, {"strength": (0.0, 1.0), "half_shift": (0.0, 1e30), "half_area": (0.0, 1.0)})

    def __str__(self) -> str:
        own, usual = vars(self), vars(ByShift(strength=self.strength))
        changed = [f", {name}={own[name]:.3g}" for name in ("half_shift", "half_area") if own[name] != usual[name]]
        return f"by shift ({1 - self.strength:.3g} to 1{''.join(changed)})"

    def priors(self, layer: LayerStatistics, ops: Ops) -> tuple[Array, Array]:
        """Return λ (B, R, 1) twice; NaN if the shift is infinite.

        λ = 1 − w · d / (d + d_½) = ((1 − w) · e + 2 · d_½ · w) / e,   e = E + 2 · d_½ − 1,   w = s · a
        """
        w = self.strength * area_weight(layer.positions, layer.first_positions, self.half_area)
        divergence = layer.divergence
        if self.half_shift != 0.5:  # the default adds 0
            divergence = divergence + (2 * self.half_shift - 1)
        rest, share = (ops.scalar(number, divergence) for number in (1 - w, 2 * self.half_shift * w))
        prior = (divergence * rest + share) / divergence
        return prior, prior


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
