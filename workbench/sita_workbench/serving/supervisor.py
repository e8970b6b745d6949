"""uvicorn's supervisor of workers, with three differences.

- If a worker dies before any was ready, the server ends with the reason; uvicorn would start it again for ever.
- Workers that do not end in time are killed.
- Closing the terminal (SIGHUP) ends the server; uvicorn would restart its workers.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from socket import socket

from uvicorn.config import Config
from uvicorn.supervisors import Multiprocess

from .settings import GRACE_SECONDS
from .worker import FAILED, READY


class Supervisor(Multiprocess):
    """Starts the workers, and starts one again that died. `failure` is why the server could not start, if so."""

    def __init__(self, config: Config, sockets: list[socket], folder: Path, say: Callable[[str], None]) -> None:
        super().__init__(config, sockets)
        self.failure: str | None = None
        self._folder, self._say = folder, say

    def keep_subprocess_alive(self) -> None:
        """Look after the workers, every half second."""
        for process in self.processes:
            if process.process.is_alive() or self.should_exit.is_set():
                continue
            if not any(self._folder.glob(f"{READY}*")):
                told = self._folder / f"{FAILED}{process.pid}"
                died = f"A worker ended (exit code {process.exitcode}) before its model was loaded."
                self.failure = told.read_text(encoding="utf-8") if told.exists() else died
                self.should_exit.set()
                return
            self._say(f"Worker {process.pid} died (exit code {process.exitcode}); another one starts.")
        super().keep_subprocess_alive()

    def join_all(self) -> None:
        """Wait for the workers to end, and kill those that do not."""
        for process in self.processes:
            process.process.join(GRACE_SECONDS + 5)
            if process.process.is_alive():
                process.process.kill()
                process.process.join()

    def handle_hup(self) -> None:
        """End, as at SIGTERM."""
        if os.name != "nt":
            self.handle_term()
