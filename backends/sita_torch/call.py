"""The `forward` of an adapted clone: the engine's call around the model's own forward, and its arguments."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from sita_adapters import engine
from sita_adapters.errors import InputError, ModelError, OutputError
from sita_adapters.outputs import OutputLayout, flatten, normalized
from sita_adapters.views import ImageLayout, spatial_kind

from .clone import guard, own_forward
from .inspection import check_images
from .ops import TORCH, TRACED, is_exported, is_traced
from .probe import probe


@dataclass(eq=False)
class Adaptation(engine.Adaptation):
    """What makes a clone an adapted model; it is the clone's attribute `_sita`."""

    spatial_axes: tuple[int, ...] = ()
    """The possible numbers of spatial axes of the images; empty if unknown."""
    trainable: frozenset[str] = frozenset()
    """The parameters that the source trains; the clone's need no gradients."""


def adapted_forward(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run the adapted model. A module-level function, because exporters and pickle cannot handle closures."""
    return run_call(model, Arguments(args, kwargs), engine.predict)


def forward_with_diagnostics(model: nn.Module, images: torch.Tensor) -> tuple[Any, dict[str, torch.Tensor]]:
    """Run the adapted model on images; return its output, and the diagnostics by name."""
    answer = run_call(model, Arguments((images,), {}), functools.partial(engine.answer, diagnose=True))
    return answer.rebuild(TORCH), answer.diagnostics.outputs(TORCH)


def run_call(model: nn.Module, arguments: Arguments, predict: Callable[..., Any]) -> Any:
    """Return what `predict` makes of this call of an adapted model, after its probe if that is due."""
    adaptation: Adaptation = model._sita  # type: ignore[assignment]
    if not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
        raise InputError(
            f"An adapted {type(model).__name__} was called inside torch.func (vmap, jvp), which cannot trace it. "
            "Try: pass vmap's images as one batch; compute gradients with torch.autograd."
        )
    images = arguments.images
    dimensions = check_images(images, adaptation.spatial_axes)
    layout, ops = adaptation.layouts.get(arguments.signature), TRACED if is_traced() else TORCH
    if layout is None:
        probe_now: Any = _probe_and_keep
        if "torch._dynamo" in sys.modules:  # a compiler must not trace the probe; `disable` would import it
            probe_now = torch.compiler.disable(_probe_and_keep)  # type: ignore[no-untyped-call]
        layout = probe_now(model, adaptation, arguments)

    def forward(rows: list[torch.Tensor]) -> Any:
        args, kwargs = arguments.fill(rows, layout.aligned)
        output = own_forward(model, args, kwargs)
        if arguments.has_values and ops is TORCH:
            _check_kind(output, layout)
        return output

    axes = tuple(range(-min(dimensions, 2), 0))
    kind = spatial_kind(images.shape[images.ndim - dimensions :])
    image_layout = ImageLayout(ops, kind, -(dimensions + 1), axes, adaptation.settings.inputs)
    call = engine.Call(adaptation, forward, image_layout, layout)
    for tensor in arguments.tensors[1:]:
        _check_map(tensor, images, call)
    return predict(call, arguments.batch(layout.aligned))


def _check_map(argument: torch.Tensor, images: torch.Tensor, call: engine.Call) -> None:
    """Raise if an argument belongs to the images pixel by pixel (a mask), and views move their pixels."""
    space = len(call.image_layout.axes)
    is_map = argument.ndim >= space > 0 and argument.shape[-space:] == images.shape[-space:]
    if is_map and any(call.plan.moves_pixels(row) for row in range(call.plan.rows)):
        raise InputError(
            f"An argument of shape {tuple(argument.shape)} has the images' height and width, but would not move "
            "with the pixels of their views. Try: a recipe without such views ('auto', 'shift', 'bn')."
        )


def _check_kind(output: Any, layout: OutputLayout) -> None:
    """Raise if scores are not what they were in the probe: an argument may switch to probabilities."""
    found, scores = flatten(output, TORCH.is_array), layout.scores
    if scores is None or scores.kind.startswith("sigmoid") or len(found) != len(layout.paths):
        return
    values = TORCH.to_numpy(found[scores.index][1].movedim(layout.axes[scores.index] or 0, 0)[:1])
    kinds = [kind for kind, _ in normalized(values, [scores.class_axis])]
    changed = bool(kinds) if scores.kind == "logits" else scores.kind not in kinds
    if changed and np.isfinite(values).all():
        raise OutputError(
            f"The scores were {scores.kind} in the probe but not in this call: another argument changes them. Try: "
            "adapt a separate model for each value, sita.adapt(model, example=…)."
        )


def _probe_and_keep(model: nn.Module, adaptation: Adaptation, arguments: Arguments) -> OutputLayout:
    """Probe the model for such arguments, and keep what it establishes."""
    if is_exported():
        raise ModelError(
            f"The adapted {type(model).__name__} was exported or traced before it was probed. Try: call it once, or "
            "sita.adapt(model, example=images)."
        )
    layout = adaptation.layouts[arguments.signature] = probe(model, adaptation, arguments)
    return layout


def probe_example(model: nn.Module, example: Any) -> None:
    """Probe an adapted model on an example of what it is called with, unless it was probed with such."""
    args = example if isinstance(example, tuple) else () if isinstance(example, dict) else (example,)
    arguments = Arguments(args, example if isinstance(example, dict) else {})
    adaptation: Adaptation = model._sita  # type: ignore[assignment]
    check_images(arguments.images, adaptation.spatial_axes)
    if arguments.signature not in adaptation.layouts:
        _probe_and_keep(model, adaptation, arguments)


def install_forward(model: nn.Module, adaptation: Adaptation) -> None:
    """Make a clone, whose layers are attached, run its calls through the engine."""
    if "forward" in vars(model):  # an instance's own
        vars(model)["_sita_forward"] = vars(model).pop("forward")
    forward = functools.partial(adapted_forward, model)
    own = vars(model).get("_sita_forward") or functools.partial(type(model).forward, model)
    with suppress(TypeError, ValueError):  # exporters read the source's signature; its annotations may not pickle
        parameters = inspect.signature(own).parameters.values()
        bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
        forward.__signature__ = inspect.Signature(bare)  # type: ignore[attr-defined]
    vars(model).update(_sita=adaptation, forward=forward)
    guard(model)


_IMAGE_KEYWORDS = ("pixel_values", "image", "images", "img", "x", "input", "inputs")
"""Keyword names that are searched for images first. The first four always mean images, and win over positions."""


class Arguments:
    """What a model is called with: `tensors` holds the images, then every other tensor."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs
        images = _first_tensor([{name: kwargs.get(name) for name in _IMAGE_KEYWORDS[:4]}, *args, kwargs])
        if images is None:
            received = ", ".join(type(value).__name__ for value in (*args, *kwargs.values()))
            raise InputError(
                "Expected a tensor of images as an argument, or a list or dict that contains one; received "
                f"{received or 'nothing'}. Try: stack the images into one tensor, (N, C, …)."
            )
        self.images = images
        self.tensors = [images]
        self.has_values = False
        """Whether there are numbers or strings, which the signature leaves out."""
        structure = self._collect((args, kwargs))
        self.signature = structure, tuple((each.ndim, each.dtype) for each in self.tensors)
        """What kind of arguments these are: structure, ranks and types. No sizes, numbers or strings."""

    def _collect(self, value: Any) -> Any:
        """Collect the tensors of a value; return its structure, with the number of each."""
        if value is self.images:
            return 0
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return len(self.tensors) - 1
        if type(value) in (list, tuple):
            return tuple([self._collect(part) for part in value])
        if type(value) is dict:
            return tuple([(key, self._collect(part)) for key, part in value.items()])
        self.has_values = self.has_values or (isinstance(value, str | int | float) and not isinstance(value, bool))
        return value if isinstance(value, bool) else type(value).__name__

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
        images, *others = rows
        remaining, is_aligned = iter(others), iter(aligned)

        def put(value: Any) -> Any:
            if value is self.images:
                return images
            if isinstance(value, torch.Tensor):
                return next(remaining) if next(is_aligned) else value
            if type(value) in (list, tuple):
                return type(value)([put(part) for part in value])
            return {key: put(part) for key, part in value.items()} if type(value) is dict else value

        return put(self.args), put(self.kwargs)


def _first_tensor(value: Any) -> torch.Tensor | None:
    """Return the first tensor, also in lists and dicts; in a dict, that with the name of images comes first."""
    if isinstance(value, torch.Tensor):
        return value
    parts = list(value) if type(value) in (list, tuple) else []
    if type(value) is dict:
        parts = [*(value[name] for name in _IMAGE_KEYWORDS if name in value), *value.values()]
    return next((found for found in map(_first_tensor, parts) if found is not None), None)
