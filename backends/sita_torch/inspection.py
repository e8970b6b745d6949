"""What a model is made of: its parts, its BatchNorm layers, the layout of its images, and what cannot be adapted."""

from __future__ import annotations

import copy
import functools
import sys
import types
from collections import OrderedDict, deque
from collections.abc import Iterator
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

_BARE = {bool, int, float, complex, str, bytes, types.NoneType}

_CONTAINERS = {dict, OrderedDict, list, tuple, set}

_REGISTRIES = ("_parameters", "_buffers", "_modules")

_CLOSED = {*sys.stdlib_module_names, "torch", "numpy", "sita_adapters", "sita_torch"} - {"__main__"}
"""Packages whose own objects are not looked into: they hold no parts of a model, or those of many."""


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def walk_registered(root: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every module, parameter and buffer that is registered, each once, with its path."""
    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [(path, root)]
    while stack:
        where, item = stack.pop()
        if id(item) not in seen and isinstance(item, nn.Module | torch.Tensor):
            seen.add(id(item))
            yield where, item
            if isinstance(item, nn.Module):
                stack.extend(reversed(list(registered(item, where))))


def walk(root: Any) -> Iterator[tuple[str, Any]]:
    """Yield every module and tensor that the model holds, each once, with its path.

    What is registered comes first, under the names that `named_modules` gives. Then what is in lists and dicts and in
    other objects, and modules that functions hold: a model runs those, too.
    """
    return ((path, item) for path, item in walk_all(root) if isinstance(item, nn.Module | torch.Tensor))


def walk_all(root: Any, externals: list[Any] | None = None, *, bare: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield everything that the model holds, each once: modules, tensors, containers, functions and objects.

    `bare` values and empty containers come, too, if that is asked for. What hooks are bound to, and functions have in
    their variables, is not the model's but somebody's who watches it, unless it is a module; `externals` collects it.
    """
    found = list(walk_registered(root))
    yield from found
    seen = {id(item) for _, item in found}
    modules = [(path, item) for path, item in found if isinstance(item, nn.Module)]
    others = [each for path, module in modules for each in _others(module, path)] if modules else [("", root)]
    own = [(path, item, False) for path, item in reversed(others) if bare or not _is_bare(item)]
    later: deque[tuple[str, Any, bool]] = deque()  # what is the model's own, too, is met as that first
    while own or later:
        path, item, external = own.pop() if own else later.popleft()
        if _is_bare(item):
            if bare and not external:
                yield path, item
            continue
        if id(item) in seen:
            continue
        seen.add(id(item))
        external = external and not isinstance(item, nn.Module)
        if not external or isinstance(item, types.FunctionType):
            yield path, item
        elif externals is not None:
            externals.append(item)
        held = list(_held(item, path))
        if external or isinstance(item, types.FunctionType | types.MethodType) or path.endswith(_HOOKS):
            later.extend((where, part, True) for where, part in held)
        else:
            own.extend((where, part, False) for where, part in reversed(held))


def _is_bare(item: Any) -> bool:
    """Whether there is nothing in an item: a number, a text, None, an empty container."""
    kind = type(item)
    return kind in _BARE or (kind in _CONTAINERS and not item)


def attributes(module: nn.Module, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the module's attributes with their paths: what is registered first, in the module's own order."""
    yield from registered(module, path)
    yield from _others(module, path)


def registered(module: nn.Module, path: str) -> Iterator[tuple[str, Any]]:
    """Yield a module's parameters, buffers and submodules with their paths."""
    for registry in _REGISTRIES:
        for name, value in vars(module).get(registry, {}).items():
            yield (f"{path}.{name}" if path else name), value


def _others(module: nn.Module, path: str) -> Iterator[tuple[str, Any]]:
    for name, value in vars(module).items():
        if name not in _REGISTRIES:
            yield (f"{path}.{name}" if path else name), value


def _held(item: Any, path: str) -> Iterator[tuple[str, Any]]:  # noqa: PLR0912 (one for each type)
    """Yield what an item holds."""
    if isinstance(item, nn.Module):
        yield from attributes(item, path)
    elif isinstance(item, list | tuple | set | frozenset | deque):
        for place, part in enumerate(item):
            yield f"{path}[{place}]", part
    elif isinstance(item, dict):
        for key, part in item.items():
            yield f"{path}[{key!r}]", part
    elif isinstance(item, functools.partial):
        yield from ((f"{path}.{name}", getattr(item, name)) for name in ("func", "args", "keywords"))
    elif isinstance(item, types.MethodType):
        yield f"{path}.__self__", item.__self__
        yield f"{path}.__func__", item.__func__
    elif isinstance(item, types.FunctionType):
        for name, cell in zip(item.__code__.co_freevars, item.__closure__ or (), strict=True):
            try:
                yield f"{path}({name})", cell.cell_contents
            except ValueError:  # not filled yet
                continue
        yield f"{path}.__defaults__", item.__defaults__
        yield f"{path}.__kwdefaults__", item.__kwdefaults__
    elif isinstance(item, types.SimpleNamespace) or _is_open(item):
        for name, part in vars(item).items():
            yield f"{path}.{name}", part
        for name in getattr(type(item), "__slots__", ()):
            if hasattr(item, name):
                yield f"{path}.{name}", getattr(item, name)


def _is_open(item: Any) -> bool:
    package = type(item).__module__.partition(".")[0]
    return hasattr(item, "__dict__") and not isinstance(item, type | torch.Tensor) and package not in _CLOSED


def holds_any(value: Any, parts: set[int]) -> bool:
    """Whether a module, or one of these parts of a model, is in something that functions or hooks hold."""
    stack, seen = [value], set()
    while stack:
        item = stack.pop()
        if isinstance(item, nn.Module) or id(item) in parts:
            return True
        if id(item) not in seen:
            seen.add(id(item))
            stack.extend(part for _, part in _held(item, ""))
    return False


def batchnorm_tensors(model: nn.Module) -> set[int]:
    """Return the ids of all tensors that BatchNorm layers hold: statistics, and what frozen ones scale and shift by."""
    layers = (item for _, item in walk(model) if isinstance(item, nn.Module) and is_batchnorm(item))
    return {id(tensor) for layer in layers for tensor in vars(layer).get("_buffers", {}).values()}


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
    """Whether this module, of whatever library, normalises with source statistics of its own.

    One that only hands on the attributes of a layer inside it (a compiled layer, PEFT's wrappers) does not.
    """
    if not isinstance(module, nn.Module) or isinstance(module, _InstanceNorm):
        return False
    mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
    if not isinstance(mean, torch.Tensor) or not isinstance(variance, torch.Tensor):
        return False
    inside = (item for name, child in vars(module)["_modules"].items() for _, item in walk_modules(child))
    return all(getattr(item, "running_mean", None) is not mean for item in inside)


def walk_modules(module: nn.Module | None) -> Iterator[tuple[str, nn.Module]]:
    """Yield a module and all that are registered below it. (A model may have another `modules` of its own.)"""
    return ((path, item) for path, item in walk_registered(module) if isinstance(item, nn.Module))


def source_statistics(layer: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the source's mean and variance, (C,); some layers hold them as (1, C, 1, 1)."""
    mean: Any = layer.running_mean
    variance: Any = layer.running_var
    return (mean, variance) if mean.ndim == 1 else (mean.reshape(-1), variance.reshape(-1))


_EPSILONS = ("eps", "epsilon", "variance_epsilon")

_NEXT_TO_NOTHING = 1e-12


def epsilon_of(layer: nn.Module) -> float:
    """Return the layer's ε: an attribute, or what its arithmetic shows.

    Frozen BatchNorm layers may have it in their `forward` alone. From mean + 1 they make γ / sqrt(v + ε) more than
    from the mean, which gives ε, to the last digit where v is next to nothing.
    """
    for name in _EPSILONS:
        value = getattr(layer, name, None)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    mean, variance = (each.double() for each in source_statistics(layer))
    gamma: Any = getattr(layer, "weight", None)
    gamma = torch.ones_like(mean) if gamma is None else gamma.detach().double().reshape(-1)
    read = gamma.abs() > 1e-3
    try:
        with torch.no_grad():
            precise = copy.deepcopy(layer).double().eval()
            low, high = (mean.reshape(1, -1, 1, 1) + step for step in (0.0, 1.0))
            sums = (gamma / (precise(high) - precise(low)).reshape(-1)).square()[read]  # v + ε
            source_statistics(precise)[1].fill_(_NEXT_TO_NOTHING)
            epsilons = (gamma / (precise(high) - precise(low)).reshape(-1)).square()[read] - _NEXT_TO_NOTHING
            epsilon = max(0.0, float(epsilons.median()))
            agree = (epsilons - epsilon).abs() <= 1e-6 * (epsilon + _NEXT_TO_NOTHING)
            agree &= (sums - variance[read] - epsilon).abs() <= 1e-6 * (variance.max() + 1)
            if agree.all() and epsilon < 1:
                return epsilon
    except Exception as error:
        raise _unclear(layer) from error
    raise _unclear(layer)


def _unclear(layer: nn.Module) -> NoBatchNormError:
    return NoBatchNormError(
        f"A {type(layer).__name__} has running_mean and running_var, but no ε, and does not compute "
        "γ · (x − mean) / sqrt(variance + ε) + β. Expected a BatchNorm layer. Remedy: give it an attribute eps, or "
        "leave it out with layers=."
    )


@dataclass(frozen=True)
class ImageLayout:
    """The images that the model's convolutions could take: how many spatial axes and channels they may have.

    Which convolution comes first is not known: they may be registered in any order.
    """

    dimensions: tuple[int, ...] = ()
    channels: tuple[int, ...] = ()

    @property
    def kinds(self) -> tuple[SpatialKind, ...]:
        """What the images can be."""
        return ("signal",) if self.dimensions == (1,) else ("square", "rectangle")


def image_layout(model: nn.Module) -> ImageLayout:
    """Read the layout of the model's images from its convolutions, the first of them first."""
    found = [item for _, item in walk(model) if isinstance(item, _ConvNd)]
    dimensions, channels = ([len(item.kernel_size) for item in found], [item.in_channels for item in found])
    return ImageLayout(tuple(dict.fromkeys(dimensions)), tuple(dict.fromkeys(channels)))


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
