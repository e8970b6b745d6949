"""Whether calling a model runs its forward, which is what is adapted: a class may have a `__call__` of its own."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from sita_adapters.errors import ModelError

from .clone import clone
from .inspection import named_modules

Given: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
"""The arguments of a call."""


_OWN = "a __call__ of its own, which does not run its forward"


class _Reached(BaseException):
    """The forward of the model was reached, with these arguments. (No Exception: the model must not catch it.)"""


class _Bypassed(_Reached):
    """A BatchNorm layer, or a module that has some, was reached first."""


def check_call(source: nn.Module, layers: Sequence[str], example: Any) -> Given | None:
    """Return the arguments that the forward of a model receives if it is called on an example, if there is one.

    Raise if calling a model does not run its forward: ultralytics' YOLO predicts instead. A copy is called, whose
    forward stops the call, as does every module with BatchNorm layers.
    """
    args = example if isinstance(example, tuple) else () if example is None or isinstance(example, dict) else (example,)
    kwargs = example if isinstance(example, dict) else {}
    given = None if example is None else (args, kwargs)
    usual, failure = type(source).__call__ is nn.Module.__call__, ""
    if type(source).forward is nn.Module.forward and "forward" not in vars(source):
        raise _error(source, layers, "no forward" if usual else _OWN)
    if usual:
        return given
    try:
        with torch.inference_mode(False), torch.no_grad():
            _stopping_copy(source, layers)(*(args if given else (_random_image(source),)), **kwargs)
    except _Bypassed:
        pass
    except _Reached as reached:
        return reached.args if given else None
    except Exception as error:
        failure = f" A trial call ended in {type(error).__name__}: {error}."
    more = "; or example= with what the model is called with" if failure and example is None else ""
    raise _error(source, layers, _OWN, failure, more)


def _stopping_copy(source: nn.Module, layers: Sequence[str]) -> nn.Module:
    """Return a copy of a model whose call ends in `_Reached` or `_Bypassed`. The user's hooks see no random images."""

    def stop(reached: type[_Reached], *args: Any, **kwargs: Any) -> None:
        raise reached(args, kwargs)

    network = clone(source, own="all")
    vars(network)["forward"] = functools.partial(stop, _Reached)
    for name, module in named_modules(network):
        module._forward_pre_hooks.clear()
        module._forward_hooks.clear()
        if name and any(each == name or each.startswith(f"{name}.") for each in layers):
            module.register_forward_pre_hook(functools.partial(stop, _Bypassed))
    return network


def _random_image(source: nn.Module) -> torch.Tensor:
    """Return a random image for the first convolution of a model."""
    convolutions = (each for _, each in named_modules(source) if isinstance(each, _ConvNd))
    weight = next((each.weight for each in convolutions), torch.empty(1, 3, 1, 1))
    return torch.rand(1, weight.shape[1], *[64] * (weight.ndim - 2)).to(weight)


def _error(source: nn.Module, layers: Sequence[str], what: str, failure: str = "", more: str = "") -> ModelError:
    """Return the error for such a model, which names the module inside that has the BatchNorm layers, if one has."""
    kind, advice = type(source).__name__, "adapt the module that it runs"
    if holders := [name for name, _ in source.named_children() if all(each.startswith(f"{name}.") for each in layers)]:
        inner = f"{kind.lower()}.{holders[0]}"
        advice = f"{inner} = sita.adapt({inner})"
    return ModelError(
        f"{kind} has {what}. Expected a module whose call runs its forward, because that is what sita.adapt "
        f"replaces.{failure} Try: {advice}{more}."
    )
