"""A copy of a module tree whose parameters and buffers are new objects on the source's memory.

In-place changes of the source are visible in the clone; tensors or layers that the source *replaces* are not.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from sita_adapters.errors import ModelError


def clone(model: nn.Module, *, keep: object = None, shared: bool = True) -> nn.Module:
    """Return a copy of the module tree with tensors that share the model's memory, or have their own.

    `keep` stays the same object in the copy.
    """
    memo: dict[int, Any] = {id(keep): keep}
    with torch.inference_mode(False), torch.no_grad():
        for module in nn.Module.modules(model):
            for tensor in (*module._parameters.values(), *module._buffers.values()):
                if tensor is not None and id(tensor) not in memo:
                    memo[id(tensor)] = _new_tensor(tensor, shared)
            for value in vars(module).values():
                if isinstance(value, torch.Tensor) and not value.is_leaf:  # a cached feature, which deepcopy refuses
                    memo[id(value)] = value.detach().clone()
        try:
            return copy.deepcopy(model, memo)
        except Exception as error:
            raise ModelError(
                f"{type(model).__name__} cannot be copied: {error}. Expected a model that copy.deepcopy can copy. "
                "Try: remove what cannot be copied from the model while you adapt it, or give it a __deepcopy__."
            ) from error


def _new_tensor(tensor: torch.Tensor, shared: bool) -> torch.Tensor:
    """Return a new object of the same class, on the same memory or on its own.

    A shared parameter needs no gradient: the source trains it.
    """
    data = tensor.detach() if shared else tensor.detach().clone(memory_format=torch.preserve_format)
    new = data
    if isinstance(tensor, nn.Parameter):
        plain = type(tensor) is nn.Parameter
        new = nn.Parameter(data, False) if plain else torch.Tensor._make_subclass(type(tensor), data, False)
    vars(new).update(vars(tensor))
    return new


def apply_to_all(model: nn.Module, function: Any, recurse: bool = True) -> nn.Module:
    """`_apply` of an adapted model, on which `.to`, `.half` and `.cuda` rest: new memory for all tensors or for none.

    `.to(memory_format=torch.channels_last)` replaces four-dimensional weights only. The others would stay shared with
    the source, and later changes of it would reach half of the model.
    """
    before = {name: tensor.data_ptr() for name, tensor in _tensors(model)}
    nn.Module._apply(model, function, recurse)  # type: ignore[no-untyped-call]
    after = {name: tensor.data_ptr() for name, tensor in _tensors(model)}
    if before != after:
        for name, tensor in _tensors(model):
            if before.get(name) == after[name]:
                tensor.data = tensor.data.clone()
    return model


def _tensors(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    return [*nn.Module.named_parameters(model), *nn.Module.named_buffers(model)]
