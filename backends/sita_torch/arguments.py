"""The arguments of a call: which of them is the images, and which have one entry per image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sita_adapters.errors import InputError

_SURE_KEYWORDS = ("pixel_values", "image", "images", "img")
"""Names that only images have; they count even if another tensor comes before."""

_IMAGE_KEYWORDS = (*_SURE_KEYWORDS, "x", "input", "inputs")
"""Where images are looked for among keyword arguments, before any other tensor."""


@dataclass(frozen=True)
class _Slot:
    """Stands for a tensor in the structure of the arguments."""

    number: int


class Arguments:
    """What a model is called with: `tensors` holds the images, then every other tensor, in a structure of slots."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.images = _find_images(args, kwargs)
        self.tensors = [self.images]
        self.template = self._take_out((args, kwargs))

    @property
    def signature(self) -> Any:
        """What kind of arguments these are: structure, ranks and types. No sizes, numbers or strings."""
        return _kind(self.template), tuple((each.ndim, each.dtype) for each in self.tensors)

    def could_be_aligned(self) -> tuple[bool, ...]:
        """Return, for each tensor but the images, whether it could have one entry per image: its size allows it."""
        count = self.images.shape[0]
        return tuple(each.ndim > 0 and each.shape[0] in (1, count) for each in self.tensors[1:])

    def batch(self, aligned: tuple[bool, ...]) -> list[torch.Tensor]:
        """Return the images, and the tensors with one entry per image; one that all images share is repeated."""
        count = self.images.shape[0]
        found = [self.images]
        for tensor, is_aligned in zip(self.tensors[1:], aligned, strict=True):
            if is_aligned:
                if tensor.shape[0] not in (1, count):
                    raise InputError(
                        f"Expected an argument with one entry for each of the {count} images, as in the probe; "
                        f"received shape {tuple(tensor.shape)}."
                    )
                found.append(tensor.expand(count, *tensor.shape[1:]))
        return found

    def fill(self, rows: list[torch.Tensor], aligned: tuple[bool, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with these rows in place of the images and of the aligned tensors."""
        images, *others = rows
        remaining = iter(others)
        tensors = [images]
        for tensor, is_aligned in zip(self.tensors[1:], aligned, strict=True):
            tensors.append(next(remaining) if is_aligned else tensor)
        args, kwargs = _fill(self.template, tensors)
        return args, kwargs

    def _take_out(self, value: Any) -> Any:
        """Return the arguments with slots for the tensors, which are collected."""
        if value is self.images:
            return _Slot(0)
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return _Slot(len(self.tensors) - 1)
        if type(value) in (list, tuple):
            return type(value)([self._take_out(part) for part in value])
        if type(value) is dict:
            return {key: self._take_out(part) for key, part in value.items()}
        return value


def _kind(template: Any) -> Any:
    if isinstance(template, _Slot):
        return template.number
    if type(template) in (list, tuple):
        return tuple(_kind(part) for part in template)
    if type(template) is dict:
        return tuple((key, _kind(part)) for key, part in template.items())
    return template if isinstance(template, bool) else type(template).__name__


def _fill(template: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(template, _Slot):
        return tensors[template.number]
    if type(template) in (list, tuple):
        return type(template)([_fill(part, tensors) for part in template])
    if type(template) is dict:
        return {key: _fill(part, tensors) for key, part in template.items()}
    return template


def _find_images(args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
    """Return the images: the argument with such a name, or else the first tensor, also in lists and dicts."""
    for keyword in _SURE_KEYWORDS:
        if isinstance(kwargs.get(keyword), torch.Tensor):
            return kwargs[keyword]  # type: ignore[no-any-return]
    named = [kwargs[keyword] for keyword in _IMAGE_KEYWORDS if keyword in kwargs]
    for value in (*args, *named, *kwargs.values()):
        images = _first_tensor(value)
        if images is not None:
            return images
    received = [type(value).__name__ for value in (*args, *kwargs.values())]
    raise InputError(
        "Expected a tensor of images as an argument, or a list or dict that contains one; received "
        f"{', '.join(received) or 'nothing'}. Try: stack the images to one tensor, (N, C, …)."
    )


def _first_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value
    if type(value) is dict:
        named = [value[keyword] for keyword in _IMAGE_KEYWORDS if keyword in value]
        parts = [*named, *value.values()]
    else:
        parts = list(value) if type(value) in (list, tuple) else []
    return next((found for found in map(_first_tensor, parts) if found is not None), None)
