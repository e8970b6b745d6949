"""The local engine: worker processes on this machine, one core each.

They are started as programs of their own rather than forked: a forked framework may deadlock in its threads, and a
script that calls `score` needs no `if __name__ == "__main__"`.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Sequence
from typing import IO, Any

from sita_adapters.errors import SitaError

from .events import BatchDone, Events, to_error
from .shard import ShardDone
from .spec import Job

ATTEMPTS = 3
"""How often a shard is tried whose workers are killed."""


def usable_cores() -> int:
    """Return how many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS and Windows
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def run_local(job: Job, numbers: Sequence[int], workers: int, events: Events) -> None:
    """Score these shards in so many processes. A worker that is killed is replaced, and its shard done again."""
    inbox: queue.Queue[tuple[_Worker, dict[str, Any] | None]] = queue.Queue()
    waiting, kills = deque(numbers), Counter[int]()
    running: set[_Worker] = set()
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                running.add(_Worker(job, inbox, waiting.popleft()))
            worker, message = inbox.get()
            if message is None:
                running.discard(worker)
                _count_kill(worker, kills)
                worker.stop()
                events.say(f"A worker was lost ({worker.ending()}); shard {worker.number} is done again.")
                waiting.appendleft(worker.number)
            elif "batch" in message:
                events.batch(BatchDone(**message["batch"]))
            elif "error" in message:
                raise to_error(**message["error"])
            else:
                done = message["done"]
                events.shard(ShardDone(**{**done, "warnings": tuple(done["warnings"])}))
                if waiting:
                    worker.start(waiting.popleft())
                else:
                    running.discard(worker)
                    worker.stop()
    finally:
        for worker in running:
            worker.stop()


def _count_kill(worker: _Worker, kills: Counter[int]) -> None:
    kills[worker.number] += 1
    if kills[worker.number] == ATTEMPTS:
        raise SitaError(
            f"Workers ended {ATTEMPTS} times while they scored shard {worker.number} ({worker.ending()}). What is done "
            f"is kept. Try: fewer --workers, if memory ran out.{worker.last_words()}"
        )


class _Worker:
    """A worker process, the shard that it is at, and a thread that hears it."""

    def __init__(self, job: Job, inbox: queue.Queue[tuple[_Worker, dict[str, Any] | None]], number: int) -> None:
        # `-c` and the path of this process: a child must find the same packages, wherever they are.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from sita_workbench.scoring.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
            encoding="utf-8",
        )
        self._inbox, self.number, self._stopped = inbox, number, False
        self._tell(job.to_json())
        self.start(number)
        threading.Thread(target=self._hear, daemon=True).start()

    def start(self, number: int) -> None:
        """Let it score a shard."""
        self.number = number
        self._tell(str(number))

    def stop(self) -> None:
        """End it, in the middle of a shard if need be: nothing that is half done is kept."""
        self._stopped = True
        self._process.kill()
        self._process.wait()
        self._log.close()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def ending(self) -> str:
        """Say how it ended."""
        code = self._process.wait()
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def last_words(self) -> str:
        """Return the end of what it wrote to its standard error."""
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return "\n" + "\n".join(lines[-5:]) if lines else ""

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it is gone, which `_hear` reports
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                if line.endswith("\n"):  # a killed worker may leave half a line
                    self._inbox.put((self, json.loads(line)))
        if not self._stopped:
            self._inbox.put((self, None))
