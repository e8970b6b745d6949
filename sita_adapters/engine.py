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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

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
from .shift import divergence_from_source, priors_by_shift
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
    """(R, R), of the Plan's departing rows; (1, R) where one line serves all."""
    origins: Array = None
    """(R,), of the departing rows."""
    priors: Any = None
    """λ of the departing rows: (R, 1), or a number for all."""
    rules: tuple[Any, Any, Any] | None = None
    """s, d_½ and A_½ of the departing rows, where there are rules: each (R, 1), or a number for all."""
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
    call = Call(adaptation, plan, ops.shape(rows[0])[0], ops, places=adaptation.recipe.places, findings=findings)
    _hand_over(plan.departing, images, call)
    if plan.rules and (gauged or is_observed(adaptation)):
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


def _hand_over(departing: Plan, images: Array, call: Call) -> None:
    """Give a call the Plan's numbers, in the images' kind of array."""
    ops = call.ops

    def column(values: Sequence[Any]) -> Any:
        return values[0] if departing.uniform else ops.precise_constant([[value] for value in values], images)

    lines = 1 if departing.uniform and not ops.is_traced(images) else departing.rows  # a trace may run on more images
    call.weights = ops.precise_constant(departing.weights[:lines], images)
    call.origins = ops.indices(departing.origins, images)
    if departing.rules:
        strengths, half_shifts, half_areas = zip(*departing.rules, strict=True)
        call.rules = column(strengths), column(half_shifts), column(half_areas)
    else:
        call.priors = column(departing.priors)


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
    """A layer's input, with the mean and biased variance of its measured entries and channels, (N, C)."""

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


FeaturesT = TypeVar("FeaturesT", bound=Features)

Measure = Callable[[slice], FeaturesT]
"""Measures some entries of a layer's input."""


def blend(
    measure: Measure[FeaturesT], source: tuple[Array, Array], epsilon: float, entries: Any, *, call: Call, name: str
) -> tuple[FeaturesT, Array, Array]:
    """Return a layer's features, and the mean and variance to normalise each entry with, (N, C), or (1, C) for all.

    From the features of the entries that have to be measured, and the source's statistics (C,). N, the number of
    `entries`, is B·R, or B·R·T where the model folds T parts (time, tokens) of an image into its batch; the parts of a
    row count together, as space does.
    """
    ops, xp, plan = call.ops, call.ops.xp, call.plan
    channels = int(source[0].shape[-1])
    parts = _parts_of_row(entries, call, name)
    features = measure(_measured_entries(parts, call))
    source = ops.cast(source[0], features.means), ops.cast(source[1], features.means)
    estimated = _estimate(features, channels, parts, call)
    area = features.area
    if parts is not None:  # a tensor of integers, where TensorFlow leaves the batch open
        area = area * (ops.cast(parts, source[0]) if ops.is_array(parts) else parts)
    mean, variance = _blend_rows(estimated, source, epsilon, area, call=call, name=name)
    if not ops.raises_on_overflow(variance):
        variance = mark_overflow(variance, xp)
    if mean.shape[1] != plan.departing.rows and mean.shape[0] != 1:  # one line for all rows, but not for all images
        every_row = (mean.shape[0], plan.departing.rows, channels)
        mean, variance = xp.broadcast_to(mean, every_row), xp.broadcast_to(variance, every_row)
    if plan.departing is not plan:
        mean, variance = _insert_among_source((mean, variance), source, call)
    mean, variance = xp.reshape(mean, (-1, channels)), xp.reshape(variance, (-1, channels))
    if parts is not None:
        mean, variance = ops.repeat_rows(mean, parts), ops.repeat_rows(variance, parts)
    return features, mean, variance


def _measured_entries(parts: Any, call: Call) -> slice:
    """Return which entries of a layer's input have to be measured: where one row departs from the source, its own."""
    plan = call.plan
    if parts is None and plan.rows > plan.departing.rows == 1:
        return slice(plan.first, None, plan.rows)
    return slice(None)


def _blend_rows(
    estimated: tuple[Array, Array], source: tuple[Array, Array], epsilon: float, area: Any, *, call: Call, name: str
) -> tuple[Array, Array]:
    """Return the statistics (B, R, C) of the departing rows, blended with the source's (C,) by the call's λ or rule.

    `estimated` is what the rows themselves say, of a layer whose entries have so many places.
    """
    ops, like = call.ops, source[0]
    priors = call.priors
    if call.rules is not None:
        divergence = divergence_from_source(*estimated, *source, epsilon=epsilon, xp=ops.xp)
        channels = int(like.shape[-1])
        priors = priors_by_shift(divergence, channels, area, rules=[_cast(each, like, ops) for each in call.rules])
        if call.priors_set is not None:
            call.priors_set.append((name, priors, 0.5 / channels * divergence - 0.5))
    mean, variance = estimated
    return blend_with_source(mean, variance, *source, priors=_cast(priors, like, ops), xp=ops.xp)


def _estimate(features: Features, channels: int, parts: Any, call: Call) -> tuple[Array, Array]:
    """Return the statistics that the departing rows of each image estimate, (B, R, C); (B, 1, C) where all do alike."""
    ops, xp, plan = call.ops, call.ops.xp, call.plan
    shared = call.adaptation is not None and call.adaptation.recipe.share == "batch"
    weights = ops.cast(call.weights, features.means)
    if parts is None and not shared and not plan.alone:
        return features.target(weights, call.origins)
    rows = plan.departing.rows if _measured_entries(parts, call).step else plan.rows
    shape = (-1, rows, channels) if parts is None else (-1, rows, parts, channels)
    means, variances = (xp.reshape(moment, shape) for moment in (features.means, features.variances))
    if parts is not None:
        means, variances = pool(means, variances, axis=2, xp=xp)
    if rows > plan.departing.rows:
        departing = slice(plan.first, plan.first + plan.departing.rows)
        means, variances = means[:, departing], variances[:, departing]
    if plan.alone and not shared:
        return means, variances
    every_image = xp.zeros_like(means)
    if shared:
        means, variances = (moment[None] for moment in pool(means, variances, axis=0, xp=xp))
    mean, variance = target(means, variances, weights=weights, origins=call.origins, xp=xp)
    return mean + every_image, variance + every_image


def _insert_among_source(
    statistics: tuple[Array, Array], source: tuple[Array, Array], call: Call
) -> tuple[Array, Array]:
    """Return the statistics of all rows: those given, (B, R, C), of the departing ones, the source's of the others."""
    plan, ops = call.plan, call.ops
    after = plan.rows - plan.first - plan.departing.rows
    found = []
    for statistic, value in zip(statistics, source, strict=True):
        one = ops.for_every_image(value, statistics[0])
        found.append(ops.concat([*[one] * plan.first, statistic, *[one] * after], axis=1))
    return found[0], found[1]


def _cast(value: Any, like: Array, ops: Ops) -> Any:
    return value if isinstance(value, float) else ops.cast(value, like)


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
