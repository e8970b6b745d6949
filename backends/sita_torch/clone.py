"""A copy of a module tree that shares the source's weights, and nothing else that a forward could write to.

Shared are the parameters and the tensors of BatchNorm layers: a change of the source's is seen in the clone. All other
tensors, lists, counters and objects are copied, so that what a forward leaves in the clone never reaches the source.
"""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from sita_adapters.errors import CloneError

from .inspection import attributes, batchnorm_tensors, holds_any, walk, walk_all


def clone(model: nn.Module, *, keep: Iterable[object] = (), isolated: bool = False) -> nn.Module:
    """Return a copy of the module tree, whose parameters and statistics are new objects over the model's memory.

    Functions that hold modules of the model (a lambda over `self`) are made again over the clone's. What is in `keep`
    stays what it is, and so does what hooks record to. An `isolated` clone has copies of that, too: nobody sees what it
    records.
    """
    memo: dict[int, Any] = {id(item): item for item in keep}
    externals: list[Any] = []
    items = [item for _, item in walk_all(model, externals) if id(item) not in memo]
    parts = {id(item) for item in items if isinstance(item, nn.Module | torch.Tensor)}
    shared = batchnorm_tensors(model)
    functions = _Functions(memo, parts, isolated)
    for item in items:
        if isinstance(item, torch.Tensor):
            memo[id(item)] = alias(item) if isinstance(item, nn.Parameter) or id(item) in shared else _copy(item)
        elif isinstance(item, types.FunctionType) and ((isolated and item.__closure__) or holds_any(item, parts)):
            functions.add(item)
    if not isolated:
        memo.update((id(item), item) for item in externals if not holds_any(item, parts))
    try:
        copied = copy.deepcopy(model, memo)
        functions.fill()
        for item in items:
            if isinstance(item, nn.Module):  # graph modules copy themselves, and forget it
                memo[id(item)].training = item.training
    except Exception as error:
        path, culprit = _find_uncopyable(model)
        raise CloneError(
            f"{type(model).__name__} cannot be copied: its attribute {path!r} ({type(culprit).__name__}) "
            f"does not support copy.deepcopy ({error}). Expected a model whose every part does. Remedy: make that "
            "attribute copyable (define __deepcopy__), or take it off the model while you adapt it."
        ) from error
    return copied


def alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return a new tensor object, of the same kind and with the same attributes, over the same memory.

    A parameter needs no gradient here: it is the source's to train.
    """
    shared = tensor.detach()
    if isinstance(tensor, nn.Parameter):
        if type(tensor) is nn.Parameter:
            shared = nn.Parameter(shared, requires_grad=False)
        else:
            shared = torch.Tensor._make_subclass(type(tensor), shared, False)
    vars(shared).update(vars(tensor))
    return shared


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with memory of its own; one that was computed from others is no longer tied to them."""
    copied = tensor.detach().clone()
    if tensor.is_leaf and tensor.requires_grad:
        copied.requires_grad_()
    vars(copied).update(vars(tensor))
    return copied


class _Functions:
    """Makes functions again over the clone's parts; copy.deepcopy takes a function for a constant."""

    def __init__(self, memo: dict[int, Any], parts: set[int], isolated: bool) -> None:
        self.memo, self.parts, self.isolated = memo, parts, isolated
        self.cells: dict[int, tuple[types.CellType, types.CellType]] = {}
        self.made: list[tuple[types.FunctionType, types.FunctionType]] = []

    def add(self, function: types.FunctionType) -> None:
        """Let a function be copied to one that has cells of its own, still empty."""
        closure = tuple(self._cell(cell) for cell in function.__closure__ or ())
        made = types.FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, closure
        )
        made.__kwdefaults__ = function.__kwdefaults__
        made.__qualname__, made.__module__, made.__doc__ = function.__qualname__, function.__module__, function.__doc__
        vars(made).update(vars(function))
        self.memo[id(function)] = made
        self.made.append((function, made))

    def _cell(self, cell: types.CellType) -> types.CellType:
        """Return the cell that stands for this one: functions that share a variable go on sharing it."""
        return self.cells.setdefault(id(cell), (cell, types.CellType()))[1]

    def fill(self) -> None:
        """Fill the cells, now that the clone is there."""
        for cell, made in self.cells.values():
            with contextlib.suppress(ValueError):  # a cell may be empty
                made.cell_contents = self._copy(cell.cell_contents)
        for function, made_function in self.made:
            made_function.__defaults__ = self._copy(function.__defaults__)
            made_function.__kwdefaults__ = self._copy(function.__kwdefaults__)

    def _copy(self, value: Any) -> Any:
        if holds_any(value, self.parts):
            return copy.deepcopy(value, self.memo)
        if self.isolated:
            with contextlib.suppress(Exception):  # what cannot be copied stays shared
                return copy.deepcopy(value, self.memo)
        return value


def _find_uncopyable(model: nn.Module) -> tuple[str, Any]:
    """Return the first attribute in the tree that deepcopy refuses, with its path."""
    parts = {id(item): item for _, item in walk(model)}
    for path, module in [(path, item) for path, item in walk(model) if isinstance(item, nn.Module)]:
        for attribute_path, value in attributes(module, path):
            try:
                copy.deepcopy(value, dict(parts))
            except Exception:
                return attribute_path, value
    return "(the model itself)", model
