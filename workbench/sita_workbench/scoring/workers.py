"""Worker processes on this machine, and the driver's loop, which is the same for workers on a cluster.

Workers on this machine are started as separate programs and not forked: a forked framework may deadlock in its threads,
and a script that calls `score` needs no `if __name__ == "__main__"`. Driver and worker exchange pickles:

    stdin   the job, the number and the paths of each shard. At its end the worker exits, even in the middle of a shard
    stdout  reports, or an error

So a worker does not outlive its driver, and a driver notices at once when a worker is killed.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from typing import IO, Any, TypeAlias

from sita_adapters.errors import SitaError

from .shard import Job, Report, report_shard, use_one_thread

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

    `open_worker` starts a worker, which has the methods `start(number, paths)` and `stop()`; `receive` waits for news
    of a running one. A lost worker is replaced, and its shard is tried up to `attempts` times. A worker without a next
    shard is stopped at once: on a cluster with fewer cores than workers, another one is waiting for its core.
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
                        f"Workers ended {attempts} times while they scored shard {number}. Finished parts are kept. "
                        f"Try: fewer --workers, if memory ran out. The last one ended with {news}"
                    )
                waiting.appendleft(number)
                yield f"A worker was lost ({news.splitlines()[0]}); shard {number} is done again."
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
    inbox: queue.Queue[tuple[LocalWorker, News | None]] = queue.Queue()

    def receive(running: Collection[LocalWorker]) -> tuple[LocalWorker, News]:
        while True:
            worker, news = inbox.get()
            if worker in running:  # it was not stopped
                return worker, news or worker.describe_end()

    return run_workers(lambda: LocalWorker(job, inbox), receive, shards, workers or usable_cores(), attempts=3)


class LocalWorker:
    """A worker process, and the thread that reads its messages."""

    def __init__(self, job: Job, inbox: queue.Queue[Any]) -> None:
        # `-c` and the path of this process: a child must find the same packages, wherever they are.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from sita_workbench.scoring.workers import work; work()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
        )
        self._job = job
        threading.Thread(target=self._read, args=(inbox,), daemon=True).start()

    def start(self, number: int, paths: Sequence[str]) -> None:
        """Let it score a shard. A thread sends the paths: until the worker has started, its pipe may be full."""
        threading.Thread(target=self._send, args=((self._job, number, paths),), daemon=True).start()

    def stop(self) -> None:
        """Kill it."""
        self._process.kill()
        self._process.wait()
        self._log.close()
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def describe_end(self) -> str:
        """Return how it ended, and the last lines of its standard error."""
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return "\n".join([f"signal {-code}" if code < 0 else f"exit code {code}", *lines[-5:]])

    def _send(self, shard: tuple[Job, int, Sequence[str]]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it has ended, which `_read` notices, or was stopped
            pickle.dump(shard, self._process.stdin)
            self._process.stdin.flush()

    def _read(self, inbox: queue.Queue[Any]) -> None:
        assert self._process.stdout is not None
        with contextlib.suppress(Exception), self._process.stdout as messages:
            while True:  # until the worker ends; a killed one may leave half a message
                inbox.put((self, pickle.load(messages)))
        inbox.put((self, None))


def work() -> None:
    """Be a worker: score shards until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the driver decides
    use_one_thread()
    out = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a model prints is not a message
    shards: queue.Queue[tuple[Job, int, Sequence[str]]] = queue.Queue()

    def listen() -> None:
        with contextlib.suppress(EOFError, pickle.UnpicklingError):
            while True:
                shards.put(pickle.load(sys.stdin.buffer))
        os._exit(0)  # the driver has ended

    threading.Thread(target=listen, daemon=True).start()
    while True:
        for report in report_shard(*shards.get()):
            pickle.dump(report, out)
            out.flush()
