"""What a model is made of: its BatchNorm layers, the layout of its images, and what cannot be adapted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from sita_adapters.errors import (
    BatchStatisticsError,
    FusedModelError,
    NoBatchNormError,
    ScriptedModelError,
    UninitialisedModelError,
)
from sita_adapters.views import SpatialKind

from .clone import walk


def find_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the BatchNorm layers by name, of a model that can be adapted; raise for any other."""
    modules: dict[str, nn.Module] = {}
    for path, item in walk(model):
        if isinstance(item, torch.jit.ScriptModule) and next(iter(item.state_dict()), None) is not None:
            raise ScriptedModelError(
                f"{_place(path, item)} is scripted or traced: a compiled graph runs its layers without hooks, so "
                "nothing could be adapted. Expected an eager nn.Module. Remedy: adapt the model before "
                "torch.jit.trace, and trace the adapted one."
            )
        if isinstance(item, torch.Tensor) and is_lazy(item):
            raise UninitialisedModelError(
                f"{path!r} is an uninitialised lazy tensor: it has no values yet. Expected a trained model. "
                "Remedy: run the model once, or load its weights, before adapting it."
            )
        if isinstance(item, nn.Module):
            modules[path] = item
    mixing = [path for path, item in modules.items() if isinstance(item, _BatchNorm) and item.running_mean is None]
    if mixing:
        raise BatchStatisticsError(
            f"{type(model).__name__} has BatchNorm layers without running statistics "
            f"(track_running_stats=False): {', '.join(mixing[:4])}. They normalise with the whole batch, so that "
            "images would mix. Expected layers that carry the source's statistics. Remedy: train with "
            "track_running_stats=True."
        )
    found = {path: item for path, item in modules.items() if is_batchnorm(item)}
    if not found:
        raise _nothing_to_adapt(model, modules)
    return found


def is_batchnorm(module: Any) -> bool:
    """Whether this module, of whatever library, normalises with source statistics of its own."""
    return (
        isinstance(getattr(module, "running_mean", None), torch.Tensor)
        and isinstance(getattr(module, "running_var", None), torch.Tensor)
        and isinstance(getattr(module, "eps", None), int | float)
        and not isinstance(module, _InstanceNorm)
    )


@dataclass(frozen=True)
class ImageLayout:
    """The images as the model's first convolution takes them: their spatial axes and channels. None: unknown."""

    dimensions: int | None = None
    channels: int | None = None

    @property
    def kinds(self) -> tuple[SpatialKind, ...]:
        """What the images can be."""
        return ("signal",) if self.dimensions == 1 else ("square", "rectangle")


def image_layout(model: nn.Module) -> ImageLayout:
    """Read the layout of the model's images from its first convolution."""
    for _, item in walk(model):
        if isinstance(item, _ConvNd):
            return ImageLayout(len(item.kernel_size), item.in_channels)
    return ImageLayout()


def _nothing_to_adapt(model: nn.Module, modules: dict[str, nn.Module]) -> NoBatchNormError:
    name = type(model).__name__
    convolutions = [item for item in modules.values() if isinstance(item, _ConvNd)]
    fused_away = any(
        (isinstance(item, nn.Identity) and "bn" in path.rpartition(".")[2].lower())
        or ".intrinsic." in type(item).__module__
        or isinstance(item, torch.fx.GraphModule)
        for path, item in modules.items()
    )
    if fused_away and convolutions and all(item.bias is not None for item in convolutions):
        return FusedModelError(
            f"{name} has no BatchNorm layer left, and its convolutions all have biases: it looks as if the "
            "BatchNorms were fused into them, if it ever had any. Expected BatchNorm layers with running statistics. "
            "Remedy: adapt the "
            "model before fusing it."
        )
    return NoBatchNormError(
        f"{name} has no BatchNorm layer with running statistics ({len(modules)} modules searched). "
        "SITA adapts BatchNorm statistics only; models with LayerNorm or GroupNorm have none."
    )


def _place(path: str, item: Any) -> str:
    return repr(path) if path else f"The model ({type(item).__name__})"
