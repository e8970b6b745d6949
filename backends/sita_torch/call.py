"""The `forward` of an adapted clone: the engine's call around the model's own forward, and its arguments."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sita_adapters import engine
from sita_adapters.errors import InputError, ModelError
from sita_adapters.outputs import OutputLayout
from sita_adapters.scores import check_kind
from sita_adapters.views import ImageLayout, spatial_kind

from .clone import guard, own_forward, refuse_transforms
from .inspection import check_images
from .ops import TORCH, is_exported, is_traced
from .probe import probe


@dataclass(eq=False)
class Adaptation(engine.Adaptation):
    """What makes a clone an adapted model; it is the clone's attribute `_sita`."""

    spatial_axes: tuple[int, ...] = ()
    """The numbers of spatial axes that the images may have; empty if it is open."""
    trainable: frozenset[str] = frozenset()
    """The parameters that the source trains; the clone's need no gradients."""


def adapted_forward(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run the adapted model. A module-level function: exporters and pickle follow no closure."""
    return _run(model, Arguments(args, kwargs), engine.predict)


def forward_with_diagnostics(model: nn.Module, images: torch.Tensor) -> tuple[Any, dict[str, torch.Tensor]]:
    """Run the adapted model on images; return its output, and the diagnostics by name."""
    answer = _run(model, Arguments((images,), {}), functools.partial(engine.answer, diagnose=True))
    return answer.rebuild(TORCH), answer.diagnostics.outputs(TORCH)


def _run(model: nn.Module, arguments: Arguments, predict: Callable[..., Any]) -> Any:
    adaptation: Adaptation = model._sita  # type: ignore[assignment]
    refuse_transforms(model)
    images = arguments.images
    dimensions = check_images(images, adaptation.spatial_axes)
    layout = adaptation.layouts.get(arguments.signature)
    if layout is None:
        layout = _outside_compiler(_probe)(model, adaptation, arguments)

    def forward(rows: list[torch.Tensor]) -> Any:
        args, kwargs = arguments.fill(rows, layout.aligned)
        output = own_forward(model, args, kwargs)
        if arguments.has_values and not is_traced():
            check_kind(output, layout, TORCH)
        return output

    axes = tuple(range(-min(dimensions, 2), 0))
    kind = spatial_kind(images.shape[images.ndim - dimensions :])
    image_layout = ImageLayout(TORCH, kind, -(dimensions + 1), axes, adaptation.settings.inputs)
    call = engine.Call(adaptation, forward, image_layout, layout)
    for tensor in arguments.tensors[1:]:
        engine.check_map(tensor, images, call)
    return predict(call, arguments.batch(layout.aligned))


def _probe(model: nn.Module, adaptation: Adaptation, arguments: Arguments) -> OutputLayout:
    """Probe the model for such arguments, and keep what it establishes."""
    if is_exported():
        raise ModelError(
            f"The adapted {type(model).__name__} is exported or traced before it was probed. Try: call it once, or "
            "sita.adapt(model, example=images)."
        )
    layout = probe(model, adaptation, arguments)
    adaptation.layouts[arguments.signature] = layout
    return layout


def _outside_compiler(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that torch.compile does not trace. (If no compiler was imported, this would import it.)"""
    if "torch._dynamo" not in sys.modules:
        return function
    return torch.compiler.disable(function)  # type: ignore[no-untyped-call, no-any-return]


def probe_example(model: nn.Module, example: Any) -> None:
    """Probe an adapted model on an example of what it is called with, unless it was probed on such."""
    args = example if isinstance(example, tuple) else () if isinstance(example, dict) else (example,)
    arguments = Arguments(args, example if isinstance(example, dict) else {})
    adaptation: Adaptation = model._sita  # type: ignore[assignment]
    check_images(arguments.images, adaptation.spatial_axes)
    if arguments.signature not in adaptation.layouts:
        _probe(model, adaptation, arguments)


def install_forward(model: nn.Module, adaptation: Adaptation) -> None:
    """Make a clone, whose layers are attached, run its calls through the engine."""
    if "forward" in vars(model):  # an instance's own
        vars(model)["_sita_forward"] = vars(model).pop("forward")
    forward = functools.partial(adapted_forward, model)
    signature = _signature(vars(model).get("_sita_forward") or functools.partial(type(model).forward, model))
    if signature is not None:
        forward.__signature__ = signature  # type: ignore[attr-defined]
    vars(model).update(_sita=adaptation, forward=forward)
    guard(model)


def _signature(function: Any) -> inspect.Signature | None:
    """Return the signature of the source's forward, which exporters read, without annotations, which may not pickle."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return inspect.Signature(bare)


_IMAGE_KEYWORDS = ("pixel_values", "image", "images", "img", "x", "input", "inputs")
"""Keyword names that are searched for images first. The first four always mean images, and win over positions."""


@dataclass(frozen=True)
class _Slot:
    """Stands for a tensor in the structure of the arguments."""

    number: int


class Arguments:
    """What a model is called with: `tensors` holds the images, then every other tensor, in a structure of slots."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.images = _find_images(args, kwargs)
        self.tensors = [self.images]
        self.has_values = False
        """Whether there are numbers or strings, which the signature leaves out."""
        self.template = _map(self._take_out, (args, kwargs))

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
        for tensor in itertools.compress(self.tensors[1:], aligned):
            if tensor.shape[0] not in (1, count):
                raise InputError(
                    f"Expected an argument with one entry for each of the {count} images, as in the probe; received "
                    f"shape {tuple(tensor.shape)}."
                )
            found.append(tensor.expand(count, *tensor.shape[1:]))
        return found

    def fill(self, rows: list[torch.Tensor], aligned: tuple[bool, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with these rows in place of the images and of the aligned tensors."""
        remaining = iter(rows)
        pairs = zip(self.tensors, (True, *aligned), strict=True)
        tensors = [next(remaining) if is_aligned else tensor for tensor, is_aligned in pairs]
        args, kwargs = _map(lambda leaf: tensors[leaf.number] if isinstance(leaf, _Slot) else leaf, self.template)
        return args, kwargs

    def _take_out(self, leaf: Any) -> Any:
        """Return a slot for a tensor, which is collected."""
        if leaf is self.images:
            return _Slot(0)
        if isinstance(leaf, torch.Tensor):
            self.tensors.append(leaf)
            return _Slot(len(self.tensors) - 1)
        self.has_values = self.has_values or (isinstance(leaf, str | int | float) and not isinstance(leaf, bool))
        return leaf


def _map(function: Callable[[Any], Any], value: Any) -> Any:
    """Return lists, tuples and dicts with a function applied to everything else in them."""
    if type(value) in (list, tuple):
        return type(value)([_map(function, part) for part in value])
    if type(value) is dict:
        return {key: _map(function, part) for key, part in value.items()}
    return function(value)


def _kind(template: Any) -> Any:
    if isinstance(template, _Slot):
        return template.number
    if type(template) in (list, tuple):
        return tuple(_kind(part) for part in template)
    if type(template) is dict:
        return tuple((key, _kind(part)) for key, part in template.items())
    return template if isinstance(template, bool) else type(template).__name__


def _find_images(args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
    """Return the images: the argument with such a name, or else the first tensor, also in lists and dicts."""
    sure = {name: kwargs.get(name) for name in _IMAGE_KEYWORDS[:4]}
    images = _first_tensor([sure, *args, kwargs])
    if images is None:
        received = [type(value).__name__ for value in (*args, *kwargs.values())]
        raise InputError(
            "Expected a tensor of images as an argument, or a list or dict that contains one; received "
            f"{', '.join(received) or 'nothing'}. Try: stack the images to one tensor, (N, C, …)."
        )
    return images


def _first_tensor(value: Any) -> torch.Tensor | None:
    if isinstance(value, torch.Tensor):
        return value
    parts = list(value) if type(value) in (list, tuple) else []
    if type(value) is dict:
        parts = [*(value[name] for name in _IMAGE_KEYWORDS if name in value), *value.values()]
    return next((found for found in map(_first_tensor, parts) if found is not None), None)
