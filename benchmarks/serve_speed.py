"""What HTTP and batching cost: a server under bounded load on loopback, against a bare loop over the adapted model.

    python benchmarks/serve_speed.py --weights resnet20.safetensors

Eight clients, each with a connection of its own, send the same made-up pictures over and over. All that is compared
runs in turns, in the same minutes, with as many threads: a ratio is of one turn, and the median of the turns is shown.
On a machine with other work, wall time says as much of the others as of the server. So processor time per image is
shown as well, of the worker alone and of the bare loop: it does not depend on who else runs.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CLIENTS = 8
PICTURES = 32


def pictures(side: int) -> np.ndarray:
    random = np.random.default_rng(0)
    coarse = random.uniform(0, 255, (PICTURES, side // 4, side // 4, 3)).repeat(4, axis=1).repeat(4, axis=2)
    return np.clip(coarse + random.normal(0, 12, coarse.shape), 0, 255).astype(np.uint8)


def encode_png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


BARE = """
import json, sys, time
settings = json.loads(sys.stdin.readline())
import numpy as np, torch
torch.set_num_threads(settings["threads"])
from sita_workbench.models.loading import load_model
loaded = load_model(settings["model"], settings["weights"])
adapted, images = loaded.adapt(settings["recipe"]), loaded.arrange(loaded.encode(np.load(settings["pictures"])))
images = torch.from_numpy(np.ascontiguousarray(images)).split(1)
models = {"bare": [adapted], "bare, with source": [loaded.model, adapted]}
torch.set_grad_enabled(False)
for model in models["bare, with source"]:
    model(images[0])
print("ready", flush=True)
for line in sys.stdin:
    name, count = json.loads(line)
    wall, cpu = time.perf_counter(), time.process_time()
    for place in range(count):
        for model in models[name]:
            model(images[place % len(images)])
    print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)
"""


@contextlib.contextmanager
def bare_loop(settings: dict[str, Any]) -> Iterator[Any]:
    """A process that runs the adapted model on decoded images, one by one, when it is told to."""
    process = subprocess.Popen(
        [sys.executable, "-c", BARE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(message: Any) -> str:
        print(json.dumps(message), file=process.stdin, flush=True)
        return process.stdout.readline()  # type: ignore[union-attr]

    try:
        ask(settings)
        yield lambda name, count: tuple(json.loads(ask([name, count])))
    finally:
        process.stdin.close()
        process.wait()


class Server:
    """A server process, and the load on it."""

    def __init__(self, arguments: list[str]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        command = [sys.executable, "-m", "sita_workbench.cli", "serve", *arguments, "--port", str(self.port)]
        self.process = subprocess.Popen(command)
        self.seconds: list[float] = []
        self.errors = 0

    def wait(self) -> None:
        """Wait until it answers."""
        for _ in range(3000):
            with contextlib.suppress(OSError, http.client.HTTPException):
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            time.sleep(0.1)
        raise TimeoutError

    def load(self, bodies: list[bytes], count: int) -> tuple[float, float]:
        """Have so many requests answered; return the wall and the workers' processor time."""
        numbers, lock = iter(range(count)), threading.Lock()

        def client() -> None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                started = time.perf_counter()
                connection.request("POST", "/predict", bodies[number % len(bodies)], {"Content-Type": "image/png"})
                response = connection.getresponse()
                response.read()
                with lock:
                    self.seconds.append(time.perf_counter() - started)
                    self.errors += response.status != 200

        cpu, wall = self.cpu(), time.perf_counter()
        threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - wall, self.cpu() - cpu

    def cpu(self) -> float:
        """Processor time of the processes that the server has started."""
        total = 0.0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                    if int(fields[1]) == self.process.pid:
                        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return total

    def stop(self) -> None:
        """End it."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cifar10-resnet20")
    parser.add_argument("--weights", default="random")
    parser.add_argument("--recipe", default="augbn")
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--batches", default="1,4,8")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=200, help="per round and server")
    options = parser.parse_args()
    pixels = pictures(options.side)
    bodies = [encode_png(each) for each in pixels]
    common = [options.model, "--weights", options.weights, "--recipe", options.recipe]
    common += ["--threads", str(options.threads)]
    servers = {
        f"batch {batch}{'' if source else ', --no-source'}": Server(
            [*common, "--batch", batch, "--source" if source else "--no-source"]
        )
        for source in (False, True)
        for batch in options.batches.split(",")
    }
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "pictures.npy", pixels)
        settings = {
            "model": options.model,
            "weights": options.weights,
            "recipe": options.recipe,
            "pictures": str(Path(folder) / "pictures.npy"),
            "threads": options.threads,
        }
        try:
            measure(servers, settings, bodies, options)
        finally:
            for server in servers.values():
                server.stop()


def measure(
    servers: dict[str, Server], settings: dict[str, Any], bodies: list[bytes], options: argparse.Namespace
) -> None:
    found: dict[str, list[tuple[float, float]]] = {}
    with bare_loop(settings) as run_bare:
        for server in servers.values():
            server.wait()
            server.load(bodies, 16)
            server.seconds.clear()
        for turn in range(options.rounds):
            calls: dict[str, Any] = {
                name: (lambda name=name: run_bare(name, options.requests)) for name in ("bare", "bare, with source")
            }
            for name, server in servers.items():
                calls[name] = lambda server=server: server.load(bodies, options.requests)
            for name in list(calls)[:: 1 if turn % 2 == 0 else -1]:
                found.setdefault(name, []).append(calls[name]())
            print(f"turn {turn + 1} of {options.rounds}", file=sys.stderr, flush=True)
    report(found, servers, options)


def report(
    found: dict[str, list[tuple[float, float]]], servers: dict[str, Server], options: argparse.Namespace
) -> None:
    print(
        f"{options.model}, {options.recipe}, {options.side}²; {CLIENTS} clients; threads: {options.threads}, "
        f"cores: {os.cpu_count()}"
    )
    print("| | images/s | × bare loop | CPU ms/image | × bare loop | p50 ms | p99 ms | errors |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, turns in found.items():
        beside = found["bare" if "--no-source" in name or name == "bare" else "bare, with source"]
        speed = np.median([options.requests / wall for wall, _ in turns])
        ratio = np.median([other[0] / own[0] for own, other in zip(turns, beside, strict=True)])
        cost = 1000 * np.median([cpu / options.requests for _, cpu in turns])
        share = np.median([other[1] / own[1] for own, other in zip(turns, beside, strict=True)])
        server = servers.get(name)
        times = "| | | |"
        if server is not None:
            low, high = 1000 * np.percentile(server.seconds, [50, 99])
            times = f"| {low:.0f} | {high:.0f} | {server.errors} of {len(server.seconds)} |"
        print(f"| {name} | {speed:.1f} | {ratio:.2f} | {cost:.1f} | {share:.2f} {times}")


if __name__ == "__main__":
    main()
