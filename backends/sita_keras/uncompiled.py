"""Run a model's predict and evaluate uncompiled for a while."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import keras


@dataclass
class _State:
    """How many want the model uncompiled, and what it was before the first came."""

    count: int
    run_eagerly: bool


_states: WeakKeyDictionary[keras.Model, _State] = WeakKeyDictionary()
_lock = threading.Lock()


@contextmanager
def uncompiled(model: Any) -> Iterator[None]:
    """Make `predict` and `evaluate` call the model layer by layer while inside, in whichever thread."""
    with _lock:
        state = _states.setdefault(model, _State(0, bool(model.run_eagerly)))
        state.count += 1
        if state.count == 1:
            _set(model, True)
    try:
        yield
    finally:
        with _lock:
            state.count -= 1
            if state.count == 0:
                _set(model, state.run_eagerly)
                del _states[model]


def _set(model: Any, run_eagerly: bool) -> None:
    model.run_eagerly = run_eagerly
    # Keras keeps the functions that it compiled, whatever is set later. Another thread may be in one of them, so that
    # there must always be one.
    model.make_predict_function(force=True)
    model.make_test_function(force=True)
