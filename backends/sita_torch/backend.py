"""The PyTorch backend: adapt, describe, unwrap."""

from __future__ import annotations

import functools
import warnings
from typing import Any, NoReturn

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from sita_adapters.backend import Settings
from sita_adapters.description import Description, LayerInfo
from sita_adapters.errors import (
    AlreadyAdaptedError,
    NotAdaptedError,
    SharedWeightsError,
    SitaWarning,
    UnknownModelError,
)
from sita_adapters.recipe import Recipe
from sita_adapters.selection import select
from sita_adapters.voting import read_scores

from .blending import attach, detach, is_attached
from .forward import Adaptation, adapted_forward
from .layers import find_layers, image_dimensions
from .structure import share, walk

_OVERRIDES = ("_sita", "forward", "train", "load_state_dict")
"""The attributes that an adapted model has of its own, over those of its class."""


class TorchBackend:
    """Adapts nn.Modules: a weight-sharing copy whose BatchNorm layers blend their statistics."""

    def adapt(self, model: Any, recipe: Recipe, settings: Settings) -> nn.Module:
        """Return an adapted copy in eval mode. Everything is checked before anything is made."""
        source = _inner_module(model)
        _refuse_adapted(source)
        found = find_layers(source)
        chosen = select(found, settings.layers)
        scores = read_scores(settings.scores, "logits")
        layers = tuple(
            LayerInfo(name, type(layer).__name__, layer.running_mean.numel(), name in chosen)  # type: ignore[operator]
            for name, layer in found.items()
        )
        dimensions = image_dimensions(source)
        copied = share(source).eval()
        own_forward = vars(copied).get("forward")
        adaptation = Adaptation(recipe, settings.inputs, scores, layers, dimensions, own_forward)
        for name, layer in find_layers(copied).items():
            if name in chosen:
                attach(layer, adaptation, name)
        vars(copied).update(
            _sita=adaptation,
            forward=functools.partial(adapted_forward, copied),
            train=functools.partial(_train, copied),
            load_state_dict=functools.partial(_refuse_load, copied),
        )
        return copied

    def describe(self, adapted: Any) -> Description:
        """Return what was done to an adapted model."""
        adaptation = _adaptation_of(adapted)
        return Description(
            model=type(adapted).__name__,
            backend="torch",
            recipe=adaptation.recipe,
            inputs=adaptation.inputs,
            scores=adaptation.scores,
            layers=adaptation.layers,
        )

    def unwrap(self, adapted: Any) -> nn.Module:
        """Return a plain copy of an adapted model, that shares its weights."""
        _adaptation_of(adapted)
        plain = share(adapted)
        own_forward = _adaptation_of(plain).own_forward
        for name in _OVERRIDES:
            del vars(plain)[name]
        if own_forward is not None:
            vars(plain)["forward"] = own_forward
        for layer in find_layers(plain).values():
            detach(layer)
        return plain


def _inner_module(model: Any) -> nn.Module:
    """Return the module that a parallel or compiling wrapper runs, and say so."""
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
    warnings.warn(
        f"{type(model).__name__} wraps a {type(inner).__name__}: the inner module was adapted, and is returned without "
        "the wrapper. Wrap the adapted model again.",
        SitaWarning,
        stacklevel=4,
    )
    return _inner_module(inner)


def _refuse_adapted(model: nn.Module) -> None:
    for path, item in walk(model):
        if isinstance(item, nn.Module) and ("_sita" in vars(item) or is_attached(item)):
            place = f"its {path!r}" if path else "it"
            raise AlreadyAdaptedError(
                f"Expected a plain {type(model).__name__}, but {place} is adapted already. Remedy: adapt the source "
                "model, or sita.unwrap(adapted) first."
            )


def _adaptation_of(model: Any) -> Adaptation:
    adaptation = vars(model).get("_sita") if isinstance(model, nn.Module) else None
    if not isinstance(adaptation, Adaptation):
        raise NotAdaptedError(
            f"Expected a model that sita.adapt returned; received a plain {type(model).__name__}. "
            "Remedy: adapted = sita.adapt(model)."
        )
    return adaptation


def _train(model: nn.Module, mode: bool = True) -> nn.Module:
    """`train` of an adapted model: eval() passes, training does not."""
    if mode:
        raise SharedWeightsError(
            "An adapted model shares its weights and statistics with the source model, which training would change. "
            "Remedy: train the source model (in-place updates are seen here), or sita.unwrap(adapted)."
        )
    return type(model).train(model, mode)


def _refuse_load(model: nn.Module, *_: Any, **__: Any) -> NoReturn:
    """`load_state_dict` of an adapted model."""
    raise SharedWeightsError(
        f"Loading weights into an adapted {type(model).__name__} would overwrite the source model's, which it shares. "
        "Remedy: load them into the source model (the adapted one sees them), or into a model of their own."
    )
