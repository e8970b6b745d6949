"""The arguments of a call: which of them is the image, and how they become rows."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sita_adapters.errors import InputError
from sita_adapters.plan import Plan
from sita_adapters.view_steps import Canvas

from .layers import ImageLayout

SURE_KEYWORDS = ("pixel_values", "image", "images", "img")
"""What only an image is called; it is taken for one even where another tensor comes before it."""

IMAGE_KEYWORDS = (*SURE_KEYWORDS, "x", "input", "inputs")
"""Where an image is looked for among keyword arguments, before any other tensor is taken for it."""


@dataclass(frozen=True)
class _Slot:
    """Stands in the arguments where a tensor of the batch belongs."""

    number: int


class Arguments:
    """What a model is called with: an image batch, its companions (whose leading size is the batch's), and the rest.

    Who goes along with the image is settled once, by the whole batch: in a part of it, sizes may agree by chance. A
    mask that a whole batch shares, (1, …, h, w), is everyone's.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        place = find_image(args, kwargs)
        image: torch.Tensor = args[place] if isinstance(place, int) else kwargs[place]
        self.tensors = [image]
        self.template = self._empty((args, kwargs), image)

    @property
    def image(self) -> torch.Tensor:
        """The image batch."""
        return self.tensors[0]

    def part(self, batch: slice) -> Arguments:
        """Return the arguments for some of the images."""
        some = copy.copy(self)
        some.tensors = [tensor[batch] for tensor in self.tensors]
        return some

    def with_image(
        self, image: torch.Tensor, companion: Callable[[torch.Tensor], torch.Tensor]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with another image, and every companion changed along with it."""
        args, kwargs = _fill(self.template, [image, *map(companion, self.tensors[1:])])
        return args, kwargs

    def _empty(self, value: Any, image: torch.Tensor) -> Any:
        """Return the arguments with slots for the tensors of the batch, which are collected."""
        if value is image:
            return _Slot(0)
        if isinstance(value, torch.Tensor):
            if not _goes_along(value, image):
                return value
            self.tensors.append(value.expand(image.shape[0], *value.shape[1:]))
            return _Slot(len(self.tensors) - 1)
        if type(value) in (list, tuple):
            return type(value)([self._empty(part, image) for part in value])
        if type(value) is dict:
            return {key: self._empty(part, image) for key, part in value.items()}
        return value


def _fill(template: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(template, _Slot):
        return tensors[template.number]
    if type(template) in (list, tuple):
        return type(template)([_fill(part, tensors) for part in template])
    if type(template) is dict:
        return {key: _fill(part, tensors) for key, part in template.items()}
    return template


def _goes_along(value: torch.Tensor, image: torch.Tensor) -> bool:
    if value.ndim == 0:
        return False
    shared_mask = value.shape[0] == 1 and value.ndim > 2 and value.shape[-2:] == image.shape[-2:]
    return shared_mask or value.shape[0] == image.shape[0]


def find_image(args: Sequence[Any], kwargs: dict[str, Any]) -> int | str:
    """Return the position or the keyword of the image: what is called so, or else the first tensor."""
    for keyword in SURE_KEYWORDS:
        if isinstance(kwargs.get(keyword), torch.Tensor):
            return keyword
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


def expand(image: torch.Tensor, plans: Sequence[Plan], canvas: Canvas) -> torch.Tensor:
    """(B, …) → (B·R, …): the rows of an image stand together. One Plan for all images, or one for each."""
    if len(plans) == 1:
        return _rows(image, plans[0], canvas)
    return torch.cat([_rows(one, plan, canvas) for one, plan in zip(torch.split(image, 1), plans, strict=True)])


def _rows(image: torch.Tensor, plan: Plan, canvas: Canvas) -> torch.Tensor:
    """Return the rows of all these images, in the image's own memory layout."""
    if plan.view_of_row == (0,):
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


def expand_companion(
    companion: torch.Tensor, image: torch.Tensor, plans: Sequence[Plan], canvas: Canvas
) -> torch.Tensor:
    """Return a companion for every row. One that has the image's height and width (a mask) moves as the views do."""
    if len(plans) == 1:
        return _companion_rows(companion, image, plans[0], canvas)
    each = zip(torch.split(companion, 1), plans, strict=True)
    return torch.cat([_companion_rows(one, image, plan, canvas) for one, plan in each])


def _companion_rows(companion: torch.Tensor, image: torch.Tensor, plan: Plan, canvas: Canvas) -> torch.Tensor:
    if plan.view_of_row == (0,):
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
