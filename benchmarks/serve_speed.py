"""What HTTP and batching cost: a server under bounded load on loopback, compared with a loop over the adapted model.

    python benchmarks/serve_speed.py --weights resnet20.safetensors

Eight clients, each with its own connection, send the same random images over and over. The loop and the servers take
turns, with one thread each: a ratio is of one turn, and the median of the turns is shown. CPU time per image, of the
worker and of the loop, does not depend on what else runs on the machine.
"""

from __future__ import annotations

import argparse
import http.client
import io
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from score_speed import random_image

from sita_workbench.models.loading import load_model
from sita_workbench.processes import use_threads

CLIENTS = 8


class Server:
    """A server process, and the load on it."""

    def __init__(self, arguments: list[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        command = [sys.executable, "-m", "sita_workbench.cli", "serve", *arguments, f"--port={self.port}"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        next(line for line in self.process.stderr if "Listening" in line)
        self.seconds: list[float] = []

    def load(self, bodies: list[bytes], requests: int) -> tuple[float, float]:
        """Return the wall time of this many requests, and the workers' CPU time."""
        cpu, wall = self.cpu(), time.perf_counter()
        with ThreadPoolExecutor(CLIENTS) as clients:
            list(clients.map(lambda first: self.send(bodies, range(first, requests, CLIENTS)), range(CLIENTS)))
        return time.perf_counter() - wall, self.cpu() - cpu

    def send(self, bodies: list[bytes], numbers: range) -> None:
        """Send these requests one after the other."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        for number in numbers:
            started = time.perf_counter()
            connection.request("POST", "/predict", bodies[number % len(bodies)], {"Content-Type": "image/png"})
            response = connection.getresponse()
            answer = response.read()
            self.seconds.append(time.perf_counter() - started)
            if response.status != 200:
                raise RuntimeError(answer)

    def cpu(self) -> float:
        """Return the CPU time of the processes that the server has started."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        fields = [Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split() for child in children]
        return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def run_loop(run: Any, images: np.ndarray, requests: int) -> tuple[float, float]:
    """Return the wall time and the CPU time of a model on encoded images, one by one."""
    wall, cpu = time.perf_counter(), time.process_time()
    for number in range(requests):
        run(images[number % len(images)][None])
    return time.perf_counter() - wall, time.process_time() - cpu


def encode_png(pixels: np.ndarray) -> bytes:
    Image.fromarray(pixels).save(buffer := io.BytesIO(), "PNG")
    return buffer.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="random")
    parser.add_argument("--batches", default="1,4,8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200, help="per round and server")
    options = parser.parse_args()
    use_threads(1)
    pixels = np.stack([random_image(seed, 32) for seed in range(32)])
    load = partial(Server.load, bodies=[encode_png(each) for each in pixels], requests=options.requests)
    common = ["cifar10-resnet20", f"--weights={options.weights}", "--recipe=augbn", "--threads=1", "--no-source"]
    servers = {f"--batch {batch}": Server([*common, f"--batch={batch}"]) for batch in options.batches.split(",")}
    loaded = load_model("cifar10-resnet20", options.weights)
    loop = partial(run_loop, partial(loaded.run, loaded.adapt("augbn")), loaded.encode(pixels), options.requests)
    calls = {"loop": loop, **{name: partial(load, server) for name, server in servers.items()}}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for turn in range(options.rounds + 1):  # the first turn warms up
        for name in list(calls)[:: -1 if turn % 2 else 1]:
            found[name].append(calls[name]())
    for server in servers.values():
        server.process.terminate()
    print("| | images/s | × loop | CPU ms per image | × loop | p50 ms | p99 ms |", "| --- " * 7 + "|", sep="\n")
    for name, turns in found.items():
        wall, cpu = np.median(turns[1:], axis=0) / options.requests
        faster, cheaper = np.median(np.divide(found["loop"], turns)[1:], axis=0)
        low, high = 1000 * np.percentile(servers[name].seconds, [50, 99]) if name in servers else (np.nan, np.nan)
        print(f"| {name} | {1 / wall:.1f} | {faster:.2f} | {1000 * cpu:.1f} | {cheaper:.2f} | {low:.0f} | {high:.0f} |")


if __name__ == "__main__":
    main()
