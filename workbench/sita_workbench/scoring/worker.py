"""A local worker: a process that scores one shard after the other, as it is told through its standard input.

    in   the job as JSON; then numbers of shards, a line each. At its end the process ends, even amid a shard
    out  a JSON line after every batch, and for every shard that is done or failed

So a worker whose driver is gone does not live on, and a driver notices at once when a worker is.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import traceback
from dataclasses import asdict
from typing import Any, TextIO

from sita_adapters.errors import SitaError

from .scorer import use_one_thread
from .shard import score_shard
from .spec import Job


def main() -> None:
    """Work until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the driver decides
    use_one_thread()
    out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a model prints is not an answer
    job = Job.from_json(sys.stdin.readline())
    numbers: queue.Queue[int] = queue.Queue()
    threading.Thread(target=_listen, args=(numbers,), daemon=True).start()
    while True:
        _score(job, numbers.get(), out)


def _listen(numbers: queue.Queue[int]) -> None:
    for line in sys.stdin:
        numbers.put(int(line))
    os._exit(0)  # the driver has ended, or wants no more


def _score(job: Job, number: int, out: TextIO) -> None:
    def report(images: int) -> None:
        _send(out, {"batch": {"number": number, "images": images, "pid": os.getpid(), "node": ""}})

    try:
        _send(out, {"done": asdict(score_shard(job, number, report))})
    except Exception as error:
        _send(out, {"error": describe_error(error)})


def _send(out: TextIO, message: dict[str, Any]) -> None:
    try:
        out.write(json.dumps(message) + "\n")
        out.flush()
    except BrokenPipeError:
        os._exit(0)


def describe_error(error: Exception) -> dict[str, str]:
    """Return an error as text that crosses between processes: one of ours as it is, any other with its traceback."""
    if isinstance(error, SitaError):
        return {"kind": type(error).__name__, "message": str(error)}
    return {"kind": "", "message": "".join(traceback.format_exception(error))}


if __name__ == "__main__":
    main()
