"""What a forward leaves behind in a model, and how it is undone.

A forward may assign to variables, which are the source's, and change what Python holds: attributes, lists, objects that
the clone and the source share. Neither may reach the source or the next answer.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import keras
import numpy as np
from keras.src.backend.common.stateless_scope import get_stateless_scope
from keras.src.models import Functional, Sequential

from .inspection import walk_layers

_FRAMEWORKS = ("keras", "tensorflow", "jax", "jaxlib", "torch", "numpy", "ml_dtypes", "builtins")
"""Packages whose objects are not looked into: a model's own state is not there."""

_one_at_a_time = threading.RLock()
"""Held while models run whose state is put back afterwards: another thread would see it, or put it back too early."""


@contextmanager
def left_unchanged(models: Iterable[keras.Model], variables: Iterable[tuple[Any, Any]] = ()) -> Iterator[list[Any]]:
    """Undo, in the end, what is done to these models inside. Yields a list, which then has what was changed.

    `variables` gives some of them other values inside.
    """
    models = list(models)
    with _one_at_a_time if models else nullcontext():
        yield from _left_unchanged(models, variables)


def _left_unchanged(models: list[keras.Model], variables: Iterable[tuple[Any, Any]]) -> Iterator[list[Any]]:
    before = _remember(models)
    changed: list[Any] = []
    outer, scope = get_stateless_scope(), keras.StatelessScope(state_mapping=list(variables))
    if outer is not None:  # as on JAX, where every value is in a scope
        scope.state_mapping = {**outer.state_mapping, **scope.state_mapping}
    given = dict(scope.state_mapping)
    try:
        with scope:
            yield changed
    finally:
        changed += [value for name, value in scope.state_mapping.items() if value is not given.get(name)]
        for holder, contents in before:
            if _differ(contents, _contents(holder)):
                _put_back(holder, contents)
                changed.append(holder)


def _remember(models: Iterable[keras.Model]) -> list[tuple[Any, Any]]:
    """Return everything below these models that can be changed, each with what it holds."""
    found: dict[int, tuple[Any, Any]] = {}
    waiting = [layer for model in models for layer in (model, *(inner for _, inner in walk_layers(model)))]
    while waiting:
        holder = waiting.pop()
        contents = None if id(holder) in found else _contents(holder)
        if contents is not None:
            found[id(holder)] = holder, contents
            waiting += contents.values() if isinstance(contents, dict) else [] if _is_array(contents) else contents
    return list(found.values())


def _contents(holder: Any) -> Any:  # noqa: PLR0911 (one for each type)
    """Return a copy of what something holds: a dict, a list, a set or an array; None where it does not matter."""
    if isinstance(holder, Functional | Sequential):
        return None  # a graph has no state but its layers'
    if isinstance(holder, keras.layers.Layer):
        return {name: value for name, value in vars(holder).items() if name not in _names_of_keras()}
    if isinstance(holder, dict | list | set):
        return next(kind(holder) for kind in (dict, list, set) if isinstance(holder, kind))
    if _is_array(holder):
        return holder.copy()
    if isinstance(holder, tuple):
        return list(holder)
    if isinstance(holder, types.MethodType):
        return [holder.__self__]
    if isinstance(holder, functools.partial):
        return [holder.func, holder.args, holder.keywords]
    if isinstance(holder, types.FunctionType):
        return list(holder.__closure__ or ())
    if isinstance(holder, types.CellType):
        with suppress(ValueError):  # it is empty
            return [holder.cell_contents]
    if hasattr(holder, "__dict__") and not isinstance(holder, type | types.ModuleType):
        return dict(vars(holder)) if type(holder).__module__.partition(".")[0] not in _FRAMEWORKS else None
    return None


def _differ(before: Any, now: Any) -> bool:
    if _is_array(before):
        return not np.array_equal(before, now, equal_nan=before.dtype.kind in "fc")
    if isinstance(before, dict):
        return before.keys() != now.keys() or any(value is not now[name] for name, value in before.items())
    if isinstance(before, set):
        return bool(before != now)
    return len(before) != len(now) or any(one is not other for one, other in zip(before, now, strict=True))


def _put_back(holder: Any, contents: Any) -> None:
    """Make something hold again what it held. (By the methods of the builtin types: Keras' own track layers.)"""
    if isinstance(holder, list):
        list.__setitem__(holder, slice(None), contents)
    elif isinstance(holder, set):
        set.clear(holder)
        set.update(holder, contents)
    elif _is_array(holder):
        holder[...] = contents
    elif isinstance(holder, types.CellType):
        holder.cell_contents = contents[0]
    else:
        held = holder if isinstance(holder, dict) else vars(holder)
        for name in _contents(holder).keys() - contents.keys():
            dict.pop(held, name)
        dict.update(held, contents)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


@functools.cache
def _names_of_keras() -> set[str]:
    """Return the attributes that every layer and model has. (Named, so that Keras counts none of its names up.)"""
    return {*vars(keras.layers.Layer(name="any")), *vars(keras.Model(name="any")), "_modules"}
