"""Worker processes on this machine, and the driver's loop, which is the same for workers on a cluster.

Workers on this machine are spawned and not forked: a forked framework may deadlock in its threads. A worker does not
outlive its driver, and a driver notices at once when a worker is killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, TypeAlias

from sita_adapters.errors import SitaError

from ..processes import end_with_parent, use_threads
from .shard import Job, Report, report_shard

Shards: TypeAlias = Mapping[int, Sequence[str]]  # the paths of each shard
News: TypeAlias = Report | SitaError | str  # a report, the error that ends the run, or why the worker was lost


def run_workers(
    open_worker: Callable[[], Any],
    receive: Callable[[Collection[Any]], tuple[Any, News]],
    shards: Shards,
    workers: int,
    attempts: int,
) -> Generator[Report | str, None, None]:
    """Score these shards with this many workers; yield their reports, and a message if a worker is lost.

    `receive` waits for news of a running worker. A shard is tried up to `attempts` times. A worker without a next shard
    is stopped at once: on a cluster with fewer cores than workers, another one is waiting for its core.
    """
    waiting, losses = deque(shards), Counter[int]()
    running: dict[Any, int] = {}

    def start(worker: Any) -> None:
        running[worker] = waiting.popleft()
        worker.start(running[worker], shards[running[worker]])

    try:
        while waiting or running:
            while waiting and len(running) < workers:
                start(open_worker())
            worker, news = receive(running)
            if isinstance(news, SitaError):
                raise news
            if isinstance(news, str):
                number = running.pop(worker)
                worker.stop()
                losses[number] += 1
                if losses[number] == attempts:
                    raise SitaError(
                        f"Workers ended {attempts} times while scoring shard {number}; the last one ended with "
                        f"{news}. Finished parts are kept. Try: fewer --workers if memory ran out; in a script, call "
                        "score below if __name__ == '__main__'."
                    )
                waiting.appendleft(number)
                yield f"A worker was lost ({news.splitlines()[0]}); shard {number} runs again."
                continue
            yield news
            if news.done and waiting:
                start(worker)
            elif news.done:
                del running[worker]
                worker.stop()
    finally:
        for worker in running:
            worker.stop()


def usable_cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def run_local(job: Job, shards: Shards, workers: int | None) -> Generator[Report | str, None, None]:
    """Score these shards on this machine."""
    return run_workers(lambda: LocalWorker(job), _receive, shards, workers or usable_cores(), attempts=3)


def _receive(running: Collection[LocalWorker]) -> tuple[LocalWorker, News]:
    pipes = {worker.pipe: worker for worker in running}
    ready: Any = wait(list(pipes))[0]
    try:
        return pipes[ready], ready.recv()
    except (EOFError, OSError):  # a killed worker may leave half a message
        pipes[ready].process.join()
        code = pipes[ready].process.exitcode or 0
        return pipes[ready], f"signal {-code}" if code < 0 else f"exit code {code}"


class LocalWorker:
    """A worker process."""

    def __init__(self, job: Job) -> None:
        context = multiprocessing.get_context("spawn")
        self._job = job
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def start(self, number: int, paths: Sequence[str]) -> None:
        """Let it score a shard."""
        with contextlib.suppress(OSError):  # it has ended, which `_receive` notices
            self.pipe.send((self._job, number, paths))

    def stop(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _work(pipe: Connection) -> None:
    """Run a worker: score shards until the driver ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the driver decides
    os.dup2(2, 1)  # the command's output is not for what a model prints
    end_with_parent()
    use_threads(1)
    while True:
        for report in report_shard(*pipe.recv()):
            pipe.send(report)
