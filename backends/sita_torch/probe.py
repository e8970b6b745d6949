"""The probe of a PyTorch model: plain runs of a copy with its own memory, and a watch over its statistics."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sita_adapters import engine
from sita_adapters.errors import InputError, ModelError, SitaError, SitaWarning
from sita_adapters.outputs import OutputLayout
from sita_adapters.probe import (
    BATCHES,
    InputRecorder,
    change_statistics,
    check_called,
    leave_out,
    not_batchnorm_error,
    perturb,
    probe_model,
    random_like,
)

from .batchnorm import detach, is_known
from .clone import clone, own_forward
from .inspection import check_channels, epsilon_of, find_layers, named_tensors, source_statistics
from .ops import TORCH

if TYPE_CHECKING:
    from .call import Adaptation, Arguments

_Layers: TypeAlias = dict[str, nn.Module]


def probe(model: nn.Module, adaptation: Adaptation, arguments: Arguments) -> OutputLayout:
    """Return what is established about an adapted model for such arguments.

    A tensor argument whose first dimension is 1 or the batch size is first treated as one entry per image; if the model
    then violates the contract, as shared by all images. Half precision is probed in float32, where rounding hides less,
    if the model runs in it.
    """
    sizes, count = [each.shape[:1] for each in arguments.tensors[1:]], arguments.images.shape[0]
    choices = itertools.product(*((True, False) if size in ((1,), (count,)) else (False,) for size in sizes))
    errors: list[SitaError] = []
    with torch.inference_mode(False), torch.no_grad():
        for aligned in itertools.islice(choices, 8):
            try:
                if any(p.dtype in (torch.float16, torch.bfloat16) for p in nn.Module.parameters(model)):
                    with suppress(InputError):
                        return _probe_once(model, adaptation, arguments, aligned, precise=True)
                return _probe_once(model, adaptation, arguments, aligned)
            except SitaError as error:
                errors.append(error)
    raise errors[0]  # of the likeliest choice


def _probe_once(
    model: nn.Module, adaptation: Adaptation, arguments: Arguments, aligned: tuple[bool, ...], *, precise: bool = False
) -> OutputLayout:
    """Make one attempt: run a copy of the model on random images."""

    def copied() -> nn.Module:
        new = clone(model, keep=adaptation, shared=False)
        return new.float() if precise else new

    watched = copied()
    found, before = find_layers(watched), _versions(watched)
    layers = {info.name: found[info.name] for info in adaptation.layers if info.adapted}
    batch = [_random_like(tensor, index) for index, tensor in enumerate(arguments.batch(aligned))]
    batch = [TORCH.precise(each) if precise and each.is_floating_point() else each for each in batch]
    recorder = InputRecorder(TORCH)
    watcher = _Watcher(model, found, layers, recorder)

    def run(which: Sequence[int], *, perturbed: bool = False, fresh: bool = False) -> Any:
        rows = [each[list(which)] for each in batch]
        if perturbed and rows[0].is_floating_point():
            values = perturb(TORCH.to_numpy(rows[0]), torch.finfo(rows[0].dtype).eps)
            rows[0] = torch.from_numpy(values).to(rows[0])
        network, record = (copied(), recorder.record) if fresh else (watched, watcher.enter)
        context = engine.ForwardContext(adaptation, engine.PLAIN, len(which), TORCH, record=record)
        args, kwargs = arguments.fill(rows, aligned)
        first = which == BATCHES[0]
        with watcher if first else nullcontext():  # it makes a run slow, so it watches only one
            output = engine.run_rows(rows, lambda _: own_forward(network, args, kwargs), context)
        if first:
            watcher.check(arguments.images)
            _refuse_writes(watched, before)
        return output

    layout = probe_model(run, recorder, adaptation, type(model).__name__, arguments.images)
    _refuse_writes(watched, before)
    check_called(layout.entries_per_row, adaptation)
    for hook in watcher.hooks:
        hook.remove()
    axes = _check_layers(layers, watcher.inputs)
    return replace(layout, channel_axes=axes, notes=watcher.notes(), aligned=aligned)


def _random_like(tensor: torch.Tensor, index: int) -> torch.Tensor:
    """Return two entries like those of an argument: random images; for any other argument, its own values."""
    if index and not (tensor.is_floating_point() and tensor.ndim > 2):
        return tensor[torch.arange(2) % tensor.shape[0]].clone()
    return torch.from_numpy(random_like(TORCH.to_numpy(tensor))).to(tensor.device, tensor.dtype)


def _versions(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Return which tensors a model has, and how often each was written to."""
    return {name: (id(tensor), tensor._version) for name, tensor in named_tensors(model)}


