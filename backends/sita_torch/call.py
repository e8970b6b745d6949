"""The `forward` of an adapted clone: the engine's call around the model's own forward, and its arguments."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn

from sita_adapters import engine
from sita_adapters.errors import InputError, ModelError, OutputError
from sita_adapters.inputs import ImageLayout
from sita_adapters.outputs import OutputLayout, flatten
from sita_adapters.recipe import Recipe
from sita_adapters.scores import find_normalized
from sita_adapters.state import Call, ProbeResult

from .clone import guard, unguard
from .hooks import unwrap_hooks, wrap_hooks
from .inspection import Adaptation, rank_error
from .ops import TORCH, TRACED, is_exported, is_traced
from .probe import probe


def adapted_forward(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run the adapted model. A module-level function, because exporters and pickle cannot handle closures."""
    return run_call(model, Arguments(args, kwargs)).rebuild(TORCH)


def run_call(model: nn.Module, arguments: Arguments, *, diagnosed: bool = False) -> engine.Answer:
    """Return the Answer of one call of an adapted model, after its probe if that is due."""
    adaptation: Adaptation = model._sita  # type: ignore[assignment]
    if not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
        raise InputError(
            f"An adapted {type(model).__name__} was called inside torch.func (vmap, jvp), which cannot trace it. "
            "Try: pass vmap's images as one batch; compute gradients with torch.autograd."
        )
    images, ops = arguments.images, TRACED if is_traced() else TORCH
    probed = adaptation.probes.get(arguments.signature)
    if probed is None:
        probe_now: Any = _probe_and_keep
        if "torch._dynamo" in sys.modules:  # a compiler must not trace the probe; `disable` would import it
            probe_now = torch.compiler.disable(_probe_and_keep)  # type: ignore[no-untyped-call]
        probed = probe_now(model, adaptation, arguments)
    elif images.shape[0] == 0:
        _refuse_empty(images)

    def forward(rows: list[torch.Tensor]) -> Any:
        args, kwargs = arguments.fill(rows, probed.aligned)
        output = own_forward(model, args, kwargs)
        if arguments.has_values and ops is TORCH:
            _check_kind(output, probed.layout)
        return output

    batch, space = arguments.batch(probed.aligned), probed.spatial_axes
    plan = adaptation.plan_of(images.shape[images.ndim - space :])
    axes = tuple(range(-min(space, 2), 0))
    layout = ImageLayout(ops, -(space + 1), axes, adaptation.settings.inputs)
    call = Call(adaptation, plan, probed, layout, forward, batch)
    if plan.has_views:
        for tensor in arguments.tensors[1:]:
            _check_map(tensor, images, call)
    return engine.answer(call, diagnosed=diagnosed)


def _refuse_empty(images: torch.Tensor) -> None:
    raise InputError(f"Expected at least one image; received an empty batch of shape {tuple(images.shape)}.")


def _check_map(argument: torch.Tensor, images: torch.Tensor, call: Call) -> None:
    """Raise if an argument belongs to the images pixel by pixel (a mask), and views move their pixels."""
    space = len(call.image_layout.axes)
    is_map = argument.ndim >= space > 0 and argument.shape[-space:] == images.shape[-space:]
    if is_map and any(call.plan.moves_pixels(row) for row in range(call.plan.rows)):
        raise InputError(
            f"An argument of shape {tuple(argument.shape)} has the images' height and width, but would not move "
            "with the pixels of their views. Try: a recipe without such views ('auto', 'shift', 'bn')."
        )


def check_output(output: Any, layout: OutputLayout, recipe: Recipe) -> None:
    """Raise if something changed an output after the forward."""
    found = {path: array.ndim for path, array in flatten(output, TORCH.is_array)}
    expected = dict(zip(layout.paths, map(len, layout.shapes), strict=True))
    if found != expected:
        raise OutputError(
            f"The forward of the model returns {', '.join(expected)}; a call returns {', '.join(found)}, with another "
            "structure or rank, because of a hook on the model itself or its own __call__. Try: adapt the model "
            "without it, and do the same after the call."
        )
    if recipe.combine != "mean":  # which turns logits into logarithms of probabilities
        _check_kind(output, layout)


def _check_kind(output: Any, layout: OutputLayout) -> None:
    """Raise if scores are not what they were in the probe: an argument may switch to probabilities."""
    found, scores = flatten(output, TORCH.is_array), layout.scores
    if scores is None or scores.kind.startswith("sigmoid") or len(found) != len(layout.paths):
        return
    values = TORCH.to_numpy(found[scores.index][1].movedim(layout.axes[scores.index] or 0, 0)[:1])
    kinds = [kind for kind, _ in find_normalized(values, [scores.class_axis])]
    changed = bool(kinds) if scores.kind == "logits" else scores.kind not in kinds
    if changed and np.isfinite(values).all():
        raise OutputError(
            f"The scores were {scores.kind} in the probe but not in this call: another argument, or a hook on the "
            "model itself, changes them. Try: adapt a separate model for each value, sita.adapt(model, example=…)."
        )


