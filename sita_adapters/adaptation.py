"""What makes a model an adapted one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .inputs import Inputs
from .outputs import OutputLayout, Selector
from .plan import Plan, make_plan, split
from .recipe import Recipe
from .selection import LayerInfo
from .views import SpatialKind
from .voting import Scores


@dataclass(frozen=True)
class Settings:
    """The arguments of `adapt` that an adapted model keeps beside its recipe."""

    inputs: Inputs | None = None
    scores: Scores | None = None
    output: Selector = None
    class_axis: int | None = None
    max_rows: int | None = None


@dataclass(eq=False)
class Adaptation:
    """The recipe, the caller's settings, and what the probe established."""

    recipe: Recipe
    settings: Settings
    layers: tuple[LayerInfo, ...]
    kinds: tuple[SpatialKind, ...]  # of images that the model may take
    model_name: str = ""  # of the source model's class
    channel_axis: int = 1  # of the framework's feature maps, and of the classes in logits: 1 or −1
    plans: dict[SpatialKind, tuple[Plan, tuple[Plan, ...]]] = field(default_factory=dict, init=False, repr=False)
    layouts: dict[Any, OutputLayout] = field(default_factory=dict, repr=False)  # for each signature of the input

    def __post_init__(self) -> None:
        for kind in self.kinds:  # now: a compiler that traces a call meets no numpy, and a bad max_rows is found early
            self.plan_for(kind)

    def plan_for(self, kind: SpatialKind) -> tuple[Plan, tuple[Plan, ...]]:
        """Return the Plan for images of this kind, and the parts of it that run at once."""
        if kind not in self.plans:
            plan = make_plan(self.recipe, kind)
            self.plans[kind] = plan, split(plan, self.settings.max_rows)
        return self.plans[kind]
