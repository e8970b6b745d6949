"""The trial of a clone: plain runs on made-up images, of which nothing is left, and what is seen meanwhile."""

from __future__ import annotations

import math
import random
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import NoneType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from sita_adapters import engine
from sita_adapters.engine import Adaptation
from sita_adapters.errors import BypassError, SitaWarning
from sita_adapters.trial import Findings, Witness, hold_trial, made_up, shake

from .arguments import Arguments, check_channels
from .batchnorm import adaptation_of_layer
from .clone import clone
from .inspection import find_layers, is_batchnorm, walk_all
from .ops import TORCH

Forward = Callable[[nn.Module, Arguments, list[torch.Tensor]], Any]
"""Runs a clone's own forward on these rows of its arguments."""


def try_out(model: nn.Module, adaptation: Adaptation, arguments: Arguments, forward: Forward) -> tuple[Findings, bool]:
    """Return what a trial of an adapted clone finds out, and whether the model writes to its own state.

    Every fresh run is that of an isolated clone of the clone.
    """
    batch = [_made_up(each, place) for place, each in enumerate(arguments.batch)]
    witness = Witness(TORCH)
    running = model
    overseer: _Overseer | None = None
    writes = False

    def run(which: Sequence[int], *, fresh: bool, seed: int, shaken: bool = False) -> Any:
        nonlocal running, overseer, writes
        if fresh:
            running = clone(model, keep=[adaptation], isolated=True)
        first = overseer is None
        overseer = _Overseer(running)
        rows = [_shaken(each[list(which)]) if shaken else each[list(which)] for each in batch]
        call = engine.Call(adaptation, engine.PLAIN, len(which), TORCH, watch=_both(witness.watch, overseer.enter))
        with torch.no_grad(), _randomness(seed, rows[0]), overseer.watching():
            try:
                output = engine.run_rows(rows, lambda some: forward(running, arguments, some), call)
            finally:
                overseer.check_stem(arguments.batch[0])
        if first:
            overseer.report(type(model).__name__)
            writes = _differ(model, running)
        return output

    findings = hold_trial(run, witness, type(model).__name__, arguments.batch[0])
    return findings, writes


def _made_up(tensor: torch.Tensor, place: int) -> torch.Tensor:
    """Return three entries like those of an argument: made up for images, the argument's own for the rest."""
    if place and not (tensor.is_floating_point() and tensor.ndim > 2):
        return tensor[torch.arange(3) % tensor.shape[0]]
    return torch.from_numpy(made_up(TORCH.to_numpy(tensor))).to(tensor)


def _shaken(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    return torch.from_numpy(shake(TORCH.to_numpy(tensor), torch.finfo(tensor.dtype).eps)).to(tensor)


@contextmanager
def _randomness(seed: int, like: torch.Tensor) -> Iterator[None]:
    """Seed what draws random numbers, and put it back as it was."""
    devices = [] if like.is_cpu else [like.device]
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 (what models use)
    try:
        with torch.random.fork_rng(devices, device_type="cuda" if like.is_cpu else like.device.type):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


_NORMALISING = {functional.batch_norm: 1, torch.batch_norm: 3}
"""PyTorch's BatchNorm arithmetic, and which argument the means are."""


class _Overseer(TorchFunctionMode):
    """Sees BatchNorm arithmetic that runs outside of the clone's adapted layers."""

    def __init__(self, running: nn.Module) -> None:
        super().__init__()
        self.layers = find_layers(running)
        self.known = {id(layer) for layer in self.layers.values()}
        self.statistics = {name: _place(layer) for name, layer in self.layers.items()}
        self.entered: Counter[int] = Counter()
        self.normalised: Counter[int] = Counter()
        self.strangers: list[str] = []
        self.stem: _ConvNd | None = None
        """The first convolution that was called."""

    def enter(self, name: str, _: torch.Tensor) -> None:
        """Count a call of an adapted layer."""
        self.entered[self.statistics[name]] += 1

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count a use of PyTorch's own BatchNorm arithmetic by the statistics that it normalises with."""
        kwargs = kwargs or {}
        if func in _NORMALISING:
            place = _NORMALISING[func]
            mean = args[place] if len(args) > place else kwargs.get("running_mean")
            if isinstance(mean, torch.Tensor):
                self.normalised[mean.data_ptr()] += 1
        return func(*args, **kwargs)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch this thread."""
        thread = threading.get_ident()

        def called(module: nn.Module, _: Any) -> None:
            if threading.get_ident() != thread:
                return
            if isinstance(module, _ConvNd) and self.stem is None:
                self.stem = module
            elif id(module) not in self.known and is_batchnorm(module):
                self.strangers.append(type(module).__name__)

        handle = register_module_forward_pre_hook(called)
        try:
            with self:
                yield
        finally:
            handle.remove()

    def check_stem(self, images: torch.Tensor) -> None:
        """Raise where the images have their channels last."""
        if self.stem is not None:
            dimensions = len(self.stem.kernel_size)
            if images.ndim in (dimensions + 2, dimensions + 3):
                check_channels(images, dimensions, self.stem.in_channels)

    def report(self, model: str) -> None:
        """Raise or warn where BatchNorm arithmetic was seen that is not adapted."""
        if self.strangers:
            raise BypassError(
                f"{model} runs BatchNorm layers that are not its copy's ({', '.join(sorted(set(self.strangers)))}): "
                "the source's own, held by a weak reference, a class or a module's globals, perhaps. They would not be "
                "adapted. Expected layers that the model holds as attributes. Remedy: hold them so."
            )
        for place, count in self.normalised.items():
            name = next((name for name, each in self.statistics.items() if each == place), None)
            if name is not None and count > self.entered[place] and adaptation_of_layer(self.layers[name]) is not None:
                raise BypassError(
                    f"{model} normalises with the statistics of layer {name!r} outside of a call of that layer "
                    "(F.batch_norm, or its `forward` called by itself), where it is not adapted. Expected layers that "
                    "are called. Remedy: call the layer, or leave it out with layers=."
                )
        unknown = sum(count for place, count in self.normalised.items() if place not in self.statistics.values())
        if unknown:
            warnings.warn(
                f"{model} normalises {unknown} times with statistics that belong to no BatchNorm layer (F.batch_norm). "
                "These are not adapted.",
                SitaWarning,
                stacklevel=2,
            )


def _place(layer: nn.Module) -> int:
    statistics: Any = layer.running_mean
    return int(statistics.data_ptr())


def _both(*watchers: Callable[[str, torch.Tensor], None]) -> Callable[[str, torch.Tensor], None]:
    def watch(name: str, x: torch.Tensor) -> None:
        for each in watchers:
            each(name, x)

    return watch


def _differ(before: nn.Module, after: nn.Module) -> bool:
    """Whether a run left anything in a clone."""
    pairs = [dict(walk_all(model, bare=True)) for model in (before, after)]
    if pairs[0].keys() != pairs[1].keys():
        return True
    return any(_changed(value, pairs[1][path]) for path, value in pairs[0].items())


def _changed(before: Any, after: Any) -> bool:
    if isinstance(before, torch.Tensor):
        return not isinstance(after, torch.Tensor) or before.shape != after.shape or not _equal(before, after)
    if isinstance(before, bool | int | float | complex | str | bytes | NoneType):
        return type(before) is not type(after) or (before != after and not _is_nan(before))
    return type(before) is not type(after)


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _equal(before: torch.Tensor, after: torch.Tensor) -> bool:
    if before.data_ptr() == after.data_ptr():
        return True
    return torch.equal(torch.nan_to_num(before.detach()), torch.nan_to_num(after.detach()))
