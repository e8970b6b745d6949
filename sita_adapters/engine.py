"""One call of an adapted model, the same in every framework.

    predict              the images, at most `max_rows` rows at a time
      expand             (B, …) → (B·R, …): the rows of an image side by side
      run_rows           the model's own forward pass, inside a ForwardContext
        blend              at every adapted BatchNorm: measure → blend with the source's statistics   blending.py
      keep_candidates    (B·R, …) → (B, P, …): the rows that may answer                  combining.py
      combine            (B, P, …) → (B, …): mix, vote or mean                           combining.py

A backend supplies its arrays (`Ops`), the forward pass, and measures and normalizes at a layer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .combining import Answer, Candidates, combine, concatenate, keep_candidates
from .diagnostics import Diagnostics, LayerMeasurement, observers_of
from .errors import InputError, ModelError
from .inputs import Inputs
from .ops import Array, Ops, SymbolicError
from .outputs import OutputLayout, Selector
from .plan import Plan, make_plan, redraw, refuse_resampling, split
from .recipe import Recipe
from .recipes import RECIPES
from .selection import LayerInfo
from .view_steps import ImageLayout
from .views import SpatialKind
from .voting import Scores


@dataclass(eq=False)
class Adaptation:
    """What makes a model an adapted one: the recipe, the caller's settings, and what the probe established."""

    recipe: Recipe
    inputs: Inputs | None
    scores: Scores | None
    output: Selector
    class_axis: int | None
    max_rows: int | None
    layers: tuple[LayerInfo, ...]
    kinds: tuple[SpatialKind, ...]
    """The kinds of images that the model may take."""
    model_name: str = ""
    """The name of the source model's class."""
    channel_axis: int = 1
    """The axis of the channels in the framework's feature maps, and of the classes in logits: 1 or −1."""
    plans: dict[SpatialKind, tuple[Plan, tuple[Plan, ...]]] = field(init=False, repr=False)
    """The Plan for images of each kind, and the parts of it that run at once."""
    layouts: dict[Any, OutputLayout] = field(default_factory=dict, repr=False)
    """What the probe established, for each signature of the model's input."""

    def __post_init__(self) -> None:
        # Made now: a compiler that traces a call meets no numpy, and a bad max_rows is found early.
        self.plans = {kind: self._make_plan(kind) for kind in self.kinds}

    def plan_for(self, kind: SpatialKind) -> tuple[Plan, tuple[Plan, ...]]:
        """Return the Plan for images of this kind, and its parts."""
        return self.plans.get(kind) or self._make_plan(kind)

    def _make_plan(self, kind: SpatialKind) -> tuple[Plan, tuple[Plan, ...]]:
        plan = make_plan(self.recipe, kind)
        return plan, split(plan, self.max_rows)


@dataclass
class ForwardContext:
    """One forward pass on B images of R rows each: what the layers need to know, and what they measure."""

    adaptation: Adaptation
    plan: Plan
    rows: Any
    """B·R: a number, or a symbol while a graph is traced."""
    ops: Ops
    layout: OutputLayout | None = None
    """What the probe established; None while it runs."""
    weights: Array = None
    """(R, R), of the blended rows."""
    references: Array = None
    """(R, R), with a 1 for one of the rows that each row draws from."""
    priors: Any = None
    """λ of the blended rows, (R, 1), or a number for all; None if rules set it."""
    rules: tuple[Any, Any, Any] | None = None
    """s, d_½ and A_½ of the blended rows: each (R, 1), or a number for all."""
    record: Callable[[str, Array], None] | None = None
    """Called with the name and the input of every adapted layer, by the probe."""
    calls: dict[str, int] = field(default_factory=dict)
    """How often each adapted layer has run."""
    measurements: list[LayerMeasurement] | None = None
    """What each layer call measured, if the answer or an observer needs it."""


class _Thread(threading.local):
    """A plain thread-local: compilers and exporters can trace it, unlike a ContextVar."""

    context: ForwardContext | None
    latest: OutputLayout | None

    def __init__(self) -> None:
        self.context = self.latest = None  # set in every thread, since a compiler guards on it


_thread = _Thread()

PLAIN = make_plan(RECIPES["source"])
"""The image alone, as the source model runs it."""

Forward = Callable[[list[Array]], Any]
"""Runs the model on a batch: the images, and the arguments that have one entry per image."""


