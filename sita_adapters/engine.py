"""One call of an adapted model, the same in every framework.

    answer               the images, at most `max_rows` rows at a time
      expand             (B, …) → (B·R, …): the rows of an image are consecutive
      run_rows           the model's own forward pass, inside a ForwardContext
        LayerCall        at every adapted BatchNorm: measure → blend with the source's statistics   layer.py
      keep_candidates    (B·R, …) → (B, P, …): the rows that may answer                  combining.py
      combine            (B, P, …) → (B, …): mix, vote or mean                           combining.py

A row is one view of one image under one prior. A layer's batch has one or more entries per row. A backend supplies the
array operations (`Ops`) and the forward pass, and measures and normalizes at each layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .combining import Candidates, combine, join_arrays, join_parts, keep_candidates
from .diagnostics import Diagnostics, diagnose
from .errors import InputError, ModelError, OutputError, RecipeError
from .inputs import ImageLayout
from .ops import Array, Ops, SymbolicError
from .outputs import OutputLayout, changed_constants, flatten, rebuild
from .plan import Plan, make_plan, split_source
from .recipe import RECIPES
from .state import Call, Forward, ForwardContext, thread
from .views import IMAGE, content_seed, make_views

ROWS_AT_ONCE = 64

PLAIN = make_plan(RECIPES["source"])
"""The image alone, as the source model runs it."""


@dataclass(frozen=True)
class Answer:
    """What an adapted model answers for a batch of images, and how it got there.

    Attributes:
        output: An output of the model; the answer has its structure.
        arrays: The arrays of the answer, in the order of `layout.paths`, with the images first.
        layout: The layout of the output.
        plan: The Plan that ran; None if the call was compiled.
        weights: The weight of each candidate in a mix, (B, P): 1 for the row that supplies all outputs of an image, if
            one does. None without a mix.
        diagnostics: What was measured and decided, if it was asked for.
    """

    output: Any
    arrays: list[Array]
    layout: OutputLayout
    plan: Plan | None = None
    weights: Array | None = None
    diagnostics: Diagnostics | None = None

    def rebuild(self, ops: Ops) -> Any:
        """Return the answer in the model's structure."""
        parts = zip(self.layout.paths, self.arrays, self.layout.axes, strict=True)
        found = {path: ops.moveaxis(array, 0, axis) if axis else array for path, array, axis in parts}
        arrays = [found[path] for path, _ in flatten(self.output, ops.is_array)]  # a compiled call may sort a dict
        return rebuild(self.output, arrays, ops.is_array)

    @property
    def scores(self) -> Array:
        """The class scores, with the images first; an OutputError if there are none."""
        return self.arrays[self.layout.require_scores().index]


def read_answer(output: Any, layout: OutputLayout, ops: Ops) -> Answer:
    """Return the Answer that an output of a compiled call stands for: such a call returns nothing else.

    Arrays are found by their paths, because a compiled call may return a dict with its keys in another order.
    """
    found = dict(flatten(output, ops.is_array))
    if set(found) != set(layout.paths):
        raise OutputError(f"Expected {', '.join(layout.paths)}, as in the probe; received {', '.join(found)}.")
    pairs = zip(layout.paths, layout.axes, strict=True)
    arrays = [ops.moveaxis(found[path], axis, 0) if axis else found[path] for path, axis in pairs]
    return Answer(output, arrays, layout)


