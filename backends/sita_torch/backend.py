"""The PyTorch backend: adapt, describe, unwrap."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from sita_adapters.backend import Settings, Written
from sita_adapters.description import Description, LayerInfo
from sita_adapters.errors import AlreadyAdaptedError, NotAdaptedError, SitaWarning, UnknownModelError
from sita_adapters.observation import refuse_compiled
from sita_adapters.recipe import Recipe
from sita_adapters.selection import select
from sita_adapters.voting import Scores, read_scores

from .blending import adaptation_of_layer, attach, detach
from .cascade import Cascade
from .cutting import find_ending
from .exporting import FORMATS, export
from .forward import Adaptation, adapted_forward
from .guards import guard, unguard
from .layers import find_layers, image_layout
from .runner import TorchRunner
from .structure import share, walk


class TorchBackend:
    """Adapts nn.Modules: a weight-sharing copy whose BatchNorm layers blend their statistics."""

    export_formats = FORMATS

    def adapt(self, model: Any, recipe: Recipe, settings: Settings) -> nn.Module:
        """Return an adapted copy in eval mode. Everything is checked before anything is made."""
        source = _module_of(model, warn=True)
        _refuse_adapted(source)
        found = find_layers(source)
        chosen = select(found, settings.layers)
        scores = read_scores(settings.scores, "logits")
        layers = tuple(
            LayerInfo(name, type(layer).__name__, layer.running_mean.numel(), name in chosen)  # type: ignore[operator]
            for name, layer in found.items()
        )
        layout = image_layout(source)
        copied = share(source).eval()
        own_forward = vars(copied).get("forward")
        adaptation = Adaptation(
            recipe, settings.inputs, scores, settings.output, settings.max_rows, layers, layout, own_forward
        )
        if len(chosen) < len(found) and adaptation.has_rows_without_answer:
            adaptation.ending = find_ending(copied, chosen, layout)
        for name, layer in find_layers(copied).items():
            attach(layer, adaptation, name, blends=name in chosen)
        _dress(copied, adaptation)
        return copied

    def describe(self, adapted: Any) -> Description:
        """Return what was done to an adapted model."""
        model = _module_of(adapted)
        adaptation = _adaptation_of(model)
        return Description(
            model=type(model).__name__,
            backend="torch",
            recipe=adaptation.recipe,
            inputs=adaptation.inputs,
            scores=adaptation.scores,
            layers=adaptation.layers,
            max_rows=adaptation.max_rows,
            frames=adaptation.layout.frames,
            views_end_after=None if adaptation.ending is None else adaptation.ending.after,
        )

    @contextmanager
    def observing(self, adapted: Any) -> Iterator[Adaptation]:
        """Give the adaptation, which tells of every vote; there is nothing to switch on."""
        if type(adapted).__name__ == "OptimizedModule":
            raise refuse_compiled("A torch.compile of the adapted model")
        watched = adapted.adapted if isinstance(adapted, Cascade) else adapted
        yield _adaptation_of(_module_of(watched))

    def cascade(self, model: Any, adapted: Any, threshold: float, scores: str | None) -> Cascade:
        """Return a module that runs the adapted model on what the plain one is unsure of."""
        adaptation = _adaptation_of(_module_of(adapted))
        return Cascade(_module_of(model), adapted, threshold, read_scores(scores, adaptation.scores), adaptation.output)

    def scores_of(self, model: Any) -> Scores:
        """Return "logits": what PyTorch's models put out."""
        return "logits"

    def export(self, adapted: Any, path: Path, format: str, example: Any) -> Written:
        """Write an adapted module to a file."""
        model = _module_of(adapted)
        return export(model, _adaptation_of(model), path, format, example)

    def runner(self) -> TorchRunner:
        """Return what runs modules on numpy arrays."""
        return TorchRunner()

    def unwrap(self, adapted: Any) -> nn.Module:
        """Return a plain copy of an adapted model, that shares its weights."""
        model = _module_of(adapted)
        _adaptation_of(model)
        plain = share(model)
        own_forward = _adaptation_of(plain).own_forward
        for name in ("_sita", "forward"):
            del vars(plain)[name]
        if own_forward is not None:
            vars(plain)["forward"] = own_forward
        unguard(plain)
        for layer in find_layers(plain).values():
            detach(layer)
        return plain


def _dress(model: nn.Module, adaptation: Adaptation) -> None:
    """Make a copy, whose layers are attached, run its calls through the adaptation."""
    forward = functools.partial(adapted_forward, model)
    signature = _signature(adaptation.own_forward or functools.partial(type(model).forward, model))
    if signature is not None:
        forward.__signature__ = signature  # type: ignore[attr-defined]
    vars(model).update(_sita=adaptation, forward=forward)
    guard(model)
    if isinstance(model, torch.fx.GraphModule):  # its own way to copy itself keeps none of the above
        model._register_deepcopy_hook(_dress_again)


def _dress_again(copied: Any) -> None:
    """Deepcopy hook of an adapted graph module."""
    adaptation = next(filter(None, map(adaptation_of_layer, copied.modules())))
    _dress(copied, adaptation)


def _signature(function: Any) -> inspect.Signature | None:
    """Return the signature that the source's forward shows, which exporters read; its annotations may not pickle."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return inspect.Signature(bare)


def _module_of(model: Any, *, warn: bool = False) -> nn.Module:
    """Return the module itself, or the one that a parallel or compiling wrapper runs; `warn` says so."""
    if not isinstance(model, nn.Module):
        raise UnknownModelError(
            f"Expected a torch.nn.Module; received an object of type {type(model).__qualname__}. "
            "Remedy: pass the module that computes the predictions."
        )
    if isinstance(model, DataParallel | DistributedDataParallel):
        inner = model.module
    elif type(model).__name__ == "OptimizedModule":  # torch.compile's; importing its class would load the compiler
        inner = model._orig_mod
    else:
        return model
    if warn:
        warnings.warn(
            f"{type(model).__name__} wraps a {type(inner).__name__}: the inner module was adapted, and is returned "
            "without the wrapper.",
            SitaWarning,
            stacklevel=4,
        )
    return _module_of(inner)


def _refuse_adapted(model: nn.Module) -> None:
    for path, item in walk(model):
        if isinstance(item, nn.Module) and ("_sita" in vars(item) or adaptation_of_layer(item) is not None):
            place = f"its {path!r}" if path else "it"
            raise AlreadyAdaptedError(
                f"Expected a plain {type(model).__name__}, but {place} is adapted already. Remedy: adapt the source "
                "model, or sita.unwrap(adapted) first."
            )


def _adaptation_of(model: nn.Module) -> Adaptation:
    adaptation = vars(model).get("_sita")
    if not isinstance(adaptation, Adaptation):
        raise NotAdaptedError(
            f"Expected a model that sita.adapt returned; received a plain {type(model).__name__}. "
            "Remedy: adapted = sita.adapt(model)."
        )
    return adaptation