def predict(
    batch: list[Array], forward: Forward, adaptation: Adaptation, images: ImageLayout, layout: OutputLayout
) -> Any:
    """Return the model's output for a batch of images, each adapted to independently.

    `batch` holds the images (B, …), then the arguments with one entry per image. Under `max_rows`, images run in rounds
    and an image's candidates in parts; the answers are the same.
    """
    plan, _ = adaptation.plan_for(images.kind)

    def answer(some: list[Array]) -> Answer:
        return _answer(some, forward, adaptation, images, layout)

    count = batch[0].shape[0]  # None if a graph leaves it open
    if adaptation.max_rows is None or (count is not None and plan.rows * count <= adaptation.max_rows):
        return answer(batch).rebuild(images.ops)
    rounds = images.ops.map_batches(answer, batch, max(1, adaptation.max_rows // plan.rows))
    return concatenate(rounds, images.ops).rebuild(images.ops)


def predict_with_diagnostics(
    batch: list[Array], forward: Forward, adaptation: Adaptation, images: ImageLayout, layout: OutputLayout
) -> tuple[Any, Diagnostics]:
    """Return what `predict` does, all rows at once, and the diagnostics as arrays that an exporter can trace."""
    answer = _answer(batch, forward, adaptation, images, layout, diagnose=True)
    assert answer.diagnostics is not None
    return answer.rebuild(images.ops), answer.diagnostics


def _answer(
    batch: list[Array],
    forward: Forward,
    adaptation: Adaptation,
    images: ImageLayout,
    layout: OutputLayout,
    *,
    diagnose: bool = False,
) -> Answer:
    """Run the parts of the Plan one after the other, and combine their candidates."""
    plan, parts = adaptation.plan_for(images.kind)
    diagnose = diagnose or bool(observers_of(adaptation))
    kept: list[Candidates] = []
    for part in parts:
        given = batch if len(parts) == 1 else [images.ops.copy(array) for array in batch]  # a model may write to it
        with images.ops.after(kept[-1].arrays if kept else ()):
            output, context = _run_part(given, forward, part, adaptation, images, layout, diagnose=diagnose)
            kept.append(keep_candidates(output, context))
    return combine(kept, plan, adaptation, layout, images.ops, diagnose=diagnose)


def _run_part(  # noqa: PLR0917
    batch: list[Array],
    forward: Forward,
    plan: Plan,
    adaptation: Adaptation,
    images: ImageLayout,
    layout: OutputLayout,
    *,
    diagnose: bool,
) -> tuple[Any, ForwardContext]:
    """Run all rows of a Plan at once."""
    first, *aligned = batch
    ops, recipe = images.ops, adaptation.recipe
    plans = redraw_for_each(first, plan, recipe, images) if recipe.resample else [plan]
    rows = [
        expand(first, plans, images),
        *(ops.repeat_rows(each, plan.rows) if plan.rows > 1 else each for each in aligned),
    ]
    context = ForwardContext(adaptation, plan, ops.shape(rows[0])[0], ops, layout)
    if diagnose or recipe.combine == "mix":
        context.measurements = []
    _bind_plan(plan, first, context)
    output = run_rows(rows, forward, context)
    if plan.blends and sum(context.calls.values()) < layout.calls:
        raise ModelError(
            f"The model ran its adapted layers {sum(context.calls.values())} times, and {layout.calls} times in the "
            "probe: some ran without being adapted (a part that compiles itself, such as an inner tf.function or "
            "jax.jit, runs a cached trace). Expected the same layers in every call. Try: leave compilation to the "
            "framework's own call of the whole model."
        )
    return output, context


def expand(images: Array, plans: Sequence[Plan], layout: ImageLayout) -> Array:
    """(B, …) → (B·R, …): the rows of an image side by side. One Plan for all images, or one for each."""
    if len(plans) == 1:
        return _view_rows(images, plans[0], layout)
    return layout.ops.concat([_view_rows(images[i : i + 1], plan, layout) for i, plan in enumerate(plans)], axis=0)


def _view_rows(images: Array, plan: Plan, layout: ImageLayout) -> Array:
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


def check_map(argument: Array, images: Array, adaptation: Adaptation, layout: ImageLayout) -> None:
    """Raise if an argument belongs to the images pixel by pixel (a mask), and views move their pixels."""
    space, (plan, _) = len(layout.axes), adaptation.plan_for(layout.kind)
    is_map = len(argument.shape) >= space > 0 and argument.shape[-space:] == images.shape[-space:]
    if is_map and any(plan.moves_pixels(row) for row in range(plan.rows)):
        raise InputError(
            f"An argument of shape {tuple(argument.shape)} has the images' height and width, and would have to move "
            "with the pixels of their views. Try: a recipe without such views ('auto', 'shift', 'bn')."
        )


def redraw_for_each(images: Array, plan: Plan, recipe: Recipe, layout: ImageLayout) -> list[Plan]:
    """Return a Plan for every image, with views drawn from its content."""
    try:
        values = layout.ops.to_numpy(images)
    except SymbolicError as error:
        raise refuse_resampling("A compiled or exported model") from error
    return [redraw(plan, recipe, layout.kind, np.moveaxis(image, layout.channel, -1)) for image in values]


def _bind_plan(plan: Plan, images: Array, context: ForwardContext) -> None:
    """Give the context the numbers of the Plan's blended rows, as arrays like the images."""
    ops, blended = context.ops, plan.blended
    if not plan.blends:
        return

    def column(values: list[Any]) -> Any:
        return values[0] if len(set(values)) == 1 else ops.precise_constant([[value] for value in values], images)

    if not plan.independent:
        context.weights = ops.precise_constant(plan.weights, images)
        context.references = ops.precise_constant(plan.references, images)
    if plan.rules is None:
        context.priors = column([plan.priors[row] for row in blended])
    else:
        strengths, half_shifts, half_areas = zip(*(plan.rules[row] for row in blended), strict=True)
        context.rules = column(list(strengths)), column(list(half_shifts)), column(list(half_areas))


def run_rows(rows: list[Array], forward: Forward, context: ForwardContext) -> Any:
    """Run the model's forward pass inside this context."""
    outer, _thread.context = _thread.context, context
    _thread.latest = context.layout
    try:
        return forward(rows)
    finally:
        _thread.context = outer


def latest_layout(adaptation: Adaptation) -> OutputLayout:
    """Return the layout of the latest call in this thread; the only one, if the model takes inputs of one kind."""
    layouts = list(adaptation.layouts.values())
    if not layouts:
        raise ModelError("The model has not been probed. Try: call it once, or sita.adapt(model, example=…).")
    return layouts[0] if len(layouts) == 1 or _thread.latest is None else _thread.latest


def running_context() -> ForwardContext | None:
    """Return the context of the forward pass that this thread is in."""
    return _thread.context
