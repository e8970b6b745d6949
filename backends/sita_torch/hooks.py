"""The user's hook functions in a clone: they run in its calls, not in the probe, and must not change what it computes.

A hook that is a function is the same object in the clone as in the source: a feature bank that it fills would receive
the probe's random images. A hook that is a callable object, or a method of one, is copied with the model, and belongs
to it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any

from torch import nn

from sita_adapters.errors import ModelError
from sita_adapters.state import thread

from .inspection import named_modules

_LIBRARIES = ("torch", "transformers", "timm", "accelerate", "peft")
"""Their hook functions are parts of their models."""


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
                "a value, which changes what the model computes, and which the probe has not seen. Expected hook "
                "functions that only look. Try: compute it in the module's forward, or register an object of a class "
                "with a __call__ method, which is copied with the model."
            )


def wrap_hooks(model: nn.Module) -> None:
    """Wrap the user's hook functions on the inner modules of a clone."""
    for name, module in named_modules(model)[1:]:
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key, hook in hooks.items():
                library = (getattr(hook, "__module__", None) or "").partition(".")[0]
                if isinstance(hook, FunctionType | BuiltinFunctionType) and library not in _LIBRARIES:
                    hooks[key] = UserHook(hook, name)


def unwrap_hooks(model: nn.Module) -> None:
    """Undo `wrap_hooks` in a copy of a clone."""
    for _, module in named_modules(model):
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            hooks.update({key: hook.function for key, hook in hooks.items() if isinstance(hook, UserHook)})
