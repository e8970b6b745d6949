"""A model's forward as a graph, in which most of its modules are single calls, and the function that runs it.

Not by torch.fx.symbolic_trace: it replaces methods of nn.Module itself while it traces, which other threads would run
into. Here the modules of a copy, made for the purpose, note their calls.
"""

from __future__ import annotations

import collections
import functools
import importlib
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn

from sita_adapters.errors import SitaError

from .structure import walk


class CannotRecordError(SitaError):
    """What a forward does cannot be held in a graph. Never seen by a user."""


def record(model: nn.Module, opened: set[str]) -> fx.Graph:
    """Return the graph of model.forward(image): the operations of the modules with these names, and the others' calls.

    Raise where the graph would not be the forward: it decides by values, or changes the model.
    """
    recorder = _Recorder(model, opened)
    with recorder.listening(), _unusual_modes():
        before = _state(model)
        recorder.modes = _modes()
        image = recorder.create_proxy("placeholder", "image", (), {})
        try:
            output = type(model).forward(model, image)
            recorder.create_node("output", "output", (recorder.create_arg(output),), {})
        except Exception as error:
            raise CannotRecordError(str(error)) from error
        after = _state(model)
    if len(before) != len(after) or any(x is not y for x, y in zip(before, after, strict=True)):
        raise CannotRecordError("The forward changes its module.")
    return recorder.graph


class Code:
    """The function that runs a graph on a model, as its text: so it can be stored, and holds no model."""

    def __init__(self, source: str, names: dict[str, Any]) -> None:
        self.source, self.names = source, names
        scope = {name: _imported(value) for name, value in names.items()}
        exec(compile(source, "<graph of a forward>", "exec"), scope)
        self.function: Callable[[nn.Module, Any], Any] = scope["forward"]

    def __reduce__(self) -> Any:
        return Code, (self.source, self.names)

    def __deepcopy__(self, _: Any) -> Code:
        return self


def compiled(graph: fx.Graph) -> Code:
    """Return the function of a graph."""
    code = graph.python_code("self")
    names = {
        name: _Import(value.__name__) if isinstance(value, types.ModuleType) else value
        for name, value in code.globals.items()
    }
    return Code(code.src, names)


class _Import(str):
    """The name of a module, which pickle does not store itself."""


def _imported(value: Any) -> Any:
    return importlib.import_module(value) if isinstance(value, _Import) else value


class _Recorder(fx.Tracer):
    """Notes calls of modules and operations on what they give."""

    def __init__(self, model: nn.Module, opened: set[str]) -> None:
        super().__init__()
        self.root, self.graph, self.modes = model, fx.Graph(), _modes()
        named = dict(model.named_modules())
        names = {id(module): name for name, module in named.items()}
        self.closed = [
            (names.get(id(module)), module)
            for _, module in walk(model)
            if isinstance(module, nn.Module) and names.get(id(module)) not in opened
        ]
        self.tensors = {id(tensor): name for name, tensor in (*model.named_parameters(), *model.named_buffers())}

    @contextmanager
    def listening(self) -> Iterator[None]:
        own = [vars(module).get("forward") for _, module in self.closed]
        try:
            for name, module in self.closed:
                vars(module)["forward"] = functools.partial(self._note, name)
            yield
        finally:
            for (_, module), forward in zip(self.closed, own, strict=True):
                if forward is None:
                    vars(module).pop("forward", None)
                else:
                    vars(module)["forward"] = forward

    def _note(self, name: str | None, *args: Any, **kwargs: Any) -> fx.Proxy:
        if name is None:
            raise CannotRecordError("A module is held where nobody could find it by name.")
        return self.create_proxy("call_module", name, args, kwargs)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _modes() != self.modes:
            raise CannotRecordError("An operation has a precision or gradients of its own, which a graph would lose.")
        return super().create_node(*args, **kwargs)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, torch.Tensor):
            if id(a) not in self.tensors:
                raise CannotRecordError("A tensor is made on the way, which a graph would keep.")
            return self.create_node("get_attr", self.tensors[id(a)], (), {})
        if type(a) is collections.OrderedDict:
            return self.create_node("call_function", collections.OrderedDict, (self.create_arg(list(a.items())),), {})
        return super().create_arg(a)


def _modes() -> tuple[Any, ...]:
    return torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")


@contextmanager
def _unusual_modes() -> Iterator[None]:
    """Switch on what forwards switch off, so that it shows."""
    devices = ("cpu", "cuda")
    before = [torch.is_autocast_enabled(device) for device in devices]
    try:
        for device in devices:
            torch.set_autocast_enabled(device, True)
        with torch.enable_grad():
            yield
    finally:
        for device, enabled in zip(devices, before, strict=True):
            torch.set_autocast_enabled(device, enabled)


def _state(model: nn.Module) -> list[Any]:
    """Return all that the modules hold, down to what is in their lists and dicts."""
    held: list[Any] = []
    waiting = [value for module in model.modules() for value in (vars(module), *vars(module).values())]
    seen: set[int] = set()
    while waiting:
        value = waiting.pop()
        if isinstance(value, list | tuple | set | dict) and id(value) not in seen:
            seen.add(id(value))
            waiting.extend(value.values() if isinstance(value, dict) else value)
        elif not isinstance(value, dict):
            held.append(value)
    return held
