"""One call of an adapted model, the same in every framework.

    predict              the images, at most `max_rows` rows at a time
      expand             (B, …) → (B·R, …): the rows of an image are consecutive
      run_rows           the model's own forward pass, inside a ForwardContext
        blend              at every adapted BatchNorm: measure → blend with the source's statistics   blending.py
      keep_candidates    (B·R, …) → (B, P, …): the rows that may answer                  combining.py
      combine            (B, P, …) → (B, …): mix, vote or mean                           combining.py

A row is one view of one image under one prior. A layer's batch has one or more entries per row. A backend supplies the
array operations (`Ops`) and the forward pass, and measures and normalizes at each layer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .combining import Answer, Candidates, combine, concatenate, keep_candidates
from .diagnostics import LayerMeasurement
from .errors import InputError, ModelError
from .inputs import Inputs
from .ops import Array, Ops, SymbolicError
from .outputs import OutputLayout, Selector
from .plan import Plan, make_plan, resampling_error, split, split_source
from .recipe import RECIPES, Recipe
from .selection import LayerInfo
from .shift import ByExcessShift
from .views import IMAGE, ImageLayout, SpatialKind, content_seed, make_views
from .voting import Scores

Forward = Callable[[list[Array]], Any]
"""Runs the model on a batch: the images, then the arguments with one entry per image."""


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
    kinds: tuple[SpatialKind, ...]  # of the images that the model can take
    model_name: str = ""  # of the source model's class
    channel_axis: int = 1  # of the framework's feature maps, and of the classes in logits: 1 or −1
    plans: dict[SpatialKind, tuple[Plan, tuple[Plan, ...]]] = field(default_factory=dict, init=False, repr=False)
    layouts: dict[Any, OutputLayout] = field(default_factory=dict, repr=False)  # for each signature of the input

    def __post_init__(self) -> None:
        for prior in self.recipe.prior_values:
            if isinstance(prior, ByExcessShift):
                prior.check_layers([layer.name for layer in self.layers if layer.adapted])
        for kind in self.kinds:  # now, so compilers do not trace numpy, and a wrong max_rows is found early
            self.plan_for(kind)

    def plan_for(self, kind: SpatialKind) -> tuple[Plan, tuple[Plan, ...]]:
        """Return the Plan for images of this kind, and its parts, each of which runs at once."""
        if kind not in self.plans:
            plan = make_plan(self.recipe, kind)
            self.plans[kind] = plan, split(plan, self.settings.max_rows)
        return self.plans[kind]


@dataclass
class Call:
    """How one call runs: the adapted model, its forward pass, and the layouts of its images and of its output."""

    adaptation: Adaptation
    forward: Forward
    image_layout: ImageLayout
    layout: OutputLayout  # of the output

    def __post_init__(self) -> None:
        self.ops = self.image_layout.ops
        self.plan, self.parts = self.adaptation.plan_for(self.image_layout.kind)


@dataclass
class ForwardContext:
    """One forward pass on B images of R rows each: what the layers need to know, and what they measure."""

    adaptation: Adaptation
    plan: Plan
    rows: Any  # B·R: a number, or a symbol while a graph is traced
    ops: Ops
    layout: OutputLayout | None = None  # the probe's result; None during the probe
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
        self.context: ForwardContext | None = None
        self.latest: tuple[Adaptation, OutputLayout | None] | None = None  # of the latest call
        self.observers: tuple[tuple[object, Any], ...] = ()  # who records which adapted model


thread = _Thread()

ROWS_AT_ONCE = 64

PLAIN = make_plan(RECIPES["source"])
"""The image alone, as the source model runs it."""


def predict(call: Call, batch: list[Array]) -> Any:
    """Return the model's output for a batch of images, each adapted to independently.

    `batch` holds the images (B, …), then the arguments with one entry per image. With `max_rows`, images run in rounds,
    and an image's candidates in parts. The answers are the same. Without it, at most B or `ROWS_AT_ONCE` rows run at
    once, whichever is larger: arrays that do not fit into a cache are slow.
    """
    max_rows = call.adaptation.settings.max_rows
    count = batch[0].shape[0]  # None if a graph leaves it open
    if max_rows is None and not call.ops.is_traced(batch[0]) and call.adaptation.recipe.share == "image":
        max_rows = max(count, ROWS_AT_ONCE)
    if max_rows is None or (count is not None and call.plan.rows * count <= max_rows):
        return answer(call, batch).rebuild(call.ops)
    rounds = call.ops.map_batches(lambda some: answer(call, some), batch, max(1, max_rows // call.plan.rows))
    return concatenate(rounds, call.ops).rebuild(call.ops)


def answer(call: Call, batch: list[Array], *, diagnose: bool = False) -> Answer:
    """Run the parts of the Plan in sequence, and combine their candidates."""
    observers = [observer for adaptation, observer in thread.observers if adaptation is call.adaptation]
    diagnose = diagnose or bool(observers)
    done: list[Candidates] = []
    parts = split_source(call.plan) if len(call.parts) == 1 and call.ops.is_exported() else call.parts
    for part in parts:
        given = batch if len(parts) == 1 else [call.ops.copy(array) for array in batch]  # a model may write to it
        with call.ops.after(done[-1].arrays if done else ()):
            done.append(run_part(call, part, given, measure=diagnose or call.adaptation.recipe.combine == "mix"))
    found = combine(done, call, diagnose=diagnose)
    for observer in observers:
        observer.append(found.diagnostics, call.ops)
    return found


def run_part(call: Call, plan: Plan, batch: list[Array], *, measure: bool) -> Candidates:
    """Run all rows of a Plan at once, and keep the candidates."""
    ops, (images, *aligned) = call.ops, batch
    plans = _redraw_for_each(images, plan, call) if call.adaptation.recipe.resample else [plan]
    rows = [expand(images, plans, call.image_layout)]
    rows += [ops.repeat_rows(each, plan.rows) if plan.rows > 1 else each for each in aligned]
    context = ForwardContext(call.adaptation, plan, ops.shape(rows[0])[0], ops, call.layout)
    context.measurements = [] if measure else None
    output = run_rows(rows, call.forward, context)
    calls = sum(context.calls.values())
    if plan.blends and calls < call.layout.calls:
        raise ModelError(
            f"The adapted layers ran {calls} times, but {call.layout.calls} times in the probe, so some were not "
            "adapted (a part that compiles itself, such as an inner tf.function or jax.jit, runs a cached trace). "
            "Expected the same layers in every call. Try: leave compilation to the framework, which compiles the whole "
            "model."
        )
    return keep_candidates(output, context)


def expand(images: Array, plans: Sequence[Plan], layout: ImageLayout) -> Array:
    """(B, …) → (B·R, …): the rows of an image are consecutive. One Plan for all images, or one for each."""
    if len(plans) > 1:
        each = [expand(images[i : i + 1], [plan], layout) for i, plan in enumerate(plans)]
        return layout.ops.concat(each, axis=0)
    (plan,) = plans
    if plan.view_of_row == (0,):
        return images
    if not layout.ops.is_float(images) and not all(plan.views[view].lossless for view in plan.view_of_row):
        names = ", ".join(view.name for view in plan.views if not view.lossless)
        raise InputError(
            f"The views {names} compute new pixel values, which integers cannot hold; received {images.dtype}. "
            "Try: floating-point images, or augment='lossless'."
        )
    views = {view: plan.views[view].apply(images, layout) for view in sorted(set(plan.view_of_row))}
    return layout.ops.stack_rows([views[view] for view in plan.view_of_row], images)


def _redraw_for_each(images: Array, plan: Plan, call: Call) -> list[Plan]:
    """Return a Plan for every image, with views drawn from the image's content."""
    try:
        values = call.ops.to_numpy(images)
    except SymbolicError as error:
        raise resampling_error("A compiled or exported model") from error
    recipe, layout = call.adaptation.recipe, call.image_layout
    seeds = [content_seed(np.moveaxis(image, layout.channel, -1), recipe.seed) for image in values]
    views = [make_views(recipe.augment, recipe.view_count, seed, layout.kind) for seed in seeds]
    return [replace(plan, views=(IMAGE, *each)) for each in views]


def run_rows(rows: list[Array], forward: Forward, context: ForwardContext) -> Any:
    """Run the model's forward pass inside this context."""
    outer, thread.context = thread.context, context
    thread.latest = context.adaptation, context.layout  # it stays after the call, for latest_layout
    try:
        return forward(rows)
    finally:
        thread.context = outer


def latest_layout(adaptation: Adaptation) -> OutputLayout:
    """Return the layout of the model's latest call in this thread, or else of its latest probe."""
    if thread.latest is not None and thread.latest[0] is adaptation and thread.latest[1] is not None:
        return thread.latest[1]
    if not adaptation.layouts:
        raise ModelError("The model has not been probed. Try: call it once, or sita.adapt(model, example=…).")
    return next(reversed(adaptation.layouts.values()))
