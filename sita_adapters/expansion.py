"""Expand: an image becomes the rows of a Plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .errors import InputError
from .ops import Array, SymbolicError
from .plan import Plan, redraw, refuse_resampling
from .recipe import Recipe
from .view_steps import ImageLayout


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


def check_aligned(argument: Array, images: Array, plan: Plan, layout: ImageLayout) -> None:
    """Raise where an argument belongs to the images pixel by pixel (a mask), and the Plan's views move pixels."""
    space = len(layout.axes)
    is_map = len(argument.shape) > space and argument.shape[-space:] == images.shape[-space:]
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
