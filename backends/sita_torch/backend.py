"""The PyTorch backend: what the core asks of the framework."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from sita_adapters.backend import Settings, read_adaptation
from sita_adapters.errors import AlreadyAdaptedError, InputError, SitaWarning, UnknownModelError
from sita_adapters.observe import refuse_compiled
from sita_adapters.outputs import flatten
from sita_adapters.recipe import Recipe
from sita_adapters.selection import LayerInfo, select
from sita_adapters.voting import Scores, read_scores

from .batchnorm import adaptation_of_layer, attach, detach
from .call import Adaptation, install_forward, try_out_example
from .clone import clone
from .exporting import FORMATS, WithDiagnostics, read_example, write
from .guards import refuse_source_in_training, unguard
from .inspection import find_layers, image_layout, walk
from .link import Link
from .ops import TORCH


class TorchBackend:
    """Adapts nn.Modules: a weight-sharing clone whose BatchNorm layers blend their statistics."""

    ops = TORCH
    label = "torch"
    export_formats = FORMATS

    def adapt(self, model: Any, recipe: Recipe, settings: Settings) -> nn.Module:
        """Return an adapted clone in eval mode. Everything is checked before anything is made."""
        source = _module_of(model, warn=True)
        _refuse_adapted(source)
        found = find_layers(source)
        chosen = select(found, settings.layers)
        layout = image_layout(source)
        cloned = clone(source)
        link = Link(source, cloned)  # before what a class's own `train` may do, which may return nothing, too
        cloned.eval()
        adaptation = Adaptation(
            recipe=recipe,
            inputs=settings.inputs,
            scores=read_scores(settings.scores, "logits"),
            output=settings.output,
            max_rows=settings.max_rows,
            layers=tuple(
                LayerInfo(name, type(layer).__name__, layer.running_mean.numel(), name in chosen)  # type: ignore[operator]
                for name, layer in found.items()
            ),
            kinds=layout.kinds,
            layout=layout,
            link=link,
            trainable=frozenset(p for p, item in walk(source) if isinstance(item, nn.Parameter) and item.requires_grad),
        )
        for name, layer in find_layers(cloned).items():
            attach(layer, adaptation, name, adapted=name in chosen)
        if "forward" in vars(cloned):  # an instance's own
            vars(cloned)["_sita_forward"] = vars(cloned).pop("forward")
        install_forward(cloned, adaptation)
        if settings.example is not None:
            try_out_example(cloned, settings.example)
        return cloned

    def unwrap(self, adapted: Any) -> nn.Module:
        plain = clone(_module_of(adapted))
        adaptation: Adaptation = vars(_module_of(adapted))["_sita"]
        for name in ("_sita", "forward"):
            vars(plain).pop(name, None)  # some graph modules copy neither
        if "_sita_forward" in vars(plain):
            vars(plain)["forward"] = vars(plain).pop("_sita_forward")
        unguard(plain)
        for layer in find_layers(plain).values():
            detach(layer)
        for path, item in walk(plain):
            if isinstance(item, nn.Parameter):
                item.requires_grad_(path in adaptation.trainable)
        return plain

    def adaptation_of(self, model: Any) -> Adaptation | None:
        return vars(_module_of(model)).get("_sita")

    def source_name(self, adapted: Any) -> str:
        return type(_module_of(adapted)).__name__

    def scores_of(self, model: Any) -> Scores:
        return "logits"

    @contextmanager
    def observing(self, adapted: Any) -> Iterator[Adaptation]:
        """Give the adaptation; an eager module always has values to record."""
        if type(adapted).__name__ == "OptimizedModule":
            raise refuse_compiled("A torch.compile of the adapted model")
        yield read_adaptation(adapted)  # type: ignore[misc]

    def arrange(self, name: str, model: Any, images: np.ndarray) -> np.ndarray:
        """Return the images with their channels first."""
        refuse_source_in_training(model, name)
        first = next((module for module in model.modules() if hasattr(module, "in_channels")), None)
        channels = getattr(first, "in_channels", None)
        if channels == images.shape[1] != images.shape[-1]:
            raise InputError(
                f"images: expected channels last, (N, h, w, {channels}) for {name!r}; received shape {images.shape}, "
                "which looks like channels first. Remedy: images.transpose(0, 2, 3, 1); torch models get their own "
                "order from here."
            )
        return np.moveaxis(images, -1, 1)

    def run(self, model: Any, batch: np.ndarray) -> Any:
        """Return the module's output, without gradients, on the device and in the precision of its weights."""
        images = torch.from_numpy(np.array(batch, order="C"))
        like = next(itertools.chain(model.parameters(), model.buffers()), images)
        floating = like.is_floating_point() and images.is_floating_point()
        with torch.no_grad():
            return model(images.to(like.device, like.dtype if floating else images.dtype))

    def with_diagnostics(self, adapted: Any) -> WithDiagnostics:
        return WithDiagnostics(_module_of(adapted))

    def read_example(self, adapted: Any, example: Any) -> np.ndarray:
        return read_example(_module_of(adapted), example)

    def write(self, adapted: Any, path: Path, format: str, images: np.ndarray) -> None:
        write(_module_of(adapted), path, format, images)

    def file_outputs(self, output: Any) -> list[tuple[str, torch.Tensor]]:
        """Return the tensors of an output in their own order, which files keep."""
        return flatten(output, TORCH.is_array)


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
