"""The arguments of a call: which of them are the images, and which are aligned with them."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sita_adapters.errors import InputError

from .inspection import ImageLayout

_SURE_KEYWORDS = ("pixel_values", "image", "images", "img")
"""What only an image is called; it is taken for one even where another tensor comes before it."""

_IMAGE_KEYWORDS = (*_SURE_KEYWORDS, "x", "input", "inputs")
"""Where an image is looked for among keyword arguments, before any other tensor is taken for it."""


@dataclass(frozen=True)
class _Slot:
    """Stands in the arguments where a tensor of the batch belongs."""

    number: int


class Arguments:
    """What a model is called with: `batch` holds the images, then the arguments with an entry for each image.

    Which are aligned with the images is settled once, by the whole batch: in a part of it, sizes may agree by chance. A
    mask that a whole batch shares, (1, …, h, w), is repeated for each image.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        place = find_images(args, kwargs)
        images: torch.Tensor = args[place] if isinstance(place, int) else kwargs[place]
        self.batch = [images]
        self.template = self._take_out((args, kwargs), images)

    @property
    def signature(self) -> Any:
        """What kind of arguments these are: their structure, ranks and types, but no sizes."""
        return _kind(self.template), tuple((each.ndim, each.dtype) for each in self.batch)

    def fill(self, batch: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with another batch in the place of this one."""
        args, kwargs = _fill(self.template, batch)
        return args, kwargs

    def _take_out(self, value: Any, images: torch.Tensor) -> Any:
        """Return the arguments with slots for the tensors of the batch, which are collected."""
        if value is images:
            return _Slot(0)
        if isinstance(value, torch.Tensor):
            if not _is_batch_aligned(value, images):
                return value
            self.batch.append(value.expand(images.shape[0], *value.shape[1:]))
            return _Slot(len(self.batch) - 1)
        if type(value) in (list, tuple):
            return type(value)([self._take_out(part, images) for part in value])
        if type(value) is dict:
            return {key: self._take_out(part, images) for key, part in value.items()}
        return value


def _kind(template: Any) -> Any:
    if isinstance(template, _Slot):
        return template.number
    if isinstance(template, torch.Tensor):
        return template.ndim, template.dtype
    if type(template) in (list, tuple):
        return tuple(_kind(part) for part in template)
    if type(template) is dict:
        return tuple((key, _kind(part)) for key, part in template.items())
    return template if isinstance(template, bool | int | str | types.NoneType) else type(template).__name__


def _fill(template: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(template, _Slot):
        return tensors[template.number]
    if type(template) in (list, tuple):
        return type(template)([_fill(part, tensors) for part in template])
    if type(template) is dict:
        return {key: _fill(part, tensors) for key, part in template.items()}
    return template


def _is_batch_aligned(value: torch.Tensor, images: torch.Tensor) -> bool:
    if value.ndim == 0:
        return False
    shared_mask = value.shape[0] == 1 and value.ndim > 2 and value.shape[-2:] == images.shape[-2:]
    return shared_mask or value.shape[0] == images.shape[0]


def find_images(args: Sequence[Any], kwargs: dict[str, Any]) -> int | str:
    """Return the position or the keyword of the image: what is called so, or else the first tensor."""
    for keyword in _SURE_KEYWORDS:
        if isinstance(kwargs.get(keyword), torch.Tensor):
            return keyword
    for position, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            return position
    for keyword in (*_IMAGE_KEYWORDS, *kwargs):
        if isinstance(kwargs.get(keyword), torch.Tensor):
            return keyword
    received = [type(value).__name__ for value in (*args, *kwargs.values())]
    raise InputError(
        f"Expected a tensor of images as an argument; received {', '.join(received) or 'nothing'}. "
        "Remedy: stack the images to one tensor."
    )


def check_images(images: torch.Tensor, layout: ImageLayout) -> int:
    """Return how many spatial axes the images have, after checking that they are a batch of them."""
    rank, dimensions = images.ndim, layout.dimensions
    if dimensions is None:
        if rank < 2:
            raise InputError(f"Expected a batch, of rank 2 or more; received shape {tuple(images.shape)}.")
        dimensions = min(rank - 2, 2)
    elif rank not in (dimensions + 2, dimensions + 3):
        one = "if this is one image, image.unsqueeze(0); if it is a batch without channels, image.unsqueeze(1)"
        remedy = one if rank == dimensions + 1 else "check the shape"
        raise InputError(
            f"Expected a batch of images of rank {dimensions + 2} (N, C, …), or {dimensions + 3} with time; received "
            f"rank {rank}, shape {tuple(images.shape)}. Remedy: {remedy}."
        )
    if images.shape[0] == 0:
        raise InputError(
            f"Expected at least one image; received an empty batch of shape {tuple(images.shape)}. "
            "Remedy: leave empty batches out."
        )
    channels = images.shape[-dimensions - 1]
    if layout.channels is not None and channels != layout.channels and images.shape[-1] == layout.channels:
        raise InputError(
            f"Expected images with channels first, (N, {layout.channels}, …); received shape {tuple(images.shape)}, "
            "which looks like channels last: views would turn and flip the wrong axes. Remedy: permute before the "
            "adapted "
            "model, not inside it."
        )
    return dimensions
