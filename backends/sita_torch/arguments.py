"""The arguments of a call: which of them is the image, and how they become rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from sita_adapters.errors import InputError
from sita_adapters.plan import Plan
from sita_adapters.views import Canvas

from .layers import ImageLayout

IMAGE_KEYWORDS = ("x", "input", "inputs", "image", "images", "img", "pixel_values")
"""Where an image is looked for among keyword arguments, before any other tensor is taken for it."""


class Arguments:
    """What a model is called with: an image batch, its companions (whose leading size is the batch's), and the rest."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs
        self.place = find_image(args, kwargs)

    @property
    def image(self) -> torch.Tensor:
        """The image batch."""
        found: torch.Tensor = self.args[self.place] if isinstance(self.place, int) else self.kwargs[self.place]
        return found

    def with_image(
        self, image: torch.Tensor, companion: Callable[[torch.Tensor], torch.Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with another image, and every companion changed along with it."""
        count = self.image.shape[0]

        def change(place: int | str, value: Any) -> Any:
            if place == self.place:
                return image
            follows = isinstance(value, torch.Tensor) and value.ndim > 0 and value.shape[0] == count
            return companion(value) if follows else value

        return (
            tuple(change(place, value) for place, value in enumerate(self.args)),
            {place: change(place, value) for place, value in self.kwargs.items()},
        )


def find_image(args: Sequence[Any], kwargs: dict[str, Any]) -> int | str:
    """Return the position or the keyword of the first tensor, which is the image."""
    for position, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            return position
    for keyword in (*IMAGE_KEYWORDS, *kwargs):
        if isinstance(kwargs.get(keyword), torch.Tensor):
            return keyword
    received = [type(value).__name__ for value in (*args, *kwargs.values())]
    raise InputError(
        f"Expected a tensor of images as an argument; received {', '.join(received) or 'nothing'}. "
        "Remedy: stack the images to one tensor."
    )


def check_image(image: torch.Tensor, layout: ImageLayout) -> int:
    """Return how many spatial axes the images have, after checking that they are a batch of them."""
    rank, dimensions = image.ndim, layout.dimensions
    if dimensions is None:
        if rank < 2:
            raise InputError(f"Expected a batch, of rank 2 or more; received shape {tuple(image.shape)}.")
        dimensions = min(rank - 2, 2)
    elif rank not in (dimensions + 2, dimensions + 3):
        one = "if this is one image, image.unsqueeze(0); if it is a batch without channels, image.unsqueeze(1)"
        remedy = one if rank == dimensions + 1 else "check the shape"
        raise InputError(
            f"Expected a batch of images of rank {dimensions + 2} (N, C, …), or {dimensions + 3} with time; received "
            f"rank {rank}, shape {tuple(image.shape)}. Remedy: {remedy}."
        )
    if image.shape[0] == 0:
        raise InputError(
            f"Expected at least one image; received an empty batch of shape {tuple(image.shape)}. "
            "Remedy: leave empty batches out."
        )
    channels = image.shape[-dimensions - 1]
    if layout.channels is not None and channels != layout.channels and image.shape[-1] == layout.channels:
        raise InputError(
            f"Expected images with channels first, (N, {layout.channels}, …); received shape {tuple(image.shape)}, "
            "which looks like channels last: views would turn and flip the wrong axes. Remedy: permute before the "
            "adapted "
            "model, not inside it."
        )
    return dimensions


def expand(image: torch.Tensor, plan: Plan, canvas: Canvas) -> torch.Tensor:
    """(B, …) → (B·R, …): the rows of an image stand together, in the image's own memory layout."""
    if plan.rows == 1:
        return image
    if not image.is_floating_point() and not all(plan.views[view].lossless for view in plan.view_of_row):
        names = ", ".join(view.name for view in plan.views if not view.lossless)
        raise InputError(
            f"The views {names} compute new pixel values, which integers cannot hold; received {image.dtype}. "
            "Remedy: give floating-point images, or take augment='lossless'."
        )
    used = sorted(set(plan.view_of_row))
    views = {view: plan.views[view].apply(image, canvas) for view in used}
    rows = torch.stack([views[view] for view in plan.view_of_row], dim=1).flatten(0, 1)
    if image.ndim == 4 and image.is_contiguous(memory_format=torch.channels_last) and not image.is_contiguous():
        return rows.contiguous(memory_format=torch.channels_last)
    return rows


def expand_companion(companion: torch.Tensor, image: torch.Tensor, plan: Plan, canvas: Canvas) -> torch.Tensor:
    """Return a companion for every row. One that has the image's height and width (a mask) moves as the views do."""
    if plan.rows == 1:
        return companion
    space = len(canvas.axes)
    if companion.ndim <= space or companion.shape[-space:] != image.shape[-space:]:
        return companion.repeat_interleave(plan.rows, 0)
    moved: dict[int, torch.Tensor] = {}
    for view in sorted(set(plan.view_of_row)):
        steps = [step for step in plan.views[view].steps if step.moves_pixels]
        if not companion.is_floating_point() and not all(step.lossless for step in steps):
            raise InputError(
                f"The view {plan.views[view].name!r} moves pixels to places between pixels, where an argument of "
                f"{companion.dtype} and shape {tuple(companion.shape)} has no values. Remedy: give it in floating "
                "point, or take augment='lossless'."
            )
        moved[view] = plan.views[view].move(companion, canvas)
    return torch.stack([moved[view] for view in plan.view_of_row], dim=1).flatten(0, 1)
