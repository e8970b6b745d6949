"""The parent of the workers: binds the port, starts them, starts one again that died, and ends them all.

It holds the port itself. While a worker starts again, clients that connect wait for it; they are not refused.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from sita_adapters.errors import SitaError

from .metrics import FOLDER
from .settings import GRACE_SECONDS, ServeSettings
from .worker import run_worker

_spawn = multiprocessing.get_context("spawn")  # a fork would copy what threads of a framework hold

_BACKLOG = 256

_PAUSE = 5.0
"""How many seconds to wait before a worker is started again that died while it loaded its model."""


class ServerError(SitaError):
    """The server cannot start, or cannot go on."""


@dataclass(eq=False)
class _Worker:
    """A worker process. One of the first must load its model; the others may die, and are started again."""

    process: Any
    connection: Connection
    first: bool = True
    ready: bool = False
    silent: bool = False
    """Whether its connection has ended, so that there is nothing to hear."""


def serve(
    settings: ServeSettings,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    say: Callable[[str], None] = print,
) -> None:
    """Serve until SIGTERM or Ctrl-C; then leave no process, and the port free."""
    listening = _bind(host, port)
    with contextlib.closing(listening), _metrics_folder(), _signals() as stopped:
        group: list[_Worker] = []
        try:
            group += [_start(settings, listening) for _ in range(workers)]
            _supervise(group, settings, listening, stopped, say)
        finally:
            _end(group)


def _supervise(
    group: list[_Worker], settings: ServeSettings, listening: socket.socket, stopped: int, say: Callable[[str], None]
) -> None:
    """Watch over the workers until the signal comes."""
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    announced = False
    while True:
        sentinels = {worker.process.sentinel: worker for worker in group}
        connections = {worker.connection: worker for worker in group if not (worker.ready or worker.silent)}
        found = wait([stopped, *sentinels, *connections])
        if stopped in found:
            return
        for worker in [connections[each] for each in found if each in connections]:
            _hear(worker)
        if not announced and all(worker.ready for worker in group):
            announced = True
            say(f"Listening on http://{shown}:{port} with {len(group)} worker{'s' * (len(group) > 1)}. Ctrl-C ends it.")
        for worker in [sentinels[each] for each in found if each in sentinels]:
            worker.process.join()
            if worker.first and not any(each.ready for each in group):
                raise ServerError(f"A worker ended (exit code {worker.process.exitcode}) before its model was loaded.")
            say(f"Worker {worker.process.pid} died (exit code {worker.process.exitcode}); another one starts.")
            if not worker.ready and wait([stopped], _PAUSE):  # it died while it loaded: something is wrong here
                return
            group[group.index(worker)] = _start(settings, listening, first=False)
            worker.connection.close()


def _start(settings: ServeSettings, listening: socket.socket, *, first: bool = True) -> _Worker:
    ours, theirs = _spawn.Pipe()
    process = _spawn.Process(target=run_worker, args=(settings, listening, theirs), name="sita-worker")
    process.start()
    theirs.close()  # so that a worker's end can be noticed
    return _Worker(process, ours, first)


def _hear(worker: _Worker) -> None:
    """Read what a worker says: that it is ready, or that it cannot be."""
    try:
        word, detail = worker.connection.recv()
    except (EOFError, OSError):
        worker.silent = True  # its sentinel tells the rest
        return
    if word == "failed":
        raise ServerError(detail)
    worker.ready = True


def _end(group: list[_Worker]) -> None:
    """End all workers: those that answer requests have some time to."""
    for worker in group:
        worker.process.terminate()
    for worker in group:
        worker.process.join(GRACE_SECONDS + 5)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join()
        worker.connection.close()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise ServerError(
            f"The server cannot listen on {host}, port {port}: {error}. Try: another --port, or --host."
        ) from error
    listening.listen(_BACKLOG)
    return listening


@contextlib.contextmanager
def _metrics_folder() -> Iterator[None]:
    """Give the workers a folder to count in, and remove it at the end."""
    folder, before = tempfile.mkdtemp(prefix=f"sita-metrics-{os.getpid()}-"), os.environ.get(FOLDER)
    os.environ[FOLDER] = folder
    try:
        yield
    finally:
        os.environ.pop(FOLDER)
        if before is not None:
            os.environ[FOLDER] = before
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """Yield a file number that can be read as soon as SIGTERM or SIGINT came."""
    reading, writing = os.pipe()
    previous = {
        each: signal.signal(each, lambda *_: os.write(writing, b".")) for each in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield reading
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)
        os.close(reading)
        os.close(writing)
