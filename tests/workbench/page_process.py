"""A real process of `sita ui` on loopback."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from serving_process import free_port


@contextlib.contextmanager
def start_page(*arguments: str, folder: Path, temporary: Path | None = None) -> Iterator[str]:
    """Start `sita ui` with these arguments, wait until it answers, yield its address, and end it whatever happens."""
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])}
    environment.pop("KERAS_BACKEND", None)
    if temporary is not None:
        environment["TMPDIR"] = str(temporary)
    log = (folder / f"page-{port}.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "sita_workbench.cli", "ui", *arguments, "--port", str(port), "--no-browser"],
        cwd=folder,
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        _wait_until_served(process, address, Path(log.name))
        yield address
    finally:
        process.terminate()
        process.wait(60)
        log.close()


def _wait_until_served(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    end = time.monotonic() + 300
    with httpx.Client(timeout=10, trust_env=False) as client:
        while time.monotonic() < end:
            if process.poll() is not None:
                raise RuntimeError(f"The page's process ended: {log.read_text()}")
            with contextlib.suppress(httpx.TransportError):
                if client.get(address).status_code == 200:
                    return
            time.sleep(0.2)
    raise TimeoutError(log.read_text())
