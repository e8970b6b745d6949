"""What an adapted model keeps, and what one call of it knows. Everything here is data; other modules compute."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from .errors import ModelError
from .inputs import ImageLayout, Inputs
from .ops import Array, Ops
from .outputs import OutputLayout, Selector
from .plan import Plan, make_plan
from .recipe import Recipe
from .selection import LayerInfo
from .shift import Rule
from .views import SpatialKind, spatial_kind
from .voting import Scores

Forward = Callable[[list[Array]], Any]
"""Runs the model on a batch: the images, then the arguments with one entry per image."""


@dataclass(frozen=True)
class Settings:
    """The arguments of `adapt` that an adapted model keeps beside its recipe."""

    inputs: Inputs | None = None
    scores: Scores | Literal["none"] | None = None
    output: Selector = None
    class_axis: int | None = None
    max_rows: int | None = None


@dataclass(frozen=True)
class ProbeResult:
    """What the probe established about a model for one kind of input."""

    layout: OutputLayout
    entries_per_row: Mapping[str, tuple[int, ...]]  # of a layer's batch, for each call of each adapted layer
    channel_axes: Mapping[str, int] = field(default_factory=dict)  # of layers with another axis than usual
    notes: tuple[str, ...] = ()  # notes on the model that `describe` prints
    spatial_axes: int = 2  # the number of spatial axes of the images
    aligned: tuple[bool, ...] = ()  # for each tensor argument beside the images, whether it has one entry per image
    image_shape: tuple[int, ...] = ()  # of the random images, without their number
    constants: Mapping[str, Any] = field(default_factory=dict)  # what has no entry per image, for images of this shape
    layer_calls: int = field(init=False)  # the number of calls of adapted layers in one forward pass

    def __post_init__(self) -> None:
        vars(self).update(layer_calls=sum(map(len, self.entries_per_row.values())))


@dataclass(eq=False)
class Adaptation:
    """The recipe, the caller's settings, and what the probe established."""

    recipe: Recipe
    settings: Settings
    layers: tuple[LayerInfo, ...]
    kinds: tuple[SpatialKind, ...]  # of the images that the model can take
    model_name: str = ""  # of the source model's class
    channel_axis: int = 1  # of the framework's feature maps, and of the classes in logits: 1 or −1
    plans: dict[SpatialKind, Plan] = field(init=False, repr=False)
    probes: dict[Any, ProbeResult] = field(default_factory=dict, repr=False)  # for each signature of the input

    def __post_init__(self) -> None:
        for prior in self.recipe.prior_values:
            if isinstance(prior, Rule):
                prior.check_layers([layer.name for layer in self.layers if layer.adapted])
        first = make_plan(self.recipe, self.kinds[0], self.settings.max_rows)
        others = self.kinds[1:] if first.has_views else ()  # without views, one Plan is for images of every kind
        self.plans = {self.kinds[0]: first}
        self.plans |= {kind: make_plan(self.recipe, kind, self.settings.max_rows) for kind in others}

    def plan_of(self, sizes: Sequence[int]) -> Plan:
        """Return the Plan for images of these spatial sizes; raise if the recipe's views do not apply to them."""
        if len(self.plans) == 1:
            return next(iter(self.plans.values()))
        kind = spatial_kind(sizes)
        return self.plans.get(kind) or make_plan(self.recipe, kind, self.settings.max_rows)

    @property
    def latest_probe(self) -> ProbeResult:
        """What the latest probe established."""
        if not self.probes:
            raise ModelError("The model has not been probed. Try: call it once, or sita.adapt(model, example=…).")
        return next(reversed(self.probes.values()))


@dataclass
class Call:
    """One call of an adapted model: what runs, on which images, and what is known about both."""

    adaptation: Adaptation
    plan: Plan
    probe: ProbeResult
    image_layout: ImageLayout
    forward: Forward
    batch: list[Array]  # the images (B, …), then the arguments with one entry per image


class LayerMeasurement(NamedTuple):
    """What one call of a layer measured: E of the blended rows, (B, R, 1), and λ."""

    name: str
    positions: Any
    divergence: Array
    priors: Array


@dataclass
class ForwardContext:
    """One forward pass on B images of R rows each: what the layers need to know, and what they measure."""

    adaptation: Adaptation
    plan: Plan
    rows: Any  # B·R: a number, or a symbol while a graph is traced
    ops: Ops
    probe: ProbeResult | None = None  # None during the probe
    record: Callable[[str, Array], None] | None = None  # the probe's: called with the input of every adapted layer
    first_positions: Any = None  # of the first adapted layer that ran
    calls: dict[str, int] = field(default_factory=dict)  # how often each adapted layer has run
    measurements: list[LayerMeasurement] | None = None  # of each layer call, if the answer or an observer needs them
    constants: dict[str, Array] = field(default_factory=dict)  # numbers of the Plan, as arrays

    def constant(self, name: str, like: Array) -> Array:
        """Return numbers of the Plan as an array. It is created once for all layers."""
        if name not in self.constants:
            self.constants[name] = self.ops.constant(getattr(self.plan, name), like)
        return self.ops.cast(self.constants[name], like)


class _Thread(threading.local):
    """Per-thread state. A plain thread-local, because compilers and exporters cannot trace a ContextVar."""

    def __init__(self) -> None:  # runs in every thread: compilers check these attributes
        self.context: ForwardContext | None = None  # of the forward pass that runs
        self.observers: tuple[tuple[object, Any], ...] = ()  # the Observations of adapted models


thread = _Thread()
