"""The batch normalizations of a PyTorch model, by whatever arithmetic: found, given plausible statistics, replaced.

Nothing here asks the library under test what a BatchNorm is. A normalization is a call of F.batch_norm (or
torch.batch_norm) with running statistics, wherever it comes from, or a module that holds a mean and a variance and
does its own arithmetic: a frozen BatchNorm.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Statistics = tuple[torch.Tensor, torch.Tensor]
"""Mean and variance, (C,)."""

Change = Callable[[torch.Tensor, Statistics], Statistics]
"""Gets the input (N, C, …) of a normalization and its statistics; returns those to normalize with."""

_PARAMETERS = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
_PARAMETERS_OF_KERNEL = ("input", "weight", "bias", "running_mean", "running_var", "training", "momentum", "eps")


class ChangedBatchNorm(TorchFunctionMode):
    """Within this mode of the thread, every F.batch_norm in eval uses the statistics that `change` returns."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.change = change

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Change the statistics of a call of F.batch_norm; run anything else as it is."""
        kwargs = kwargs or {}
        names = {functional.batch_norm: _PARAMETERS, torch.batch_norm: _PARAMETERS_OF_KERNEL}.get(func)
        if names is None:
            return func(*args, **kwargs)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        if given.get("running_mean") is None or given.get("training"):
            return func(*args, **kwargs)
        mean, variance = self.change(given["input"], (given["running_mean"], given["running_var"]))
        return functional.batch_norm(
            given["input"], mean, variance, given.get("weight"), given.get("bias"), eps=given.get("eps", 1e-5)
        )


def statistics_of(module: nn.Module) -> Statistics | None:
    """Return the mean and the variance that a module itself holds, if it does, whatever they are called."""
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        return None
    own = {**module._parameters, **module._buffers}
    tensors = {name: value for name, value in own.items() if isinstance(value, torch.Tensor)}
    means, variances = ([v for name, v in tensors.items() if kind in name] for kind in ("mean", "var"))
    return (means[0], variances[0]) if len(means) == len(variances) == 1 else None


@dataclass
class Found:
    """The normalizations that ran in a forward pass, by the name of the module that holds their statistics."""

    by_function: set[str] = field(default_factory=set)
    by_itself: set[str] = field(default_factory=set)
    """Frozen BatchNorms: modules with statistics that ran and called no F.batch_norm."""

    @property
    def names(self) -> set[str]:
        """All of them."""
        return self.by_function | self.by_itself


def find(model: nn.Module, images: torch.Tensor) -> Found:
    """Run the model, and return the normalizations that took part."""
    holders = {name: module for name, module in model.named_modules() if statistics_of(module) is not None}
    by_mean = {id(statistics_of(module)[0]): name for name, module in holders.items()}  # type: ignore[index]
    ran: set[str] = set()
    found = Found()

    def note(_: torch.Tensor, statistics: Statistics) -> Statistics:
        found.by_function.add(by_mean.get(id(statistics[0]), "statistics that no module holds"))
        return statistics

    hooks = [
        module.register_forward_pre_hook(lambda _module, _args, name=name: ran.add(name))
        for name, module in holders.items()
    ]
    try:
        with torch.no_grad(), ChangedBatchNorm(note):
            model(images)
    finally:
        for hook in hooks:
            hook.remove()
    found.by_itself = ran - found.by_function
    return found


@contextlib.contextmanager
def changed(model: nn.Module, by_itself: set[str], change: Change) -> Iterator[None]:
    """Within this context and thread, the model normalizes with the statistics that `change` returns.

    A frozen BatchNorm holds them for the time of its call. What `change` writes to the statistics it gets stays.
    """
    modules = dict(model.named_modules())
    hooks: list[Any] = []
    for name in by_itself:
        kept: list[Statistics] = []
        hooks += [
            modules[name].register_forward_pre_hook(functools.partial(_put, change, kept)),
            modules[name].register_forward_hook(functools.partial(_put_back, kept)),
        ]
    try:
        with ChangedBatchNorm(change):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _put(change: Change, kept: list[Statistics], module: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
    own: Any = statistics_of(module)
    new = change(args[0], own)
    kept.append((own[0].clone(), own[1].clone()))
    for tensor, value in zip(own, new, strict=True):
        tensor.data.copy_(value.reshape(tensor.shape))


def _put_back(kept: list[Statistics], module: nn.Module, _args: Any, _output: Any) -> None:
    own: Any = statistics_of(module)
    for tensor, value in zip(own, kept.pop(), strict=True):
        tensor.data.copy_(value)


def moments(x: torch.Tensor, channels: int) -> Statistics:
    """Return mean and biased variance over all but the channel axis: the second, or the last where only it fits."""
    axis = 1 if x.shape[1] == channels else -1
    lines = x.detach().movedim(axis, 0).reshape(channels, -1)
    return lines.mean(1), lines.var(1, correction=0)
