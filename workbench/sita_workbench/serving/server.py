"""The server: a port, and uvicorn's workers on it, which uvicorn starts again if they die.

This process holds the port. While a worker starts again, clients that connect wait for it; they are not refused.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from sita_adapters.errors import SitaError

from .metrics import FOLDER
from .settings import GRACE_SECONDS, ServeSettings
from .worker import READY, SETTINGS

_BACKLOG = 256
_HEALTH_SECONDS = 30
"""A worker that does not answer uvicorn for so long, because it hangs, is killed."""


class ServerError(SitaError):
    """The server cannot start."""


def serve(
    settings: ServeSettings,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    say: Callable[[str], None] = print,
) -> None:
    """Serve until SIGTERM or Ctrl-C; then leave no process, and the port free."""
    import uvicorn

    from .supervisor import Supervisor

    listening = _bind(host, port)
    with contextlib.closing(listening), _shared_folder() as folder:
        (folder / SETTINGS).write_text(settings.to_json(), encoding="utf-8")
        config = uvicorn.Config(
            "sita_workbench.serving.worker:make_worker",
            factory=True,
            workers=workers,
            http="sita_workbench.serving.protocol:PatientProtocol",
            log_level="warning",
            access_log=False,
            lifespan="on",
            timeout_graceful_shutdown=GRACE_SECONDS,
            timeout_worker_healthcheck=_HEALTH_SECONDS,
        )
        supervisor = Supervisor(config, [listening], folder, say)
        shown = f"[{host}]" if ":" in host else host
        text = f"Listening on http://{shown}:{listening.getsockname()[1]} with {workers} "
        text += "worker. Ctrl-C ends it." if workers == 1 else "workers. Ctrl-C ends it."
        announce = threading.Thread(
            target=_announce, args=(folder, workers, supervisor.should_exit, lambda: say(text)), daemon=True
        )
        announce.start()
        supervisor.run()
        announce.join()
        if supervisor.failure is not None:
            raise ServerError(supervisor.failure)


def _announce(folder: Path, workers: int, ended: threading.Event, say: Callable[[], None]) -> None:
    """Say that the server listens as soon as all workers are ready."""
    while not ended.wait(0.1):
        if len(list(folder.glob(f"{READY}*"))) >= workers:
            say()
            return


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
    listening.set_inheritable(True)
    return listening


@contextlib.contextmanager
def _shared_folder() -> Iterator[Path]:
    """Give the workers a folder: for the settings, to count in, and to say that they are ready. It is removed."""
    folder, before = tempfile.mkdtemp(prefix=f"sita-metrics-{os.getpid()}-"), os.environ.get(FOLDER)
    os.environ[FOLDER] = folder
    try:
        yield Path(folder)
    finally:
        os.environ.pop(FOLDER)
        if before is not None:
            os.environ[FOLDER] = before
        shutil.rmtree(folder, ignore_errors=True)
