"""What the probe watches while a copy of the model runs: every operation, and every parameter and buffer."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sita_adapters.errors import ModelError, SitaWarning
from sita_adapters.probe import InputRecorder
from sita_adapters.selection import leave_out

from .batchnorm import is_known
from .inspection import Adaptation, find_layers, source_statistics


class Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Watches the operations of a copy: for writes to parameters, and for statistics used outside of adapted layers."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import the compiler, just to skip this class

    def __init__(self, source: nn.Module, network: nn.Module, adaptation: Adaptation, recorder: InputRecorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.network, self.recorder, found = network, recorder, find_layers(network)
        self.adaptation = adaptation
        self.adapted = {info.name: found[info.name] for info in adaptation.layers if info.adapted}
        self.of_source, self.of_copy, self.of_adapted = map(_owners, (find_layers(source), found, self.adapted))
        self.parameters = {
            _pointer(each, of_storage=True): name for name, each in nn.Module.named_parameters(network) if each.numel()
        }
        self.before = _tensors_of(network)
        self.everything = False  # whether to look for statistics, too, which makes a run slow
        self.inputs: dict[str, torch.Tensor] = {}  # a part of the first input of adapted layers of unknown arithmetic
        self.running: str | None = None  # the adapted layer that runs
        self.outside: set[str] = set()  # adapted layers whose statistics were used outside of their calls
        self.bypassed = self.foreign = False
        self.stem: torch.Tensor | None = None  # the weights of the first convolution
        self._hooks = [layer.register_forward_hook(self._leave) for layer in self.adapted.values()]

    def enter(self, name: str, x: torch.Tensor) -> None:
        """Record that an adapted layer runs, and keep a part of its first input: all of axis 1 and of the last."""
        self.recorder.record(name, x)
        self.running = name
        if name not in self.inputs and not is_known(self.adapted[name]):
            part = (slice(0, 1), slice(None), *[slice(0, 4)] * (x.ndim - 3))
            self.inputs[name] = x[part].clone()

    def _leave(self, *_: Any) -> None:
        self.running = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, unless it writes to a parameter, which the source shares."""
        kwargs = kwargs or {}
        for place, name in _written(func):
            values = kwargs.get(name) if len(args) <= place else args[place]
            for value in values if isinstance(values, list | tuple) else (values,):
                if (parameter := self.parameters.get(_pointer(value, of_storage=True))) is not None:
                    raise _write_error(self.network, [parameter])
        if self.everything:
            self._note_statistics(func.overloadpacket.__name__, args)
        return func(*args, **kwargs)

    def _note_statistics(self, name: str, args: Any) -> None:
        """Note which statistics an operation uses."""
        for pointer in map(_pointer, args):
            self.bypassed = self.bypassed or pointer in self.of_source
            if pointer in self.of_adapted and self.of_adapted[pointer] != self.running:
                self.outside.add(self.of_adapted[pointer])
        # (input, weight, bias, mean, variance, …); with batch statistics, whether images mix shows in the outputs.
        if "batch_norm" in name and len(args) > 5 and isinstance(args[3], torch.Tensor) and args[5] is not True:
            self.foreign = self.foreign or _pointer(args[3]) not in self.of_copy
        if self.stem is None and name == "convolution":
            self.stem = args[1]

    def detach(self) -> None:
        """Remove the hooks: a copy of a layer that had them would copy everything that the watcher holds."""
        for hook in self._hooks:
            hook.remove()

    def check(self) -> None:
        """Raise if BatchNorm arithmetic bypassed the adapted layers, or a buffer was written or a tensor replaced."""
        if self.bypassed:
            raise ModelError(
                "The model reads the statistics of the source model's BatchNorm layers, not those of its copy: through "
                "a closure, a patched forward, a global, or a weak reference. Expected layers that are reached through "
                "`self`. Try: make such functions methods of the model."
            )
        if self.outside:
            raise ModelError(
                f"The model uses the statistics of {', '.join(map(repr, sorted(self.outside)[:4]))} outside of calls "
                "of these layers (F.batch_norm, fused weights). Try: call the layers, or "
                f"{leave_out(sorted(self.outside), self.adaptation.layers)}."
            )
        if changed := sorted(dict(self.before.items() ^ _tensors_of(self.network).items())):
            raise _write_error(self.network, changed)

    def notes(self) -> tuple[str, ...]:
        """Return, and warn about, what is not adapted."""
        if not self.foreign:
            return ()
        note = "The model normalizes with statistics that belong to no BatchNorm layer (F.batch_norm): not adapted"
        warnings.warn(f"{note}.", SitaWarning, stacklevel=2)
        return (note,)


def _tensors_of(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Return which tensors a model has, and how often each buffer was written to."""
    found = {name: (id(tensor), 0) for name, tensor in nn.Module.named_parameters(model)}
    return found | {name: (id(tensor), tensor._version) for name, tensor in nn.Module.named_buffers(model)}


def _write_error(model: nn.Module, names: Sequence[str]) -> ModelError:
    return ModelError(
        f"{type(model).__name__} writes to {', '.join(names[:4])} in evaluation mode: answers would depend on earlier "
        "calls. Try: compute it in __init__, or keep it as a plain attribute if it does not change the answers."
    )


def _owners(layers: dict[str, nn.Module]) -> dict[int, str]:
    """Return which layer's statistics are where in memory."""
    return {_pointer(each): name for name, layer in layers.items() for each in source_statistics(layer)}


def _pointer(value: Any, of_storage: bool = False) -> int:
    """Return where a tensor's values, or the memory that it is a view of, begin; −1 if it has no memory."""
    if not isinstance(value, torch.Tensor):
        return -1
    try:
        return (value.untyped_storage() if of_storage else value).data_ptr() or -1
    except RuntimeError:  # some subclasses have no memory of their own
        return -1


@functools.lru_cache(maxsize=4096)
def _written(func: Any) -> tuple[tuple[int, str], ...]:
    """Return the positions and names of the arguments that an operation writes to."""
    arguments = enumerate(func._schema.arguments)
    return tuple((i, each.name) for i, each in arguments if each.alias_info is not None and each.alias_info.is_write)
