"""The call of an adapted model that a thread is in: what its BatchNorm layers need to know of it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """While a body runs: its leading size B·R (a number, or a tensor where a graph is traced) and the Plan's arrays."""

    leading: Any
    rows: int
    weights: Any
    priors: Any
    blends: bool


class _Running(threading.local):
    call: Call | None = None


running = _Running()
