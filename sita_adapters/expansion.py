"""Expand: an image becomes the rows of a Plan, and what goes along with it as many."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .errors import InputError
from .ops import Array, Ops, SymbolicError
from .plan import Plan, redraw, refuse_resampling
from .recipe import Recipe
from .view_steps import Canvas


def expand(images: Array, plans: Sequence[Plan], canvas: Canvas) -> Array:
    """(B, …) → (B·R, …): the rows of an image side by side. One Plan for all images, or one for each."""
    return _for_each_plan(images, plans, canvas.ops, lambda some, plan: _view_rows(some, plan, canvas))


def _view_rows(images: Array, plan: Plan, canvas: Canvas) -> Array:
    if plan.view_of_row == (0,):
        return images
    if not canvas.ops.is_float(images) and not all(plan.views[view].lossless for view in plan.view_of_row):
        names = ", ".join(view.name for view in plan.views if not view.lossless)
        raise InputError(
            f"The views {names} compute new pixel values, which integers cannot hold; received {images.dtype}. "
            "Remedy: give floating-point images, or take augment='lossless'."
        )
    views = {view: plan.views[view].apply(images, canvas) for view in sorted(set(plan.view_of_row))}
    return canvas.ops.stack_rows([views[view] for view in plan.view_of_row], images)


def expand_aligned(argument: Array, images: Array, plans: Sequence[Plan], canvas: Canvas) -> Array:
    """Return a batch-aligned argument for every row.

    One that has the images' height and width (a mask) moves as the views do.
    """
    return _for_each_plan(argument, plans, canvas.ops, lambda some, plan: _aligned_rows(some, images, plan, canvas))


def _aligned_rows(argument: Array, images: Array, plan: Plan, canvas: Canvas) -> Array:
    if plan.view_of_row == (0,):
        return argument
    space = len(canvas.axes)
    if len(argument.shape) <= space or argument.shape[-space:] != images.shape[-space:]:
        return canvas.ops.repeat_rows(argument, plan.rows)
    moved: dict[int, Array] = {}
    for view in sorted(set(plan.view_of_row)):
        steps = [step for step in plan.views[view].steps if step.moves_pixels]
        if not canvas.ops.is_float(argument) and not all(step.lossless for step in steps):
            raise InputError(
                f"The view {plan.views[view].name!r} moves pixels to places between pixels, where an argument of "
                f"{argument.dtype} and shape {tuple(argument.shape)} has no values. Remedy: give it in floating "
                "point, or take augment='lossless'."
            )
        moved[view] = plan.views[view].move(argument, canvas)
    return canvas.ops.stack_rows([moved[view] for view in plan.view_of_row], argument)


def _for_each_plan(array: Array, plans: Sequence[Plan], ops: Ops, make_rows: Callable[[Array, Plan], Array]) -> Array:
    if len(plans) == 1:
        return make_rows(array, plans[0])
    return ops.concat([make_rows(array[i : i + 1], plan) for i, plan in enumerate(plans)], axis=0)


def redraw_for_each(images: Array, plan: Plan, recipe: Recipe, canvas: Canvas) -> list[Plan]:
    """Return a Plan for every image, with views drawn by what is in it."""
    try:
        values = canvas.ops.to_numpy(images)
    except SymbolicError as error:
        raise refuse_resampling("A compiled or exported model") from error
    return [redraw(plan, recipe, canvas.kind, np.moveaxis(image, canvas.channel, -1)) for image in values]
