"""One call of an adapted model, the same for every framework.

    predict             the images, in rounds of at most `max_rows` rows
      expand            (B, …) → (B·R, …): the rows of an image side by side           expansion.py
      run_rows          the model's own forward, inside a Call that its layers look up
        enter_layer       at every adapted BatchNorm: the running Call
        blend             moments of the rows → the statistics that each is normalised with
      keep_candidates   (B·R, …) → (B, P, …): the rows that may answer                 candidates.py
      collapse          (B, P, …) → (B, …): the vote; the rest from the most certain   candidates.py

A backend lends its arrays (`Ops`), says how a forward is run, and measures and applies statistics at a layer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from .candidates import Answer, Candidates, collapse, concatenate, keep_candidates
from .errors import BypassError, InputError
from .expansion import expand, expand_aligned, redraw_for_each
from .gauge import Gauge
from .inputs import Inputs
from .observe import is_observed
from .ops import Array, Ops
from .outputs import Selector
from .plan import Plan, make_plan, split
from .recipe import RECIPES, Recipe
from .selection import LayerInfo
from .shift import priors_by_shift, shift
from .statistics import blend_with_source, mark_overflow, pool, target
from .trial import Findings
from .view_steps import Canvas
from .views import SpatialKind
from .voting import Scores


@dataclass(eq=False)
class Adaptation:
    """What makes a model an adapted one: the recipe, and how its images and outputs are read."""

    recipe: Recipe
    inputs: Inputs | None
    scores: Scores
    output: Selector
    max_rows: int | None
    layers: tuple[LayerInfo, ...]
    kinds: tuple[SpatialKind, ...]
    """What the model's images can be."""
    plans: dict[SpatialKind, tuple[Plan, tuple[Plan, ...]]] = field(init=False, repr=False)
    """The Plan for images of each kind, and the parts of it that run at once."""
    findings: dict[Any, Findings] = field(default_factory=dict, repr=False)
    """What trials found out about the model, for every signature of its inputs."""

    def __post_init__(self) -> None:
        # Made beforehand, so that a compiler that follows a call meets no numpy, and a bad max_rows is found now.
        self.plans = {kind: self._make_plan(kind) for kind in self.kinds}

    def plan_for(self, kind: SpatialKind) -> tuple[Plan, tuple[Plan, ...]]:
        """Return the Plan for images of this kind, and its parts."""
        return self.plans.get(kind) or self._make_plan(kind)

    def _make_plan(self, kind: SpatialKind) -> tuple[Plan, tuple[Plan, ...]]:
        plan = make_plan(self.recipe, kind)
        return plan, split(plan, self.max_rows)


@dataclass
class Call:
    """A run of the model's forward on B images of R rows each: what its layers need to know."""

    adaptation: Adaptation | None
    plan: Plan
    entries: Any
    """B·R: a number, or a symbol while a graph is traced."""
    ops: Ops
    weights: Array = None
    """(R, R), as in the Plan; (1, R) where one line serves all."""
    origins: Array = None
    """(R,), as in the Plan."""
    priors: Array = None
    """(R, 1), or (1, 1); with rules s, d_½ and A_½ of each, (R, 3) or (1, 3)."""
    watch: Callable[[str, Array], None] | None = None
    """Called with the name and the input of every adapted layer: how a model is inspected."""
    places: int | None = None
    """As in the recipe."""
    findings: Findings | None = None
    """What a trial found out; None while a compiler or exporter follows a model that was never tried."""
    layers_run: int = 0
    priors_set: list[tuple[str, Array, Array]] | None = None
    """The layers' names, λ that each set by a rule, (B, R, 1), or (B, 1, 1), and the shift that it saw: kept where
    somebody asks for it."""


class _Thread(threading.local):
    """A plain thread-local: compilers and exporters follow it, where they stop at a ContextVar."""

    call: Call | None

    def __init__(self) -> None:
        self.call = None  # set in every thread: a compiler guards on whether it is


_thread = _Thread()

PLAIN = make_plan(RECIPES["source"])
"""The image alone, as the source model runs it."""

Forward = Callable[[list[Array]], Any]
"""Runs the model on a batch: the images, and the arguments that are aligned with them."""


