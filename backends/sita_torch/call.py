"""The `forward` of an adapted clone: the engine's call, around the model's own forward."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from sita_adapters import engine
from sita_adapters.errors import InputError, SitaError
from sita_adapters.view_steps import Canvas
from sita_adapters.views import spatial_kind

from .arguments import Arguments, check_images
from .batchnorm import adaptation_of_layer
from .guards import guard
from .inspection import ImageLayout
from .ops import TORCH


@dataclass(eq=False)
class Adaptation(engine.Adaptation):
    """What makes a clone an adapted model; it is the clone's attribute `_sita`."""

    layout: ImageLayout = field(default_factory=ImageLayout)
    own_forward: Callable[..., Any] | None = None
    """An instance's own `forward`, where the source model had one; else its class's is run."""


def adapted_forward(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run the adapted model. A module-level function, because exporters and pickle follow no closure."""
    adaptation: Adaptation = model._sita  # type: ignore[assignment]
    arguments = Arguments(args, kwargs)
    images = arguments.batch[0]
    dimensions = check_images(images, adaptation.layout)
    kind = spatial_kind(images.shape[images.ndim - dimensions :])
    canvas = Canvas(TORCH, kind, -(dimensions + 1), tuple(range(-min(dimensions, 2), 0)), adaptation.inputs)

    def forward(rows: list[torch.Tensor]) -> Any:
        row_args, row_kwargs = arguments.fill(rows)
        return own_forward(model, adaptation, *row_args, **row_kwargs)

    try:
        return engine.predict(arguments.batch, forward, adaptation, canvas)
    except SitaError:
        raise
    except Exception as error:
        if not images.is_floating_point():
            raise InputError(
                f"{type(model).__name__} failed on images of {images.dtype}: {error} Expected floating-point images, "
                "unless the model converts them itself. Remedy: convert and normalise them as for the source model."
            ) from error
        raise


def own_forward(model: nn.Module, adaptation: Adaptation, *args: Any, **kwargs: Any) -> Any:
    """Run the forward that the source model has."""
    if adaptation.own_forward is not None:
        return adaptation.own_forward(*args, **kwargs)
    return type(model).forward(model, *args, **kwargs)


def install_forward(model: nn.Module, adaptation: Adaptation) -> None:
    """Make a clone, whose layers are attached, run its calls through the adaptation."""
    forward = functools.partial(adapted_forward, model)
    signature = _signature(adaptation.own_forward or functools.partial(type(model).forward, model))
    if signature is not None:
        forward.__signature__ = signature  # type: ignore[attr-defined]
    vars(model).update(_sita=adaptation, forward=forward)
    guard(model)
    if isinstance(model, torch.fx.GraphModule):  # its own way to copy itself keeps none of the above
        model._register_deepcopy_hook(_install_again)


def _install_again(copied: Any) -> None:
    """Deepcopy hook of an adapted graph module."""
    adaptation: Any = next(filter(None, map(adaptation_of_layer, copied.modules())))
    install_forward(copied, adaptation)


def _signature(function: Any) -> inspect.Signature | None:
    """Return the signature that the source's forward shows, which exporters read; its annotations may not pickle."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return inspect.Signature(bare)
