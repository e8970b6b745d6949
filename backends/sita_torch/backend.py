"""The PyTorch backend: what the core asks of the framework."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from sita_adapters.backend import adaptation_of
from sita_adapters.binding import bind_recipe
from sita_adapters.engine import Answer, read_answer
from sita_adapters.errors import ModelError, SitaWarning
from sita_adapters.recipe import Recipe
from sita_adapters.selection import LayerInfo, Layers, match_layers
from sita_adapters.state import Settings

from .batchnorm import adapt_layer, is_adapted, restore_layer
from .call import Arguments, check_output, install_forward, probe_example, remove_forward
from .clone import clone
from .exporting import FORMATS, write
from .hooks import check_hooks
from .inspection import (
    Adaptation,
    find_layers,
    named_modules,
    named_tensors,
    read_statistics,
    source_statistics,
    spatial_axes,
)
from .ops import TORCH
from .own_call import check_call


class TorchBackend:
    """Adapts nn.Modules: a weight-sharing clone whose BatchNorm layers blend their statistics."""

    ops = TORCH
    label = "torch"
    export_formats = FORMATS

    def adapt(self, model: Any, recipe: Recipe, settings: Settings, layers: Layers, example: Any) -> nn.Module:
        """Return an adapted clone in eval mode."""
        source = _module_of(model, warn=True)
        adapted = [name for name, each in named_modules(source) if "_sita" in vars(each) or is_adapted(each)]
        if adapted:
            part = f"its {adapted[0]!r}" if adapted[0] else "it"
            raise ModelError(
                f"Expected a plain {type(source).__name__}, but {part} is already adapted. "
                "Try: adapt the source model, or sita.unwrap(adapted) first."
            )
        found = find_layers(source)
        check_hooks(source)
        forward_example = check_call(source, list(found), example)
        chosen = match_layers(found, layers)
        axes = spatial_axes(source)
        adaptation = Adaptation(
            recipe=bind_recipe(
                recipe, lambda: {name: read_statistics(found[name]) for name in found if name in chosen}
            ),
            settings=settings,
            layers=tuple(
                LayerInfo(name, type(layer).__name__, source_statistics(layer)[0].numel(), name in chosen)
                for name, layer in found.items()
            ),
            kinds=("signal",) if axes == (1,) else ("square", "rectangle"),
            model_name=type(source).__name__,
            spatial_axes=axes,
            trainable=frozenset(name for name, p in nn.Module.named_parameters(source) if p.requires_grad),
        )
        cloned = clone(source)
        cloned.eval()
        for name, layer in find_layers(cloned).items():
            adapt_layer(layer, adaptation, name, adapted=name in chosen)
        install_forward(cloned, adaptation)
        if forward_example is not None:
            probe_example(cloned, *forward_example)
        return cloned

    def unwrap(self, adapted: Any) -> nn.Module:
        plain = clone(_module_of(adapted))
        adaptation: Adaptation = vars(_module_of(adapted))["_sita"]
        remove_forward(plain)
        for layer in find_layers(plain).values():
            restore_layer(layer)
        for name, parameter in nn.Module.named_parameters(plain):
            parameter.requires_grad_(name in adaptation.trainable)
        return plain

    def adaptation_of(self, model: Any) -> Adaptation | None:
        return vars(_module_of(model)).get("_sita")

    @contextmanager
    def observing(self, adapted: Any) -> Iterator[object]:
        """Yield the adaptation; an eager module always has values to record."""
        if type(adapted).__name__ == "OptimizedModule":
            raise ModelError("A torch.compile'd model cannot be observed. Try: observe the adapted model itself.")
        yield adaptation_of(adapted)

    def call(self, model: Any, images: np.ndarray, *, channels_last: bool = False) -> Any:
        """Return the module's output, without gradients, on the device and in the precision of its weights."""
        with torch.no_grad():
            return model(_as_batch(model, images, channels_last))

    def run(self, adapted: Any, images: np.ndarray, *, channels_last: bool = False) -> Answer:
        """Return the Answer of an adapted module, or of a wrapper that runs one."""
        output, adaptation = self.call(adapted, images, channels_last=channels_last), adaptation_of(adapted)
        signature = Arguments((_as_batch(adapted, images[:1], channels_last),), {}).signature
        layout = adaptation.probes.get(signature, adaptation.latest_probe).layout
        check_output(
            output, layout, adaptation.recipe
        )  # a hook on the module itself, or its own __call__, may change it
        return read_answer(output, layout, TORCH)

    def write(self, adapted: Any, path: Path, format: str, example: Any, diagnostics: bool) -> tuple[int | None, ...]:
        return write(_module_of(adapted), path, format, example, diagnostics)


def _module_of(model: Any, *, warn: bool = False) -> nn.Module:
    """Return the module itself, or the one that a parallel or compiling wrapper runs; `warn` says so."""
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"Expected a torch.nn.Module; received an object of type {type(model).__qualname__}. "
            "Try: pass the module that computes the predictions."
        )
    if isinstance(model, DataParallel | DistributedDataParallel):
        inner = model.module
    elif type(model).__name__ == "OptimizedModule":  # torch.compile's; importing its class would load the compiler
        inner = model._orig_mod
    else:
        return model
    if warn:
        note = f"{type(model).__name__}: its inner module was adapted, and is returned without the wrapper."
        warnings.warn(note, SitaWarning, stacklevel=4)
    return _module_of(inner)


def _as_batch(model: nn.Module, images: np.ndarray, channels_last: bool) -> torch.Tensor:
    """Return numpy images as a tensor on the device and in the precision of a model's weights."""
    batch = torch.from_numpy(np.array(np.moveaxis(images, -1, 1) if channels_last else images, order="C"))
    like = next((tensor for _, tensor in named_tensors(model)), batch)
    floating = like.is_floating_point() and batch.is_floating_point()
    return batch.to(like.device, like.dtype if floating else batch.dtype)