def answer(call: Call, *, diagnosed: bool = False) -> Answer:
    """Return the model's answer for a batch of images, each adapted to independently.

    With `max_rows`, images run in rounds, and an image's candidates in parts. The answers are the same. Without it, at
    most B or `ROWS_AT_ONCE` rows run at once, whichever is larger: arrays that do not fit into a cache are slow.
    """
    ops, adaptation, observers = call.image_layout.ops, call.adaptation, thread.observers
    observers = tuple([each for each in observers if each[0] is adaptation]) if observers else observers
    diagnosed = diagnosed or bool(observers)
    max_rows = adaptation.settings.max_rows
    count = call.batch[0].shape[0]  # None if a graph leaves it open
    traced = ops.is_traced(call.batch[0])
    parts = call.plan.parts or (split_source(call.plan) if traced and ops.is_exported() else (call.plan,))
    if max_rows is None and not traced and adaptation.recipe.share == "image":
        max_rows = max(count, ROWS_AT_ONCE)
    if max_rows is None or (count is not None and call.plan.rows * count <= max_rows):
        found = _answer_at_once(call, call.batch, parts, diagnosed)
    else:
        size = max(1, max_rows // call.plan.rows)
        found = _join(
            ops.map_batches(lambda some: _answer_at_once(call, some, parts, diagnosed), call.batch, size), ops
        )
    for _, observer in observers:
        observer.append(found, ops)
    return found


def _answer_at_once(call: Call, batch: list[Array], parts: Sequence[Plan], diagnosed: bool) -> Answer:
    """Run the parts of the Plan in sequence, and combine their candidates."""
    ops, measure = call.image_layout.ops, diagnosed or call.adaptation.recipe.combine == "mix"
    if len(parts) == 1:
        candidates = run_part(call, parts[0], batch, measure=measure)
    else:
        done: list[Candidates] = []
        for part in parts:
            copied = [ops.copy(array) for array in batch]  # a model may write to it
            with ops.after(done[-1].arrays if done else ()):
                done.append(run_part(call, part, copied, measure=measure))
        candidates = join_parts(done, call)
    combined = combine(candidates, call)
    found = diagnose(candidates, combined, call) if diagnosed else None
    return Answer(candidates.output, combined.arrays, call.probe.layout, call.plan, combined.weights, found)


def _join(answers: Sequence[Answer], ops: Ops) -> Answer:
    """Return the answers of several rounds joined into one."""
    first = answers[0]
    if len(answers) == 1:
        return first
    arrays = join_arrays([each.arrays for each in answers], first.layout.axes, 0, ops)
    weights = None if first.weights is None else ops.concat([each.weights for each in answers], axis=0)
    found = first.diagnostics
    if found is not None:
        every = [each.diagnostics.arrays for each in answers if each.diagnostics is not None]
        found = replace(found, arrays={name: ops.concat([one[name] for one in every], axis=0) for name in found.arrays})
    return replace(first, arrays=arrays, weights=weights, diagnostics=found)


def run_part(call: Call, plan: Plan, batch: list[Array], *, measure: bool) -> Candidates:
    """Run all rows of a Plan at once, and keep the candidates."""
    ops, (images, *aligned) = call.image_layout.ops, batch
    plans = _redraw_for_each(images, plan, call) if call.adaptation.recipe.resample else [plan]
    rows = [expand(images, plans, call.image_layout)]
    rows += [ops.repeat_rows(each, plan.rows) if plan.rows > 1 else each for each in aligned]
    context = ForwardContext(call.adaptation, plan, ops.shape(rows[0])[0], ops, call.probe)
    context.measurements = [] if measure else None
    output = run_rows(rows, call.forward, context)
    if plan.blends and sum(context.calls.values()) < call.probe.layer_calls:
        missed = [name for name in call.probe.entries_per_row if name not in context.calls]
        raise ModelError(
            f"{', '.join(map(repr, missed[:4])) or 'An adapted layer'} did not run as in the probe. Try: if layers "
            "were replaced, fused or converted since, change the source model and adapt it again; if the model keeps "
            "what it computed, switch that off; if a part of it compiles itself, leave compilation to the framework, "
            "which compiles the whole model."
        )
    if call.probe.constants and not ops.is_traced(images):
        _check_constants(output, images, call)
    return keep_candidates(output, context)


def _check_constants(output: Any, images: Array, call: Call) -> None:
    """Raise if a part of the output that was the same for all random images is not what it was."""
    same_shape = tuple(images.shape[1:]) == call.probe.image_shape
    if changed := changed_constants(output, call.probe.constants, same_shape, call.image_layout.ops):
        raise OutputError(
            f"{', '.join(changed[:4])} was a constant in the probe, and differs in this call. Expected the same in "
            "every call, or one entry per image: anything else is computed from the rows of all images. Try: adapt a "
            "module that returns one entry per image, and compute the rest from these; compute it in the forward pass, "
            "not in a hook function; or adapt again, if the source's weights have changed since."
        )


def expand(images: Array, plans: Sequence[Plan], layout: ImageLayout) -> Array:
    """(B, …) → (B·R, …): the rows of an image are consecutive. One Plan for all images, or one for each."""
    ops = layout.ops
    if len(plans) > 1:
        return ops.concat([expand(images[i : i + 1], [plan], layout) for i, plan in enumerate(plans)], axis=0)
    (plan,) = plans
    if plan.view_of_row == (0,):
        return images
    used = sorted(set(plan.view_of_row))
    lossy = [plan.views[view].name for view in used if view and not plan.views[view].lossless]
    if lossy and not ops.is_float(images):
        raise InputError(
            f"The views {', '.join(lossy)} compute new pixel values, which integers cannot hold; received "
            f"{images.dtype}. Try: floating-point images, or augment='lossless'."
        )
    views = {view: plan.views[view].apply(images, layout) if view else images for view in used}
    return ops.stack_rows([views[view] for view in plan.view_of_row], images)


def _redraw_for_each(images: Array, plan: Plan, call: Call) -> list[Plan]:
    """Return a Plan for every image, with views drawn from the image's content."""
    try:
        values = call.image_layout.ops.to_numpy(images)
    except SymbolicError as error:
        raise RecipeError(
            "resample: A compiled or exported model holds one set of views and cannot draw new ones for each image. "
            "Try: adapt without resample=True, or call the adapted model itself."
        ) from error
    recipe, channel = call.adaptation.recipe, call.image_layout.channel
    seeds = [content_seed(np.moveaxis(image, channel, -1), recipe.seed) for image in values]
    views = [make_views(recipe.augment, recipe.view_count, seed, plan.kind) for seed in seeds]
    return [replace(plan, views=(IMAGE, *each)) for each in views]


def run_rows(rows: list[Array], forward: Forward, context: ForwardContext) -> Any:
    """Run the model's forward pass inside this context."""
    outer, thread.context = thread.context, context
    try:
        return forward(rows)
    finally:
        thread.context = outer
