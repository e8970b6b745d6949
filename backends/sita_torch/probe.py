"""The probe of a PyTorch model: plain runs of a private copy, and a watch over every operation.

The copy shares the source's parameters and has its own buffers: an operation that would write to a parameter is refused
before it runs.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import nn

from sita_adapters import engine
from sita_adapters.errors import InputError, ModelError, SitaError
from sita_adapters.probe import InputRecorder, check_called, not_batchnorm_error, probe_model
from sita_adapters.probe_inputs import change_statistics, perturb, random_like
from sita_adapters.probe_runs import BATCHES
from sita_adapters.state import ForwardContext, ProbeResult

from .batchnorm import is_adapted, restore_layer
from .clone import clone
from .inspection import Adaptation, count_axes, epsilon_of, has_channels_last, named_modules, source_statistics
from .ops import TORCH
from .watch import Watcher

Run: TypeAlias = Callable[[nn.Module, list[torch.Tensor], tuple[bool, ...]], Any]
"""Runs the own forward of a copy on rows of the images and of the aligned arguments."""


def probe(model: nn.Module, adaptation: Adaptation, tensors: Sequence[torch.Tensor], run: Run) -> ProbeResult:
    """Return what is established about an adapted model for such images and other tensor arguments.

    A tensor argument whose first dimension is 1 or the batch size is first treated as one entry per image; if the model
    then violates the contract, as shared by all images. Half precision is probed in float32, where rounding hides less,
    if the model runs in it.
    """
    _check_present(model, adaptation)
    choices = itertools.product(
        *((True, False) if each.shape[:1] in ((1,), tensors[0].shape[:1]) else (False,) for each in tensors[1:])
    )
    errors: list[SitaError] = []
    with torch.inference_mode(False), torch.no_grad():
        for aligned in itertools.islice(choices, 8):
            try:
                if any(p.dtype in (torch.float16, torch.bfloat16) for p in nn.Module.parameters(model)):
                    with suppress(InputError):
                        return _Attempt(model, adaptation, tensors, run, aligned, precise=True).result()
                return _Attempt(model, adaptation, tensors, run, aligned).result()
            except SitaError as error:
                errors.append(error)
    raise errors[0]  # of the likeliest choice


def _check_present(model: nn.Module, adaptation: Adaptation) -> None:
    """Raise if an adapted layer is no longer there."""
    modules = dict(named_modules(model))
    names = [info.name for info in adaptation.layers if info.adapted]
    if gone := [name for name in names if name not in modules or not is_adapted(modules[name])]:
        raise ModelError(
            f"BatchNorm layers of an adapted {adaptation.model_name} were replaced, fused or converted since it was "
            f"adapted: {', '.join(gone[:4])}. Try: change the source model, then adapt it."
        )


@dataclass
class _Attempt:
    """Runs of private copies of a model on random images, with one choice of aligned arguments."""

    model: nn.Module
    adaptation: Adaptation
    tensors: Sequence[torch.Tensor]
    run_own: Run
    aligned: tuple[bool, ...]
    precise: bool = False

    def __post_init__(self) -> None:
        self.images = self.tensors[0]
        given = [self.images, *itertools.compress(self.tensors[1:], self.aligned)]
        batch = [_random_like(tensor, index) for index, tensor in enumerate(given)]
        self.batch = [TORCH.precise(each) if self.precise and each.is_floating_point() else each for each in batch]
        self.recorder = InputRecorder(TORCH)
        self.network = nn.Module()

    def result(self) -> ProbeResult:
        """Return what the runs establish."""
        possible = self.adaptation.spatial_axes
        space = count_axes(self.images, possible)
        known = self.images.ndim == space + 2 and (not possible or space in possible)
        arguments = (self.run, self.recorder, self.adaptation, self.images)
        try:
            rank = space + 2 if known else 0  # images with time, or without channels
            found = probe_model(*arguments, image_rank=rank, channel_axis=self._channel_axis)
            check_called(found.entries_per_row, self.adaptation)
            self.watcher.detach()
            layers, inputs = self.watcher.adapted, self.watcher.inputs
            axes = {name: _channel_axis(layers[name], x, self.adaptation) for name, x in inputs.items()}
        finally:
            self._release()
        if wrong := [name for name, axis in axes.items() if axis is None]:
            raise not_batchnorm_error(wrong, type(layers[wrong[0]]).__name__, self.adaptation)
        others = {name: axis for name, axis in axes.items() if axis is not None and axis != 1}
        notes = self.watcher.notes()
        return replace(found, channel_axes=others, notes=notes, spatial_axes=space, aligned=self.aligned)

    def run(self, which: Sequence[int], *, perturbed: bool = False, fresh: bool = False) -> Any:
        """Run a copy on these random images."""
        rows = [each[list(which)] for each in self.batch]
        if perturbed and rows[0].is_floating_point():
            values = perturb(TORCH.to_numpy(rows[0]), torch.finfo(rows[0].dtype).eps)
            rows[0] = torch.from_numpy(values).to(rows[0])
        if fresh or which == BATCHES[0]:
            self._release()  # one copy at a time
            network = clone(self.model, keep=self.adaptation, own="buffers")
            self.network = network.float() if self.precise else network
            self.watcher = Watcher(self.model, self.network, self.adaptation, self.recorder)
        self.watcher.everything = which == BATCHES[0]
        context = ForwardContext(self.adaptation, engine.PLAIN, len(which), TORCH, record=self.watcher.enter)
        with self.watcher:
            output = engine.run_rows(rows, lambda some: self.run_own(self.network, some, self.aligned), context)
        self.watcher.check()
        if self._channel_axis() is None and any(plan.has_views for plan in self.adaptation.plans.values()):
            raise InputError(
                f"Expected images with channels first, (N, C, …); received shape {tuple(self.images.shape)}, which "
                "looks like channels last: views would rotate and flip the wrong axes. Try: permute before the adapted "
                "model, not inside it; or a recipe without views ('auto', 'shift', 'bn')."
            )
        return output

    def _release(self) -> None:
        """Free the copy's tensors now: its layers and their hooks form cycles, which are collected later."""
        for module in nn.Module.modules(self.network):
            if not isinstance(module, torch.jit.ScriptModule):
                module._parameters.clear()
                module._buffers.clear()

    def _channel_axis(self) -> int | None:
        """Return the axis of the classes in logits of the images' rank; None if the images have their channels last."""
        stem = self.watcher.stem
        return None if stem is not None and has_channels_last(self.images, stem) else 1


