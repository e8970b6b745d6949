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
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .adaptation import Adaptation
from .combining import Answer, Candidates, combine, concatenate, keep_candidates
from .diagnostics import Diagnostics, LayerMeasurement, observers_of
from .errors import InputError, ModelError
from .ops import Array, Ops, SymbolicError
from .outputs import OutputLayout
from .plan import Plan, make_plan, refuse_resampling
from .recipe import RECIPES
from .views import IMAGE, ImageLayout, content_seed, make_views

Forward = Callable[[list[Array]], Any]
"""Runs the model on a batch: the images, and the arguments that have one entry per image."""


@dataclass(frozen=True)
class Call:
    """How one call runs: the adapted model, its forward pass, and the layouts of its images and of its output."""

    adaptation: Adaptation
    forward: Forward
    images: ImageLayout
    layout: OutputLayout

    @property
    def ops(self) -> Ops:
        """What computes on the arrays."""
        return self.images.ops

    @property
    def plan(self) -> Plan:
        """The Plan for the images' kind."""
        return self.adaptation.plan_for(self.images.kind)[0]

    @property
    def parts(self) -> tuple[Plan, ...]:
        """The parts of the Plan that run one after the other."""
        return self.adaptation.plan_for(self.images.kind)[1]


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
    """(R, R), of the blended rows; None if they are independent."""
    references: Array = None
    """(R, R), with a 1 for one of the rows that each row draws from."""
    priors: Any = None
    """λ of the blended rows, a number or (R, 1); None if a rule sets it."""
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


def predict(call: Call, batch: list[Array]) -> Any:
    """Return the model's output for a batch of images, each adapted to independently.

    `batch` holds the images (B, …), then the arguments with one entry per image. Under `max_rows`, images run in rounds
    and an image's candidates in parts; the answers are the same.
    """
    max_rows = call.adaptation.settings.max_rows
    count = batch[0].shape[0]  # None if a graph leaves it open
    if max_rows is None or (count is not None and call.plan.rows * count <= max_rows):
        return _answer(call, batch).rebuild(call.ops)
    rounds = call.ops.map_batches(lambda some: _answer(call, some), batch, max(1, max_rows // call.plan.rows))
    return concatenate(rounds, call.ops).rebuild(call.ops)


def predict_with_diagnostics(call: Call, batch: list[Array]) -> tuple[Any, Diagnostics]:
    """Return what `predict` does, all rows at once, and the diagnostics as arrays that an exporter can trace."""
    answer = _answer(call, batch, diagnose=True)
    assert answer.diagnostics is not None
    return answer.rebuild(call.ops), answer.diagnostics


def _answer(call: Call, batch: list[Array], *, diagnose: bool = False) -> Answer:
    """Run the parts of the Plan one after the other, and combine their candidates."""
    diagnose = diagnose or bool(observers_of(call.adaptation))
    done: list[Candidates] = []
    for part in call.parts:
        given = batch if len(call.parts) == 1 else [call.ops.copy(array) for array in batch]  # a model may write to it
        with call.ops.after(done[-1].arrays if done else ()):
            done.append(_run_part(call, part, given, measure=diagnose or call.adaptation.recipe.combine == "mix"))
    return combine(done, call, diagnose=diagnose)


def _run_part(call: Call, plan: Plan, batch: list[Array], *, measure: bool) -> Candidates:
    """Run all rows of a Plan at once, and keep the candidates."""
    images, *aligned = batch
    plans = redraw_for_each(images, plan, call) if call.adaptation.recipe.resample else [plan]
    repeated = [call.ops.repeat_rows(each, plan.rows) if plan.rows > 1 else each for each in aligned]
    rows = [expand(images, plans, call.images), *repeated]
    context = ForwardContext(call.adaptation, plan, call.ops.shape(rows[0])[0], call.ops, call.layout)
    context.measurements = [] if measure else None
    if not plan.independent:
        matrices = [[line[plan.first :] for line in each[plan.first :]] for each in (plan.weights, plan.references)]
        context.weights, context.references = (call.ops.precise_constant(each, images) for each in matrices)
    if plan.blends and plan.rule is None:
        first, *others = plan.priors[plan.first :]
        same = all(prior == first for prior in others)
        context.priors = first if same else call.ops.precise_constant([[first], *([p] for p in others)], images)
    output = run_rows(rows, call.forward, context)
    calls = sum(context.calls.values())
    if plan.blends and calls < call.layout.calls:
        raise ModelError(
            f"The adapted layers ran {calls} times, but {call.layout.calls} times in the probe, so some were not "
            "adapted (a part that compiles itself, such as an inner tf.function or jax.jit, runs a "
            "cached trace). Expected the same layers in every call. Try: leave compilation to the framework's own "
            "call of the whole model."
        )
    return keep_candidates(output, context)


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


def check_map(argument: Array, images: Array, call: Call) -> None:
    """Raise if an argument belongs to the images pixel by pixel (a mask), and views move their pixels."""
    space = len(call.images.axes)
    is_map = len(argument.shape) >= space > 0 and argument.shape[-space:] == images.shape[-space:]
    if is_map and any(call.plan.moves_pixels(row) for row in range(call.plan.rows)):
        raise InputError(
            f"An argument of shape {tuple(argument.shape)} has the images' height and width, and would have to move "
            "with the pixels of their views. Try: a recipe without such views ('auto', 'shift', 'bn')."
        )


def redraw_for_each(images: Array, plan: Plan, call: Call) -> list[Plan]:
    """Return a Plan for every image, with views drawn from its content."""
    try:
        values = call.ops.to_numpy(images)
    except SymbolicError as error:
        raise refuse_resampling("A compiled or exported model") from error
    recipe, layout = call.adaptation.recipe, call.images
    seeds = [content_seed(np.moveaxis(image, layout.channel, -1), recipe.seed) for image in values]
    views = [make_views(recipe.augment, recipe.view_count, seed, layout.kind) for seed in seeds]
    return [replace(plan, views=(IMAGE, *each)) for each in views]


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
