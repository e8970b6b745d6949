"""The user's hook functions in a clone: they run in its calls, not in the probe, and must not change what it computes.

A hook that is a function is the same object in the clone as in the source: a feature bank that it fills would receive
the probe's random images. A hook that is a callable object, or a method of one, is copied with the model, and belongs
to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, CellType, FunctionType
from typing import Any

from torch import nn

from sita_adapters.errors import ModelError
from sita_adapters.state import thread

from .inspection import named_modules

_LIBRARIES = ("torch", "transformers", "timm", "accelerate", "peft")
"""Their hook functions are parts of their models."""

_EMPTY = CellType()
"""What a closure has for a variable that was never set."""


class UserHook:
    """A hook function on an inner module of a clone."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.function, self.name = function, name

    def __call__(self, *args: Any) -> None:
        """Call the function in a call of the adapted model; raise if it returns a value."""
        context = thread.context
        if context is None or context.record is not None:
            return
        if self.function(*args) is not None:
            raise ModelError(
                f"A hook function of {self.name!r} ({getattr(self.function, '__qualname__', self.function)}) returns "
                "a value, which the probe has not seen. Expected hook functions that only observe. Try: compute it in "
                "the forward, or register an object of a class with a __call__ method."
            )


def _hooks_inside(model: nn.Module) -> Iterator[tuple[str, dict[int, Any]]]:
    """Yield the forward hooks of every inner module, with its name."""
    for name, module in named_modules(model)[1:]:
        yield from ((name, module._forward_pre_hooks), (name, module._forward_hooks))


def _is_users(hook: Any) -> bool:
    """Whether a hook is a function that no library registered for its own models."""
    library = (getattr(hook, "__module__", None) or "").partition(".")[0]
    return isinstance(hook, FunctionType | BuiltinFunctionType) and library not in _LIBRARIES


def check_hooks(source: nn.Module) -> None:
    """Raise if a hook function refers to a part of the source model, which it would change in the clone's calls."""
    modules = named_modules(source)
    values = [value for _, module in modules for value in vars(module).values() if isinstance(value, dict | list | set)]
    own = {id(each) for each in (*(module for _, module in modules), *values)}
    for name, hooks in _hooks_inside(source):
        for hook in hooks.values():
            if _is_users(hook) and any(id(each) in own for each in _objects_of(hook)):
                raise ModelError(
                    f"A hook function of {name!r} ({getattr(hook, '__qualname__', hook)}) refers to the model or one "
                    "of its attributes, and would change the source when the adapted model runs. Try: make it a method "
                    "of the model (register_forward_hook(self.method)), which belongs to each copy."
                )


def _objects_of(hook: Any) -> list[Any]:
    """Return the objects that a function refers to: in its closure, its defaults and its globals."""
    if isinstance(hook, BuiltinFunctionType):  # a list's append
        return [hook.__self__]
    cells = [cell.cell_contents for cell in hook.__closure__ or () if cell != _EMPTY]
    return [*cells, *(hook.__defaults__ or ()), *(hook.__globals__.get(name) for name in hook.__code__.co_names)]


def wrap_hooks(model: nn.Module) -> None:
    """Wrap the user's hook functions on the inner modules of a clone."""
    for name, hooks in _hooks_inside(model):
        hooks.update({key: UserHook(hook, name) for key, hook in hooks.items() if _is_users(hook)})


def unwrap_hooks(model: nn.Module) -> None:
    """Undo `wrap_hooks` in a copy of a clone."""
    for _, hooks in _hooks_inside(model):
        hooks.update({key: hook.function for key, hook in hooks.items() if isinstance(hook, UserHook)})
