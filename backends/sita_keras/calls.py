"""The call of an adapted model that a thread is in: what its BatchNorm layers need to know of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """While a body runs: its leading size B·R (a number, or a tensor where a graph is traced) and the Plan's arrays."""

    leading: Any
    rows: int = 1
    weights: Any = None
    priors: Any = None
    blends: bool = False
    shared: bool = False
    """Whether the images share their statistics."""
    answers: tuple[int, ...] = ()
    """The rows that go on after the last adapted layers, where the others end there."""
    watch: Callable[[Any, Any], None] | None = None
    """Told of every blending layer that runs, and of its input: how `adapt` sees what a model does."""


class _Running(threading.local):
    call: Call | None = None


running = _Running()


@contextmanager
def entered(call: Call) -> Iterator[None]:
    """Be in this call."""
    outer, running.call = running.call, call
    try:
        yield
    finally:
        running.call = outer