def predict(
    batch: list[Array], forward: Forward, adaptation: Adaptation, canvas: Canvas, findings: Findings | None
) -> Any:
    """Return the model's output for a batch of images, each adapted to on its own.

    `batch` holds the images (B, …), then the arguments that have an entry for each of them. Under `max_rows`, images
    run in rounds, and an image's priors in parts; the answers are the same. `findings` is what a trial found out.
    """
    plan, _ = adaptation.plan_for(canvas.kind)
    ops = canvas.ops

    def answer(some: list[Array]) -> Answer:
        return _answer(some, forward, adaptation, canvas, findings)

    images = batch[0].shape[0]  # None where a graph leaves it open
    if adaptation.max_rows is None or (images is not None and plan.rows * images <= adaptation.max_rows):
        return answer(batch).output
    return concatenate(ops.map_batches(answer, batch, max(1, adaptation.max_rows // plan.rows)), ops)


def predict_with_gauge(
    batch: list[Array], forward: Forward, adaptation: Adaptation, canvas: Canvas, findings: Findings | None
) -> tuple[Any, Gauge]:
    """Return what `predict` does, all rows at once, and the gauge of shift, as arrays that an exporter can follow."""
    answer = _answer(batch, forward, adaptation, canvas, findings, gauged=True)
    assert answer.gauge is not None
    return answer.output, answer.gauge


def _answer(
    batch: list[Array],
    forward: Forward,
    adaptation: Adaptation,
    canvas: Canvas,
    findings: Findings | None,
    *,
    gauged: bool = False,
) -> Answer:
    """Run the parts of the Plan one after the other, and collapse them."""
    plan, parts = adaptation.plan_for(canvas.kind)
    kept: list[Candidates] = []
    for part in parts:
        with canvas.ops.after(kept[-1].arrays if kept else ()):
            kept.append(_run_part(batch, forward, part, adaptation, canvas, findings, gauged=gauged))
    return collapse(kept, plan, adaptation, canvas.ops, gauged=gauged)


def _run_part(  # noqa: PLR0917
    batch: list[Array],
    forward: Forward,
    plan: Plan,
    adaptation: Adaptation,
    canvas: Canvas,
    findings: Findings | None,
    *,
    gauged: bool,
) -> Candidates:
    """Run all rows of a Plan at once, and keep those that may answer."""
    images, *aligned = batch
    resample = adaptation.recipe.resample
    plans = redraw_for_each(images, plan, adaptation.recipe, canvas) if resample else [plan]
    rows = [expand(images, plans, canvas), *(expand_aligned(each, images, plans, canvas) for each in aligned)]
    ops = canvas.ops
    lines = 1 if plan.uniform and not ops.is_traced(images) else plan.rows  # a trace may run on more images
    weights = ops.precise_constant(plan.weights[:lines], images)
    rules = plan.rules
    priors = ops.precise_constant(rules[:lines] if rules else [[prior] for prior in plan.priors[:lines]], images)
    origins = ops.indices(plan.origins, images)
    entries = ops.shape(rows[0])[0]
    call = Call(
        adaptation, plan, entries, ops, weights, origins, priors, places=adaptation.recipe.places, findings=findings
    )
    if rules and (gauged or is_observed(adaptation)):
        call.priors_set = []
    output = run_rows(rows, forward, call)
    if plan.blends and not call.layers_run:
        count = sum(layer.adapted for layer in adaptation.layers)
        raise BypassError(
            f"The model ran none of its {count} adapted layers, so nothing was adapted. Expected layers that are "
            "called, not their parameters used by functions or by another copy of the model (F.batch_norm, a forward "
            "patched from outside)."
        )
    return keep_candidates(output, call)


def run_rows(rows: list[Array], forward: Forward, call: Call) -> Any:
    """Run the model's forward inside this call."""
    outer, _thread.call = _thread.call, call
    try:
        return forward(rows)
    finally:
        _thread.call = outer


def running_call() -> Call | None:
    """Return the call that this thread is in."""
    return _thread.call


def enter_layer(name: str, x: Array, call: Call | None, caller: str | None = None) -> Call:
    """Count an adapted layer that runs inside a call; raise where it runs outside of one."""
    if call is None:
        raise BypassError(
            f"{caller or 'A call of a part of the model'} ran the adapted layer {name!r} outside a call of the adapted "
            "model, where there are no views to take statistics from. (A checkpointed backward pass runs layers again, "
            "too.) Remedy: call the adapted model itself, or use sita.unwrap(adapted) for the plain one."
        )
    call.layers_run += 1
    if call.watch is not None:
        call.watch(name, x)
    return call


class Features(Protocol):
    """A layer's input, measured: the mean and biased variance of each entry and channel, (N, C)."""

    @property
    def means(self) -> Array:
        """The means."""

    @property
    def variances(self) -> Array:
        """The variances."""

    @property
    def area(self) -> Any:
        """How many places an entry has: a number, or a symbol."""

    def target(self, weights: Array, origins: Array) -> tuple[Array, Array]:
        """Return `statistics.target` of R rows per image, for weights (R, R) or one line of them."""


def blend(
    features: Features, source: tuple[Array, Array], epsilon: float, entries: Any, *, call: Call, name: str
) -> tuple[Array, Array]:
    """Return the mean and variance that every entry of a layer's input is normalised with, (N, C), or (1, C) for all.

    From those of each entry (N, C), and the source's (C,). N is B·R, or B·R·T where the model folds T parts (time,
    tokens) of an image into its batch; the parts of a row count together, as space does.
    """
    ops, xp = call.ops, call.ops.xp
    channels = int(source[0].shape[-1])
    weights, priors = (ops.cast(each, source[0]) for each in (call.weights, call.priors))
    parts = _parts_of_row(entries, call, name)
    shared = call.adaptation is not None and call.adaptation.recipe.share == "batch"
    if parts is None and not shared and call.plan.alone:
        mean, variance = (
            xp.reshape(each, (-1, call.plan.rows, channels)) for each in (features.means, features.variances)
        )
    elif parts is None and not shared:
        mean, variance = features.target(weights, call.origins)
    else:
        shape = (-1, call.plan.rows, 1 if parts is None else parts, channels)
        moments = (xp.reshape(moment, shape) for moment in (features.means, features.variances))
        means, variances = pool(*moments, axis=2, xp=xp)
        every_image = xp.zeros_like(means)
        if shared:
            means, variances = (moment[None] for moment in pool(means, variances, axis=0, xp=xp))
        estimated = target(means, variances, weights=weights, origins=call.origins, xp=xp)
        mean, variance = (each + every_image for each in estimated)
    if call.plan.rules:
        area = features.area
        if parts is not None:  # a tensor of integers, where TensorFlow leaves the batch open
            area = area * (ops.cast(parts, mean) if ops.is_array(parts) else parts)
        seen = shift(mean, variance, source_mean=source[0], source_variance=source[1], epsilon=epsilon, xp=xp)
        priors = priors_by_shift(seen, area, rules=priors)
        if call.priors_set is not None:
            call.priors_set.append((name, priors, seen))
    mean, variance = blend_with_source(
        mean, variance, priors=priors, source_mean=source[0], source_variance=source[1], xp=xp
    )
    if not ops.raises_on_overflow(variance):
        variance = mark_overflow(variance, xp)
    if mean.shape[1] != call.plan.rows and mean.shape[0] != 1:  # one line for all rows, but not for all images
        every_row = (mean.shape[0], call.plan.rows, channels)
        mean, variance = xp.broadcast_to(mean, every_row), xp.broadcast_to(variance, every_row)
    mean, variance = xp.reshape(mean, (-1, channels)), xp.reshape(variance, (-1, channels))
    if parts is not None:
        mean, variance = ops.repeat_rows(mean, parts), ops.repeat_rows(variance, parts)
    return mean, variance


def _parts_of_row(entries: Any, call: Call, name: str) -> Any:
    """Return T for a layer that sees B·R·T leading entries, as (B, R, T); None where it is 1.

    That the model does not fold the other way round, (T, B·R), as two concatenated streams do, is what its trial found
    out.
    """
    if call.ops.is_symbol(entries) or call.ops.is_symbol(call.entries):
        return None if entries is call.entries else entries // call.entries
    parts = int(entries // call.entries)
    if parts == 0 or entries != parts * call.entries:
        raise InputError(
            f"Layer {name!r} received {entries} leading entries for {call.entries} rows: the model folds its batch in "
            f"a way that cannot be followed. Expected a multiple of {call.entries}. Remedy: leave the layer out with "
            "layers=."
        )
    if parts > 1 and call.findings is None and call.plan.blends:
        raise InputError(
            f"Layer {name!r} received {entries} leading entries for {call.entries} rows: the model folds more into its "
            "batch. Whether it keeps the entries of an image together cannot be found out while it is compiled or "
            "traced. Remedy: sita.adapt(model, example=images), or call the adapted model once before."
        )
    return parts if parts > 1 else None