def _refuse_writes(model: nn.Module, before: dict[str, tuple[int, int]]) -> None:
    changed = sorted(dict(before.items() ^ _versions(model).items()))
    if changed:
        raise ModelError(
            f"{type(model).__name__} writes to {', '.join(changed[:4])} while it runs. Expected a forward pass that "
            "changes no parameter or buffer in evaluation mode: an answer would depend on earlier calls. Try: "
            "compute it in __init__, or keep it as a plain attribute if it does not change the answers."
        )


class _Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches every operation for statistics that are used outside of the adapted layers."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import the compiler, just to skip this class

    def __init__(self, model: nn.Module, found: _Layers, adapted: _Layers, recorder: InputRecorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.source, self.known, self.own = map(_owners, (find_layers(model), found, adapted))
        self.recorder = recorder
        self.inputs: dict[str, torch.Tensor] = {}
        """A part of the first input of each adapted layer."""
        self.running: str | None = None
        """The adapted layer that runs."""
        self.outside: set[str] = set()
        """Adapted layers whose statistics were used outside of their calls."""
        self.bypassed = self.foreign = False
        self.stem: torch.Tensor | None = None
        """The weights of the first convolution."""
        self.hooks = [layer.register_forward_hook(self._leave) for layer in adapted.values()]

    def enter(self, name: str, x: torch.Tensor) -> None:
        """Record that an adapted layer runs, and keep a part of its first input: all of axis 1 and of the last."""
        self.recorder.record(name, x)
        self.running = name
        if name not in self.inputs:
            part = (slice(0, 1), slice(None), *[slice(0, 4)] * (x.ndim - 3))
            self.inputs[name] = x[part].clone()

    def _leave(self, *_: Any) -> None:
        self.running = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and note which statistics it uses."""
        name = func.overloadpacket.__name__
        for pointer in map(_pointer, args):
            self.bypassed = self.bypassed or pointer in self.source
            if pointer in self.own and self.own[pointer] != self.running:
                self.outside.add(self.own[pointer])
        # (input, weight, bias, mean, variance, …); with batch statistics, whether images mix shows in the outputs.
        if "batch_norm" in name and len(args) > 5 and isinstance(args[3], torch.Tensor) and args[5] is not True:
            self.foreign = self.foreign or _pointer(args[3]) not in self.known
        if self.stem is None and name == "convolution":
            self.stem = args[1]
        return func(*args, **(kwargs or {}))

    def check(self, images: torch.Tensor) -> None:
        """Raise if BatchNorm arithmetic bypassed the adapted layers, or the images have their channels last."""
        if self.stem is not None:
            check_channels(images, self.stem)
        if self.bypassed:
            raise ModelError(
                "The model reads the statistics of the source model's BatchNorm layers, not those of its copy: through "
                "a function that holds the model (a closure, a patched forward), a global, or a weak reference. "
                "Expected layers that are reached through `self`. Try: make such functions methods of the model."
            )
        if self.outside:
            raise ModelError(
                f"The model uses the statistics of {', '.join(map(repr, sorted(self.outside)[:4]))} outside of calls "
                "of these layers (F.batch_norm, fused weights), where they cannot be adapted. Try: call the layers, or "
                f"{leave_out(*self.outside)}."
            )

    def notes(self) -> tuple[str, ...]:
        """Return, and warn about, what is not adapted."""
        if not self.foreign:
            return ()
        note = "The model normalizes with statistics that belong to no BatchNorm layer (F.batch_norm): not adapted"
        warnings.warn(f"{note}.", SitaWarning, stacklevel=2)
        return (note,)


def _owners(layers: _Layers) -> dict[int, str]:
    """Return which layer's statistics are where in memory."""
    return {_pointer(each): name for name, layer in layers.items() for each in source_statistics(layer)}


def _pointer(value: Any) -> int:
    """Return where a tensor's values are in memory; −1 if it has no memory."""
    try:
        return (value.data_ptr() or -1) if isinstance(value, torch.Tensor) else -1
    except RuntimeError:  # some subclasses have no memory of their own
        return -1


def _check_layers(layers: _Layers, inputs: dict[str, torch.Tensor]) -> dict[str, int]:
    """Return the channel axes that are not 1; raise if a layer that ran is not a BatchNorm layer."""
    axes = {name: _channel_axis(layers[name], x) for name, x in inputs.items() if not is_known(layers[name])}
    if wrong := [name for name, axis in axes.items() if axis is None]:
        raise not_batchnorm_error(wrong, type(layers[wrong[0]]).__name__, len(layers))
    return {name: axis for name, axis in axes.items() if axis is not None and axis != 1}


def _channel_axis(layer: nn.Module, x: torch.Tensor) -> int | None:
    """Return the axis of the channels of a BatchNorm layer; None if it is not a BatchNorm layer."""
    plain = detach(copy.deepcopy(layer)).eval()
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
