"""A real server process on loopback, as tests and benchmarks start it."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from PIL import Image


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that they have."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [child for child, parent in parents.items() if parent == pid]
    return found + [deeper for child in found for deeper in descendants(child)]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclass
class Running:
    """A server that answers."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=300, trust_env=False)

    def workers(self) -> list[int]:
        """The processes that hold the model; not the one that multiprocessing keeps for its own ends."""
        lines = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(self.process.pid)}
        return [pid for pid, line in lines.items() if b"spawn_main" in line]

    def stop(self) -> tuple[int, list[int]]:
        """Send SIGTERM; return the exit code, and which processes are left."""
        pids = [self.process.pid, *descendants(self.process.pid)]
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        end = time.monotonic() + 5
        while time.monotonic() < end and any(map(is_running, pids)):
            time.sleep(0.1)
        return code, [pid for pid in pids if is_running(pid)]


@contextlib.contextmanager
def start_server(*arguments: str, folder: Path, port: int | None = None) -> Iterator[Running]:
    """Start `sita serve` with these arguments, wait until it answers, and end it whatever happens."""
    port = port or free_port()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])}
    environment.pop("KERAS_BACKEND", None)
    log = (folder / f"server-{port}.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "sita_workbench.cli", "serve", *arguments, "--port", str(port), "--threads", "1"],
        cwd=folder,
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    running = Running(process, port)
    try:
        wait_until_healthy(running, Path(log.name))
        yield running
    finally:
        if process.poll() is None:
            running.stop()
        log.close()


def wait_until_healthy(running: Running, log: Path) -> None:
    end = time.monotonic() + 300
    with running.client() as client:
        while time.monotonic() < end:
            if running.process.poll() is not None:
                raise RuntimeError(f"The server ended: {log.read_text()}")
            with contextlib.suppress(httpx.TransportError):
                if client.get("/health").status_code == 200:
                    return
            time.sleep(0.1)
    raise TimeoutError(log.read_text())


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def values_of(page: str) -> dict[str, float]:
    """The samples of a page of metrics, by name and labels."""
    lines = [line for line in page.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def noise(count: int, size: int = 20, seed: int = 0) -> np.ndarray[Any, Any]:
    """Made-up pictures with structure."""
    random = np.random.default_rng(seed)
    coarse = random.uniform(0, 255, (count, -(-size // 4), -(-size // 4), 3)).repeat(4, axis=1).repeat(4, axis=2)
    return np.clip(coarse[:, :size, :size] + random.normal(0, 12, (count, size, size, 3)), 0, 255).astype(np.uint8)
