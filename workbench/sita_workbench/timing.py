"""The time per image of several methods, measured in turns."""

from __future__ import annotations

import contextlib
import json
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .files import write_json
from .methods import SOURCE
from .progress import Progress

if TYPE_CHECKING:
    from .runs import Run


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch compute on one thread inside the context. TensorFlow and JAX fix their threads when imported."""
    with contextlib.ExitStack() as stack:
        if torch := sys.modules.get("torch"):
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
        yield


def time_in_turns(
    calls: Mapping[str, Callable[[], object]],
    rounds: int,
    show: Callable[[str, int], None],
    most_seconds: float = math.inf,
) -> dict[str, list[float]]:
    """Return the seconds of every call, in up to `rounds` rounds; stop early if another would exceed the time.

    The calls take turns, because then a slow moment of the machine affects them all. A first round, in which frameworks
    compile and allocate, does not count.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    started = 0.0
    for turn in range(rounds + 1):
        if turn == 1:
            started = time.perf_counter()
        elif turn > 1 and time.perf_counter() - started > most_seconds * (turn - 1) / turn:
            break
        for name, call in calls.items():
            show(name, turn)
            before = time.perf_counter()
            call()
            if turn:
                taken[name].append(time.perf_counter() - before)
    return taken


def time_methods(run: Run, rounds: int, path: Path, progress: Progress) -> dict[str, Any] | None:
    """Return the time of one image under every method; write it to `path`, or reuse the times stored there."""
    if path.exists():
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if {method.name for method in run.methods} <= set(stored["methods"]) and rounds in (0, stored["rounds"]):
            progress.say("Reused from an earlier run: the times.")
            return stored
    if not rounds:
        return None
    image = run.loaded.encode(run.data.load(run.data.conditions[-1], 0, 1)[0])
    calls = {method.name: partial(run.loaded.run, method.prepare(run.loaded), image) for method in run.methods}
    with progress.track("timing", (rounds + 1) * len(calls)) as advance:
        seconds = time_in_turns(calls, rounds, lambda name, turn: advance(1, f"last step, timing {name}"))
    times = {
        "machine": f"{platform.machine()}, {platform.system()}",
        "threads": sys.modules["torch"].get_num_threads() if run.loaded.framework == "torch" else None,
        "rounds": rounds,
        "methods": summarize_times(seconds),
    }
    write_json(path, times)
    return times


def summarize_times(seconds: Mapping[str, Sequence[float]]) -> dict[str, dict[str, float]]:
    """Return every method's time in ms and relative to the source's, each the median of the rounds, with quartiles.

    A method is compared with the source model in the same round, and its ms are the source's ms times that ratio.
    Separate medians would contradict the ratio if the machine is busy with other work in some of the rounds.
    """
    source = np.asarray(seconds[SOURCE])
    unit = 1e3 * float(np.median(source))
    found = {}
    for name, each in seconds.items():
        ratios = np.divide(each, np.median(source) if name == SOURCE else source)
        low, relative, high = np.percentile(ratios, [25, 50, 75]).tolist()
        times = {"ms": unit * relative, "low": unit * low, "high": unit * high, "relative": relative}
        found[name] = {key: round(value, 3) for key, value in times.items()}
    return found