def _probe_and_keep(model: nn.Module, adaptation: Adaptation, arguments: Arguments) -> ProbeResult:
    """Probe the model for such arguments, and keep what it establishes."""
    if is_exported():
        raise ModelError(
            f"The adapted {type(model).__name__} was exported or traced before it was probed. Try: call it once, or "
            "sita.adapt(model, example=images)."
        )
    images = arguments.images
    wrong_rank = rank_error(images, adaptation.spatial_axes)
    if wrong_rank and (images.ndim < 2 or any(plan.has_views for plan in adaptation.plans.values())):
        raise wrong_rank
    if images.ndim == 0 or images.shape[0] == 0:
        _refuse_empty(images)

    def run(network: nn.Module, rows: list[torch.Tensor], aligned: tuple[bool, ...]) -> Any:
        args, kwargs = arguments.fill(rows, aligned)
        return own_forward(network, args, kwargs)

    try:
        found = probe(model, adaptation, arguments.tensors, run)
    except InputError as error:
        raise wrong_rank or error from error
    adaptation.probes[arguments.signature] = found
    return found


def probe_example(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Probe an adapted model on arguments of its forward, unless it was probed with such."""
    arguments = Arguments(args, kwargs)
    adaptation: Adaptation = model._sita  # type: ignore[assignment]
    if arguments.signature not in adaptation.probes:
        _probe_and_keep(model, adaptation, arguments)


def install_forward(model: nn.Module, adaptation: Adaptation) -> None:
    """Make a clone, whose layers are adapted, run its calls through the engine."""
    if "forward" in vars(model):  # an instance's own
        vars(model)["_sita_forward"] = vars(model).pop("forward")
    forward = functools.partial(adapted_forward, model)
    own = vars(model).get("_sita_forward") or functools.partial(type(model).forward, model)
    with suppress(TypeError, ValueError):  # exporters read the source's signature; its annotations may not pickle
        parameters = inspect.signature(own).parameters.values()
        bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in parameters]
        forward.__signature__ = inspect.Signature(bare)  # type: ignore[attr-defined]
    vars(model).update(_sita=adaptation, forward=forward)
    wrap_hooks(model)
    guard(model)


def remove_forward(model: nn.Module) -> None:
    """Make a copy of a clone run its own forward again."""
    for name in ("_sita", "forward"):
        vars(model).pop(name, None)  # some graph modules copy neither
    if "_sita_forward" in vars(model):
        vars(model)["forward"] = vars(model).pop("_sita_forward")
    unwrap_hooks(model)
    unguard(model)


def own_forward(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the forward of the source model: an instance's own, or its class's."""
    own = vars(model).get("_sita_forward")
    return type(model).forward(model, *args, **kwargs) if own is None else own(*args, **kwargs)


_IMAGE_KEYWORDS = ("pixel_values", "image", "images", "img", "x", "input", "inputs")
"""Keyword names that are searched for images first. The first four always mean images, and win over positions."""


class Arguments:
    """What a model is called with: `tensors` holds the images, then every other tensor."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args, self.kwargs = args, kwargs
        images = args[0] if args and not kwargs else None
        if not isinstance(images, torch.Tensor):
            images = _first_tensor([{name: kwargs.get(name) for name in _IMAGE_KEYWORDS[:4]}, *args, kwargs])
        if images is None:
            received = ", ".join(type(value).__name__ for value in (*args, *kwargs.values()))
            raise InputError(
                "Expected a tensor of images as an argument, or a list or dict that contains one; received "
                f"{received or 'nothing'}. Try: stack the images into one tensor, (N, C, …)."
            )
        self.images = images
        self.tensors = [images]
        self.has_values = False  # whether there are numbers, strings or other objects, which the signature leaves out
        structure = self._collect((args, kwargs))
        # What kind of arguments these are: structure, ranks and types. No sizes, numbers or strings.
        self.signature = structure, tuple((each.ndim, each.dtype) for each in self.tensors)

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
        if value is None or isinstance(value, bool):
            return value
        holder = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
        if any(isinstance(part, torch.Tensor) for part in (value if isinstance(value, tuple) else holder.values())):
            kind = type(value).__name__
            raise InputError(
                f"Expected tensors as arguments, alone or in lists, tuples and dicts; received a {kind} that holds "
                f"tensors. Try: pass these in a dict, and make the {kind} in the model's forward."
            )
        self.has_values = True
        return type(value).__name__

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
