"""The `forward` of an adapted clone: the engine's call, around the model's own forward."""

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
from sita_adapters.errors import CloneError, InputError, SitaError
from sita_adapters.gauge import Gauge
from sita_adapters.trial import Findings
from sita_adapters.view_steps import Canvas
from sita_adapters.views import spatial_kind

from .arguments import Arguments, check_images
from .batchnorm import adaptation_of_layer
from .clone import clone
from .guards import guard, refuse_transforms
from .inspection import ImageLayout
from .link import Link
from .ops import TORCH, is_exported
from .trial import try_out


@dataclass(eq=False)
class Adaptation(engine.Adaptation):
    """What makes a clone an adapted model; it is the clone's attribute `_sita`."""

    layout: ImageLayout = field(default_factory=ImageLayout)
    link: Link = field(default_factory=Link)
    trainable: frozenset[str] = frozenset()
    """The parameters that the source trains; the clone's need no gradients."""
    writes: bool = False
    """Whether the model writes to its own state while it runs. Then every run of its forward has a clone to itself."""


def adapted_forward(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run the adapted model. A module-level function, because exporters and pickle follow no closure."""
    return _run(model, Arguments(args, kwargs), engine.predict)


def forward_with_gauge(model: nn.Module, images: torch.Tensor) -> tuple[Any, Gauge]:
    """Run the adapted model on images; return its output and the gauge of shift."""
    found: tuple[Any, Gauge] = _run(model, Arguments((images,), {}), engine.predict_with_gauge)
    return found


def _run(model: nn.Module, arguments: Arguments, predict: Callable[..., Any]) -> Any:
    """Make the engine predict, with the model's own forward."""
    adaptation: Adaptation = model._sita  # type: ignore[assignment]
    refuse_transforms(model)
    images = arguments.batch[0]
    dimensions = check_images(images, adaptation.layout)
    # Not is_traced(): where torch.compile gave this frame up, it would follow that one, and say yes.
    if torch.compiler.is_compiling() or is_exported():
        findings, writes = _known_findings(model, adaptation, arguments), False
    else:
        findings = _undisturbed(_findings)(model, adaptation, arguments)
        writes = adaptation.writes
    kind = spatial_kind(images.shape[images.ndim - dimensions :])
    canvas = Canvas(TORCH, kind, -(dimensions + 1), tuple(range(-min(dimensions, 2), 0)), adaptation.inputs)

    def forward(rows: list[torch.Tensor]) -> Any:
        running = _undisturbed(clone)(model, keep=[adaptation]) if writes else model
        return own_forward(running, arguments, rows)

    try:
        return predict(arguments.batch, forward, adaptation, canvas, findings)
    except SitaError:
        raise
    except Exception as error:
        if not images.is_floating_point():
            raise InputError(
                f"{type(model).__name__} failed on images of {images.dtype}: {error} Expected floating-point images, "
                "unless the model converts them itself. Remedy: convert and normalise them as for the source model."
            ) from error
        raise


def own_forward(model: nn.Module, arguments: Arguments, rows: list[torch.Tensor]) -> Any:
    """Run the forward that the source model has, on these rows: an instance's own, or its class's."""
    args, kwargs = arguments.fill(rows)
    own = vars(model).get("_sita_forward")
    return type(model).forward(model, *args, **kwargs) if own is None else own(*args, **kwargs)


def _findings(model: nn.Module, adaptation: Adaptation, arguments: Arguments) -> Findings | None:
    """Return what the model's trial found out for such arguments; it is held now if need be."""
    signature = arguments.signature
    adaptation.link.refresh()
    if signature not in adaptation.findings:
        findings, writes = try_out(model, adaptation, arguments, own_forward)
        if findings.keeps_state and not writes:
            raise CloneError(
                f"{type(model).__name__} answers by what earlier calls left in variables of its functions or in "
                "globals, which cannot be undone. Expected a model that keeps its state in its modules. Remedy: keep "
                "it there."
            )
        adaptation.findings[signature], adaptation.writes = findings, adaptation.writes or writes
    return adaptation.findings[signature]


def _known_findings(model: nn.Module, adaptation: Adaptation, arguments: Arguments) -> Findings | None:
    """Return what is known while a compiler or exporter follows, which cannot hold a trial."""
    if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
        adaptation.link.copy_all()
    findings = adaptation.findings.get(arguments.signature)
    if findings is not None and findings.keeps_state:
        raise CloneError(
            f"{type(model).__name__} answers by what earlier calls left in it, which a compiled or exported model "
            "would go on doing. Expected a model whose answers depend on its inputs alone. Remedy: call the "
            "adapted model uncompiled: there, every call starts from the source's state."
        )
    return findings


def _undisturbed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that torch.compile leaves alone, where it runs a model but could not follow this far."""
    return _without_compiler(function) if "torch._dynamo" in sys.modules else function


@functools.cache
def _without_compiler(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compiler.disable(function)  # type: ignore[no-untyped-call, no-any-return]


def try_out_example(model: nn.Module, example: Any) -> None:
    """Hold the trial of an adapted model now, on an example of what it is called with."""
    args = example if isinstance(example, tuple) else () if isinstance(example, dict) else (example,)
    arguments = Arguments(args, example if isinstance(example, dict) else {})
    adaptation: Adaptation = model._sita  # type: ignore[assignment]
    check_images(arguments.batch[0], adaptation.layout)
    _findings(model, adaptation, arguments)


def install_forward(model: nn.Module, adaptation: Adaptation) -> None:
    """Make a clone, whose layers are attached, run its calls through the adaptation."""
    own = vars(model).get("_sita_forward")
    forward = functools.partial(adapted_forward, model)
    signature = _signature(own or functools.partial(type(model).forward, model))
    if signature is not None:
        forward.__signature__ = signature  # type: ignore[attr-defined]
    vars(model).update(_sita=adaptation, forward=forward)
    guard(model)
    if isinstance(model, torch.fx.GraphModule):  # its own way to copy itself keeps none of the above
        vars(model).setdefault("_deepcopy_hooks", [])  # which torchvision's feature extractors lack
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
