"""A copy of the module tree over the same storage."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from sita_adapters.errors import CloneError

_REGISTRIES = ("_parameters", "_buffers", "_modules")


def clone(model: nn.Module) -> nn.Module:
    """Return a copy of the module tree, whose tensors are new objects over the memory of the model's own.

    In-place changes on either side are seen on the other; `.to()` and `.half()` separate the two.
    """
    _refuse_closures(model)
    try:
        memo: dict[int, Any] = {id(item): alias(item) for _, item in walk(model) if isinstance(item, torch.Tensor)}
        return copy.deepcopy(model, memo)
    except Exception as error:
        path, culprit = _find_uncopyable(model)
        raise CloneError(
            f"{type(model).__name__} cannot be copied: its attribute {path!r} ({type(culprit).__name__}) "
            f"does not support copy.deepcopy ({error}). Expected a model whose every part does. Remedy: make that "
            "attribute copyable (define __deepcopy__), or take it off the model while you adapt it."
        ) from error


def walk(root: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield every module and tensor that the model holds, each once, with its path.

    Modules and tensors in plain lists, tuples, dicts and attributes count: `named_modules` would miss them.
    """
    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [("", root)]
    while stack:
        path, item = stack.pop()
        if id(item) in seen:
            continue
        if isinstance(item, nn.Module | torch.Tensor):
            seen.add(id(item))
            yield path, item
        if isinstance(item, nn.Module):
            stack.extend(reversed(list(attributes(item, path))))
        elif isinstance(item, list | tuple | set | frozenset):
            seen.add(id(item))
            stack.extend(reversed([(f"{path}[{i}]", part) for i, part in enumerate(item)]))
        elif isinstance(item, dict):
            seen.add(id(item))
            stack.extend(reversed([(f"{path}[{key!r}]", part) for key, part in item.items()]))
        elif isinstance(item, SimpleNamespace) or (is_dataclass(item) and hasattr(item, "__dict__")):
            seen.add(id(item))
            stack.extend(reversed([(f"{path}.{key}", part) for key, part in vars(item).items()]))


def attributes(module: nn.Module, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the module's attributes with their paths: what is registered first, in the module's own order."""
    prefix = f"{path}." if path else ""
    for registry in _REGISTRIES:
        for name, value in vars(module).get(registry, {}).items():
            yield f"{prefix}{name}", value
    for name, value in vars(module).items():
        if name not in _REGISTRIES:
            yield f"{prefix}{name}", value


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return a new tensor object, of the same kind and with the same attributes, over the same memory."""
    shared = tensor.detach()
    if isinstance(tensor, nn.Parameter):
        if type(tensor) is nn.Parameter:
            shared = nn.Parameter(shared, requires_grad=tensor.requires_grad)
        else:
            shared = torch.Tensor._make_subclass(type(tensor), shared, tensor.requires_grad)
    elif tensor.is_leaf and tensor.requires_grad:
        shared.requires_grad_()
    vars(shared).update(vars(tensor))
    return shared


def _refuse_closures(model: nn.Module) -> None:
    """Raise where a `forward` was replaced by a function that holds a module: its copy would run the source's."""
    for path, module in walk(model):
        function = vars(module).get("forward") if isinstance(module, nn.Module) else None
        for cell in getattr(function, "__closure__", None) or ():
            held = cell.cell_contents
            if isinstance(held, nn.Module) or isinstance(getattr(held, "__self__", None), nn.Module):
                raise CloneError(
                    f"{path or type(module).__name__!r} has a `forward` of its own that refers to a module of the "
                    "source model, which its copy would run instead of its own. Expected a forward that takes its "
                    "module as "
                    "self. Remedy: set it as types.MethodType or functools.partial, or define it in a class."
                )


def _find_uncopyable(model: nn.Module) -> tuple[str, Any]:
    """Return the first attribute in the tree that deepcopy refuses, with its path."""
    tensors = {id(item): item for _, item in walk(model) if isinstance(item, torch.Tensor)}
    modules = [(path, item) for path, item in walk(model) if isinstance(item, nn.Module)]
    stand_ins: dict[int, Any] = {**tensors, **{id(module): module for _, module in modules}}
    for path, module in modules:
        for attribute_path, value in attributes(module, path):
            try:
                copy.deepcopy(value, dict(stand_ins))
            except Exception:
                return attribute_path, value
    return "(the model itself)", model
