"""What a model is made of: its BatchNorm layers, the images it may take, and what cannot be adapted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from sita_adapters import state
from sita_adapters.errors import InputError, ModelError
from sita_adapters.shift import Rule

from .ops import TORCH, as_kept_tensor


@dataclass(eq=False)
class Adaptation(state.Adaptation):
    """What makes a clone an adapted model; it is the clone's attribute `_sita`."""

    spatial_axes: tuple[int, ...] = ()  # the possible numbers of spatial axes of the images; empty if unknown
    trainable: frozenset[str] = frozenset()  # the parameters that the source trains; the clone's need no gradients

    def __post_init__(self) -> None:
        super().__post_init__()
        self._keep_arrays()

    def __setstate__(self, stored: dict[str, Any]) -> None:
        vars(self).update(stored)
        self._keep_arrays()

    def _keep_arrays(self) -> None:
        """Hold the numbers of a rule as tensors: compiled code takes them for inputs."""
        for prior in self.recipe.prior_values:
            if isinstance(prior, Rule):
                prior.keep_arrays(as_kept_tensor)


def named_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules of a model by name. (A model may define other `modules` methods of its own.)"""
    return list(nn.Module.named_modules(model))


def named_tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the parameters and buffers of a model by name."""
    return [*nn.Module.named_parameters(model), *nn.Module.named_buffers(model)]


def find_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the BatchNorm layers by name; raise a ModelError for a model that cannot be adapted."""
    modules = dict(named_modules(model))
    for name, module in modules.items():
        if isinstance(module, torch.jit.ScriptModule) and module.state_dict():
            raise ModelError(
                f"{repr(name) if name else f'The model ({type(module).__name__})'} is scripted or traced, and runs its "
                "layers without hooks. Expected an eager nn.Module. Try: adapt the model before scripting it."
            )
    if lazy := [name for name, tensor in named_tensors(model) if is_lazy(tensor)]:
        raise ModelError(
            f"{lazy[0]!r} of {type(model).__name__} is an uninitialized lazy tensor. Try: run the model once, or load "
            "its weights, before adapting it."
        )
    if mixing := [name for name, each in modules.items() if isinstance(each, _BatchNorm) and each.running_mean is None]:
        raise ModelError(
            f"Expected BatchNorm layers with running statistics; in {type(model).__name__}, {', '.join(mixing[:4])} "
            "normalize with the whole batch. Try: train with track_running_stats=True."
        )
    found = {name: module for name, module in modules.items() if is_batchnorm(module)}
    if not found:
        raise _nothing_to_adapt(model, modules)
    return found


def is_batchnorm(module: nn.Module) -> bool:
    """Whether this module, of any library, has the statistics of a BatchNorm layer.

    A wrapper that only passes on the attributes of a layer inside it (PEFT's, for example) does not count.
    """
    if isinstance(module, _InstanceNorm):
        return False
    mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    if not isinstance(mean, torch.Tensor) or not isinstance(variance, torch.Tensor):
        return False
    inside = (child for name, child in named_modules(module) if name)
    return all(getattr(child, "running_mean", None) is not mean for child in inside)


def source_statistics(layer: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the source's mean and variance, (C,); some layers hold them as (1, C, 1, 1)."""
    mean: Any = layer.running_mean
    variance: Any = layer.running_var
    return (mean, variance) if mean.ndim == 1 else (mean.reshape(-1), variance.reshape(-1))


def read_statistics(layer: nn.Module) -> tuple[np.ndarray, np.ndarray]:
    """Return the source's mean and variance, (C,), as numpy's arrays."""
    mean, variance = source_statistics(layer)
    return TORCH.to_numpy(mean), TORCH.to_numpy(variance)


def epsilon_of(layer: nn.Module) -> float:
    """Return the layer's ε: an attribute, or else 1e-5, as in frozen layers of detectors. The probe checks it."""
    values = [getattr(layer, name, None) for name in ("eps", "epsilon", "variance_epsilon")]
    known = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return float(known[0]) if known else 1e-5


def spatial_axes(model: nn.Module) -> tuple[int, ...]:
    """Return the numbers of spatial axes of the model's convolutions. Which of them comes first is not known."""
    found = [module for _, module in named_modules(model) if isinstance(module, _ConvNd)]
    return tuple(dict.fromkeys(len(module.kernel_size) for module in found))


def count_axes(images: torch.Tensor, possible: tuple[int, ...]) -> int:
    """Return the number of spatial axes of a batch of images: one of the possible ones, if their rank fits."""
    rank = images.ndim
    fitting = [axes for extra in (2, 3) for axes in possible if rank == axes + extra]
    if fitting:
        return fitting[0]
    return max(0, min(rank - 2, *possible) if possible else min(rank - 2, 2))


def rank_error(images: torch.Tensor, possible: tuple[int, ...]) -> InputError | None:
    """Return the error for images whose rank fits none of the possible numbers of spatial axes; None if it fits one."""
    rank = images.ndim
    if any(rank in (axes + 2, axes + 3) for axes in possible) or (not possible and rank > 1):
        return None
    axes = possible[0] if possible else 2
    one = "fix its rank"
    if rank == axes + 1:
        one = (
            "image.unsqueeze(0) for one image, torch.stack(images) for a list; for a model that takes images without a "
            "channel axis, a recipe without views ('auto', 'shift')"
        )
    return InputError(
        f"Expected a batch of images of rank {axes + 2} (N, C, …), or {axes + 3} with time; received rank {rank}, "
        f"shape {tuple(images.shape)}. Try: {one}."
    )


def has_channels_last(images: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether images look as if they had their channels last, for a first convolution with this weight."""
    axes, channels = weight.ndim - 2, weight.shape[1]
    return images.ndim in (axes + 2, axes + 3) and images.shape[-axes - 1] != channels == images.shape[-1]


def _nothing_to_adapt(model: nn.Module, modules: dict[str, nn.Module]) -> ModelError:
    convolutions = [module for module in modules.values() if isinstance(module, _ConvNd)]
    fused = any(module.bias is not None for module in convolutions)
    hint = " Try: if its BatchNorm layers were fused into convolutions, adapt the model before that." if fused else ""
    return ModelError(
        f"{type(model).__name__} has no BatchNorm layer with running statistics ({len(modules)} modules searched). "
        f"SITA adapts BatchNorm statistics only; LayerNorm and GroupNorm have none.{hint}"
    )
