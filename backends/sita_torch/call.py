"""The `forward` of an adapted clone: the engine's call around the model's own forward."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sita_adapters import engine
from sita_adapters.diagnostics import Diagnostics
from sita_adapters.errors import ModelError
from sita_adapters.outputs import OutputLayout
from sita_adapters.view_steps import ImageLayout
from sita_adapters.views import spatial_kind

from .arguments import Arguments
from .guards import guard, refuse_transforms
from .inspection import Stem, check_images
from .ops import TORCH, is_exported
from .probe import probe


@dataclass(eq=False)
class Adaptation(engine.Adaptation):
    """What makes a clone an adapted model; it is the clone's attribute `_sita`."""

    stem: Stem = field(default_factory=Stem)
    trainable: frozenset[str] = frozenset()
    """The parameters that the source trains; the clone's need no gradients."""


def adapted_forward(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run the adapted model. A module-level function: exporters and pickle follow no closure."""
    return _run(model, Arguments(args, kwargs), engine.predict)


def forward_with_diagnostics(model: nn.Module, images: torch.Tensor) -> tuple[Any, Diagnostics]:
    """Run the adapted model on images; return its output and the diagnostics."""
    found: tuple[Any, Diagnostics] = _run(model, Arguments((images,), {}), engine.predict_with_diagnostics)
    return found


def _run(model: nn.Module, arguments: Arguments, predict: Callable[..., Any]) -> Any:
    adaptation: Adaptation = model._sita  # type: ignore[assignment]
    refuse_transforms(model)
    images = arguments.images
    dimensions = check_images(images, adaptation.stem)
    layout = adaptation.layouts.get(arguments.signature)
    if layout is None:
        layout = _outside_compiler(_probe)(model, adaptation, arguments)
    axes = tuple(range(-min(dimensions, 2), 0))
    kind = spatial_kind(images.shape[images.ndim - dimensions :])
    image_layout = ImageLayout(TORCH, kind, -(dimensions + 1), axes, adaptation.inputs)

    def forward(rows: list[torch.Tensor]) -> Any:
        args, kwargs = arguments.fill(rows, layout.aligned)
        return own_forward(model, args, kwargs)

    return predict(arguments.batch(layout.aligned), forward, adaptation, image_layout, layout)


def own_forward(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the forward of the source model: an instance's own, or its class's."""
    own = vars(model).get("_sita_forward")
    return type(model).forward(model, *args, **kwargs) if own is None else own(*args, **kwargs)


def _probe(model: nn.Module, adaptation: Adaptation, arguments: Arguments) -> OutputLayout:
    """Probe the model for such arguments, and keep what it establishes."""
    if is_exported():
        raise ModelError(
            f"The adapted {type(model).__name__} is exported or traced before it was probed. Try: call it once, or "
            "sita.adapt(model, example=images)."
        )
    layout = probe(model, adaptation, arguments, own_forward)
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
    check_images(arguments.images, adaptation.stem)
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
