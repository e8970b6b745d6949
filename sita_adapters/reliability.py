"""λ per channel: a channel whose statistics vary from one clean image to the next says little about shift."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from .errors import RecipeError
from .ops import Array, Ops
from .shift import ByShift, LayerStatistics, Rule, area_weight, resolve_fields

AGREEMENT = 2e-3
"""How far two fingerprints of the same statistics may differ: in half precision, they are rounded."""

_LEAST = 1e-5  # of 2 · k · t, as in a channel that never varies: far more than the rounding error of a shift


@dataclass(frozen=True, eq=False)
class ChannelSpread:
    """How much the statistics of a layer vary from one clean image to the next. Arrays are kept in half precision.

    Attributes:
        fingerprint: Four numbers by which the layer is found again in another framework; see `fingerprint_of`.
        means: t, the variance over clean images of (m_t − m_s) / sqrt(v_s + ε), (C,).
        variances: e, the variance over clean images of log((v_t + ε) / (v_s + ε)), (C,).
    """

    fingerprint: tuple[float, ...]
    means: np.ndarray
    variances: np.ndarray

    def __post_init__(self) -> None:
        arrays = [np.asarray(each, np.float32) for each in (self.means, self.variances)]
        if {each.shape for each in arrays} != {arrays[0].shape} or arrays[0].ndim != 1 or len(self.fingerprint) != 4:
            raise RecipeError("priors: layers: expected a fingerprint of four numbers, and two arrays of one size.")
        if not all(np.isfinite(each).all() and (each >= 0).all() for each in (*arrays, np.square(self.fingerprint))):
            raise RecipeError("priors: layers: expected finite numbers, and variances of at least 0.")
        most = float(np.finfo(np.float16).max)
        for name, array in zip(("means", "variances"), arrays, strict=True):
            object.__setattr__(self, name, np.minimum(array, most).astype(np.float16))
        object.__setattr__(self, "fingerprint", tuple(float(f"{number:.6g}") for number in self.fingerprint))

    def agrees_with(self, fingerprint: Sequence[float], channels: int) -> bool:
        """Whether these are the source statistics that the spread was measured against."""
        pairs = zip(self.fingerprint, fingerprint, strict=True)
        return len(self.means) == channels and all(abs(a - b) <= AGREEMENT * max(abs(a), 1.0) for a, b in pairs)

    def to_list(self) -> list[Any]:
        """Return what JSON can hold."""
        arrays = (self.means, self.variances)
        return [list(self.fingerprint), *(base64.b64encode(each.astype("<f2").tobytes()).decode() for each in arrays)]

    @classmethod
    def from_list(cls, stored: Any) -> ChannelSpread:
        """Return what `to_list` stored."""
        fingerprint, *arrays = stored
        means, variances = (np.frombuffer(base64.b64decode(each, validate=True), "<f2") for each in arrays)
        return cls(tuple(fingerprint), means, variances)


@dataclass(frozen=True, kw_only=True, eq=False)
class ByReliability(Rule):
    """A prior that every layer sets for every image and channel. Unreliable channels follow the image less.

        1 − λ of the mean = w · d / (d + k · t_c),    1 − λ of the variance = w · d / (d + k · e_c)
        w = s · d / (d + d_½) · a,    with d, d_½ and a as in `ByShift`

    t_c and e_c tell how much the mean and the log variance of channel c vary from one clean image to the next.
    `calibrate` measures them.

    Attributes:
        layers: t_c and e_c of every adapted layer, by name.
        caution: k. The larger it is, the less unreliable channels follow the image.
        strength: s, the largest possible value of 1 − λ.
        half_shift: d_½, the shift at which w is half of its largest value.
    """

    layers: Mapping[str, ChannelSpread]
    caution: float = 1.0
    strength: float = 1.0
    half_shift: float = 0.5
    _limits: Mapping[str, Array] = field(init=False, repr=False)  # 2 · k · t_c and 2 · k · e_c, (2, 1, 1, C)

    per_channel: ClassVar[bool] = True

    def __post_init__(self) -> None:
        resolve_fields(self, {"caution": (0.0, 1e6), "strength": (0.0, 1.0), "half_shift": (0.0, 1e30)})
        given: dict[str, Any] = dict(self.layers)
        if not given or not all(isinstance(each, ChannelSpread) for each in given.values()):
            raise RecipeError(f"priors: layers: expected a ChannelSpread for each layer; received {given!r:.200}.")
        object.__setattr__(self, "layers", MappingProxyType(given))
        limits = {
            name: np.maximum(2 * self.caution * np.stack([each.means, each.variances]).astype(np.float32), _LEAST)
            for name, each in given.items()
        }
        object.__setattr__(self, "_limits", {name: each[:, None, None] for name, each in limits.items()})

    def keep_arrays(self, convert: Callable[[Any], Array]) -> None:
        """Convert t_c and e_c to arrays of a framework."""
        object.__setattr__(self, "_limits", {name: convert(each) for name, each in self._limits.items()})

    def to_dict(self) -> dict[str, Any]:
        """Return the rule's fields as values that JSON can hold."""
        numbers = {name: getattr(self, name) for name in ("caution", "strength", "half_shift")}
        return {**numbers, "layers": {name: each.to_list() for name, each in self.layers.items()}}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> ByReliability:
        """Return what `to_dict` stored."""
        layers = {name: ChannelSpread.from_list(each) for name, each in dict(stored["layers"]).items()}
        return cls(**{**stored, "layers": layers})

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, ByReliability) and self.to_dict() == other.to_dict())

    def __hash__(self) -> int:
        return hash((self.caution, self.strength, self.half_shift, tuple(self.layers)))

    def __reduce__(self) -> tuple[Any, ...]:  # pickle and deepcopy do not support mapping proxies
        return ByReliability.from_dict, (self.to_dict(),)

    def __str__(self) -> str:
        return f"by shift and by reliability of each channel (k = {self.caution:g})"

    def priors(self, layer: LayerStatistics, ops: Ops) -> tuple[Array, Array]:
        """Return λ of the mean and of the variance, (B, R, C); NaN if the shift is infinite.

        With u = 2d = E − 1:   λ = 1 − s · a · u² / (u + 2 · d_½) / (u + 2 · k · t_c)
        """
        divergence = layer.divergence
        most = self.strength * area_weight(layer.positions, layer.first_positions)
        u, damped = divergence - 1, divergence
        if self.half_shift != 0.5:  # the default adds 0
            damped = divergence + (2 * self.half_shift - 1)
        negative = u * ops.scalar(-most, u) / damped
        limits = ops.constant(self._limits[layer.name], u)
        both = ops.addcmul(ops.scalar(1.0, u), negative, u / (u + limits))  # u² would overflow
        return both[0], both[1]

    def check_layers(self, names: Sequence[str]) -> None:
        """Raise a RecipeError if an adapted layer is not in the rule."""
        if missing := [name for name in names if name not in self.layers]:
            raise _not_calibrated(missing, len(names))

    def bind(self, statistics: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> ByReliability:
        """Return the rule with the names of this model's layers, whose source statistics (mean, variance) are given.

        A layer of the same name and statistics is that layer. Otherwise, exactly one must have its statistics: in
        another framework, layers have other names. Raise a RecipeError if any layer is not found.
        """
        found: dict[str, ChannelSpread] = {}
        missing = []
        for name, (mean, variance) in statistics.items():
            fingerprint = fingerprint_of(mean, variance)
            alike = [key for key, each in self.layers.items() if each.agrees_with(fingerprint, len(mean))]
            if name in alike:
                alike = [name]
            if len(alike) == 1:
                found[name] = self.layers[alike[0]]
            else:
                missing.append(name)
        if missing or len(set(map(id, found.values()))) < len(found):
            raise _not_calibrated(missing or list(found), len(statistics))
        return replace(self, layers=found)

    def rename(self, names: Mapping[str, str]) -> ByReliability:
        """Return the rule with other names for its layers."""
        return replace(self, layers={names[old]: each for old, each in self.layers.items()})


def rule_from_json(stored: dict[str, Any]) -> Any:
    """Return the rule that a dict stores under its name; return any other dict unchanged."""
    name, *others = stored or ("",)
    if name == "ByReliability" and not others:
        return ByReliability.from_dict(stored[name])
    return ByShift(**stored[name]) if name == "ByShift" and not others else stored


def fingerprint_of(mean: np.ndarray, variance: np.ndarray) -> tuple[float, float, float, float]:
    """Return four numbers of source statistics (C,), nearly the same in every framework and precision.

    The root mean square of the means and that of the deviations, each with a projection that depends on the order of
    the channels.
    """
    wave = np.cos(np.arange(len(mean), dtype=np.float64))
    found: list[float] = []
    for each in (np.asarray(mean, np.float64), np.sqrt(np.maximum(np.asarray(variance, np.float64), 0.0))):
        size = float(np.sqrt(np.mean(each * each)))
        found += [size, float(np.mean(each * wave)) / size if size else 0.0]
    return found[0], found[1], found[2], found[3]


def _not_calibrated(missing: Sequence[str], count: int) -> RecipeError:
    return RecipeError(
        f"priors: expected a recipe that was calibrated for this model; {len(missing)} of {count} adapted layers are "
        f"not in it, or not with the same source statistics ({missing[0]!r}, …). Try: sita.calibrate(model, images)."
    )
