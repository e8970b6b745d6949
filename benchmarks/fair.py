"""What makes timings comparable: an image like a photograph, an allocator that keeps its memory, calls in turns."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "4000000000", "MALLOC_TRIM_THRESHOLD_": "8000000000"}


def keep_memory() -> None:
    """Restart with an allocator that keeps freed memory; otherwise new pages for every large tensor are timed, too."""
    if any(os.environ.get(name) != value for name, value in _MALLOC.items()):
        os.environ.update(_MALLOC)
        os.execv(sys.executable, [sys.executable, *sys.argv])


def alternate(
    functions: dict[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Return the seconds of every call, the functions taking turns, every other turn backwards.

    So no function profits from what another leaves in caches and in the allocator. Take `time.process_time`, the
    processor time, where one thread computes on a machine that is busy with other work.
    """
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(repeats + 1):
        for name, function in list(functions.items())[:: -1 if turn % 2 else 1]:
            start = clock()
            function()
            if turn:  # the first turn warms up
                seconds[name].append(clock() - start)
    return seconds


def picture(size: int) -> Any:
    """Return an image (1, 3, size, size) with structure at every scale, like a photograph: waves and fine noise.

    On pure noise, deep features are nearly constant: the worst case for exact moments, and not a usual one.
    """
    random = np.random.default_rng(0)
    place = np.linspace(0, 2 * np.pi, size)
    image = 0.3 * random.normal(size=(3, size, size))
    for waves in (1, 2, 4, 8, 16, 32):
        phase, tilt = random.uniform(0, 2 * np.pi, size=(2, 3, 1, 1))
        image += np.sin(waves * (np.cos(tilt) * place[:, None] + np.sin(tilt) * place) + phase) / waves**0.5
    return image[None].astype(np.float32)
