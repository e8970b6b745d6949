"""A real server process on loopback."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> bool:
    """Wait until a condition is true; return whether it is."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and not condition():
        time.sleep(0.1)
    return condition()


@dataclass
class Running:
    """A server that listens."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=300, trust_env=False)

    def workers(self) -> list[int]:
        """The processes that hold the model; not the one that multiprocessing keeps for its own purposes."""
        pid = self.process.pid
        children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
        return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]

    def stop(self) -> tuple[int, list[int]]:
        """Send SIGTERM; return the exit code, and which processes are left."""
        pids = [self.process.pid, *self.workers()]
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        wait_for(lambda: not any(map(is_running, pids)), 5)
        return code, [pid for pid in pids if is_running(pid)]


@contextlib.contextmanager
def start(*arguments: str, folder: Path, ready: str, **variables: str) -> Iterator[Running]:
    """Start `sita` with these arguments, wait until it says that it is ready, and end it whatever happens."""
    port = free_port()
    path = os.pathsep.join([*filter(None, sys.path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    environment.pop("KERAS_BACKEND", None)
    command = [sys.executable, "-m", "sita_workbench.cli", *arguments, "--port", str(port)]
    log = folder / f"server-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
    running = Running(process, port, log)
    try:
        wait_for(lambda: process.poll() is not None or ready in log.read_text(), 300)
        if ready not in log.read_text():
            raise RuntimeError(f"The server ended ({process.poll()}): {log.read_text()}")
        yield running
    finally:
        if process.poll() is None:
            running.stop()


def start_server(*arguments: str, folder: Path) -> AbstractContextManager[Running]:
    """Start `sita serve`, and wait until all workers are ready."""
    return start("serve", *arguments, "--threads", "1", folder=folder, ready="Listening")


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def noise(count: int, size: int = 20, seed: int = 0) -> np.ndarray[Any, Any]:
    """Random images with structure."""
    random = np.random.default_rng(seed)
    coarse = random.uniform(0, 255, (count, -(-size // 4), -(-size // 4), 3)).repeat(4, axis=1).repeat(4, axis=2)
    return np.clip(coarse[:, :size, :size] + random.normal(0, 12, (count, size, size, 3)), 0, 255).astype(np.uint8)