def _random_like(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """Return two entries like those of an argument: random images; for any other argument, its own values."""
    if index and not (tensor.is_floating_point() and tensor.ndim > 2):
        return tensor[torch.arange(2) % tensor.shape[0]].clone()
    return torch.from_numpy(random_like(TORCH.to_numpy(tensor))).to(tensor.device, tensor.dtype)


def _channel_axis(layer: nn.Module, x: torch.Tensor, adaptation: Adaptation) -> int | None:
    """Return the axis of the channels of a BatchNorm layer; None if it is not a BatchNorm layer."""
    plain = restore_layer(clone(layer, keep=adaptation, own="all")).eval()
    channels = source_statistics(plain)[0].numel()
    for dtype, axis in itertools.product((torch.float64, x.dtype), (1, x.ndim - 1)):
        if x.shape[axis] == channels:
            with suppress(Exception):
                if _is_normalizing(copy.deepcopy(plain).to(dtype), x.to(dtype), axis):
                    return axis
    return None


def _is_normalizing(layer: nn.Module, x: torch.Tensor, axis: int) -> bool:
    """Whether changing the statistics of a layer is the same as changing its input (`change_statistics`)."""
    statistics = source_statistics(layer)
    values, mean, variance = (TORCH.to_numpy(each) for each in (x, *statistics))
    changed = change_statistics(values, mean, variance, epsilon_of(layer), axis)
    *others, moved = (torch.from_numpy(each).to(x) for each in changed)
    expected = layer(x.clone()).clone()
    for statistic, other in zip(statistics, others, strict=True):
        statistic.copy_(other)
    tolerance = 1e-4 if x.dtype in (torch.float32, torch.float64) else 5e-2
    return bool((layer(moved) - expected).abs().max() <= tolerance * expected.abs().max())
