"""The server: a port, and uvicorn's worker processes on it.

This process keeps the port open. While a worker restarts, clients that connect wait for it; they are not refused.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from sita_adapters.errors import SitaError

from ..processes import GRACE_SECONDS
from .app import ServeSettings
from .worker import FAILED, STARTED, make_worker

HEADER_SECONDS = 10
"""How long a client may take to send the headers of a request."""

_HEALTH_SECONDS = 30
"""A worker that was ready, and then does not answer its parent for this long, is killed."""


def serve(settings: ServeSettings, *, host: str, port: int, workers: int, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; then leave no process, and the port free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=256)
    except (OSError, OverflowError) as error:
        reason = f"The server cannot listen on {host}, port {port}: {error}. Try: another --port, or --host."
        raise SitaError(reason) from error
    with (
        listening,
        tempfile.TemporaryDirectory(prefix=f"sita-metrics-{os.getpid()}-", ignore_cleanup_errors=True) as folder,
    ):
        config = uvicorn.Config(
            partial(make_worker, settings, Path(folder)),
            factory=True,
            workers=workers,
            http=DeadlineProtocol,
            log_level="warning",
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=GRACE_SECONDS,
        )
        supervisor = Supervisor(config, listening, Path(folder), say)
        supervisor.run()
        if supervisor.failure is not None:
            raise SitaError(supervisor.failure)


class Supervisor(Multiprocess):
    """uvicorn's supervisor of workers, with different reactions to failures.

    - If a worker dies before all were ready once, the server ends, and `failure` is the reason. uvicorn would restart
      a worker that was killed forever.
    - If one fails to load its model later, the others continue, and it restarts. uvicorn would end the server.
    - Workers that do not end in time are killed.
    - Closing the terminal (SIGHUP) ends the server. uvicorn would restart its workers.
    """

    def __init__(
        self, config: uvicorn.Config, listening: socket.socket, folder: Path, say: Callable[[str], None]
    ) -> None:
        super().__init__(config, [listening])
        self.failure: str | None = None
        self._folder, self._say = folder, say
        self._ready = set[int | None]()  # the process ids of workers that have been ready

    def keep_subprocess_alive(self) -> None:
        """Restart workers that died or hang; uvicorn calls this every half second."""
        started = (self._folder / STARTED).exists()
        for index, process in enumerate(self.processes):
            if self.should_exit.is_set() or self._is_well(process):
                continue
            process.kill()
            process.join()
            told = self._folder / f"{FAILED}{process.pid}"
            died = f"Worker {process.pid} died (exit code {process.exitcode})."
            reason = told.read_text(encoding="utf-8") if told.exists() else died
            if not started:
                self.failure = reason
                self.should_exit.set()
                return
            self._say(f"{reason} Another worker starts.")
            self.processes[index] = Process(self.config, self.sockets)
            self.processes[index].start()
        if not started and all(process.pid in self._ready for process in self.processes):
            (self._folder / STARTED).touch()
            host, port = self.sockets[0].getsockname()[:2]
            self._say(f"Listening on http://{f'[{host}]' if ':' in host else host}:{port}. Press Ctrl-C to stop.")

    def _is_well(self, process: Process) -> bool:
        """Return whether a worker runs and, once it has been ready, answers. A worker that loads may be busy."""
        if process.pid in self._ready:
            return process.is_alive(_HEALTH_SECONDS)
        if process.is_ready():
            self._ready.add(process.pid)
        return process.process.is_alive()

    def join_all(self) -> None:
        """Wait for the workers to end, and kill those that do not."""
        for process in self.processes:
            process.process.join(GRACE_SECONDS + 5)
            if process.process.is_alive():
                process.process.kill()
                process.process.join()

    handle_hup = Multiprocess.handle_term


class DeadlineProtocol(H11Protocol):
    """uvicorn's HTTP protocol with a deadline for headers, for which uvicorn has no setting.

    A client that connects and never finishes its headers would keep a connection, and a file descriptor, forever. The
    time counts from the connection, or from the first byte of a later request.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the deadline of the first request."""
        super().connection_made(transport)
        self._start()

    def data_received(self, data: bytes) -> None:
        """Stop the deadline if the headers are complete; start one if these bytes are a part of them."""
        super().data_received(data)
        waits = self.cycle is None or self.cycle.response_complete
        if waits and self._deadline is None:
            self._start()
        elif not waits and self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _start(self) -> None:
        self._deadline = self.loop.call_later(HEADER_SECONDS, self.transport.close)
