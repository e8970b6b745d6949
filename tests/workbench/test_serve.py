"""`sita serve`: a real server process on loopback, under bounded load."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image
from serving_process import Running, is_running, noise, png, start_server, values_of

import sita_adapters as sita
from sita_workbench.exported.export import export_checked
from sita_workbench.models.loading import load_model
from sita_workbench.predictor import open_predictor

CLASSIFIER = """
from nets import tiny

def build():
    return tiny(), {"inputs": "imagenet", "size": 20, "crop": 1.0}
"""

STREETS = """
import torch
from torch import nn

def build():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    return model, {"inputs": "unit", "task": "segmentation"}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    (folder / "net.py").write_text(CLASSIFIER)
    (folder / "streets.py").write_text(STREETS)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with start_server("net.py:build", "--recipe", "ops", "--max-mb", "0.5", "--max-pixels", "1", folder=folder) as one:
        yield one


def post(server: Running, content: bytes, kind: str = "image/png") -> httpx.Response:
    with server.client() as client:
        return client.post("/predict", content=content, headers={"Content-Type": kind})


def post_together(server: Running, contents: list[bytes]) -> list[httpx.Response]:
    """Send all at the same moment."""
    ready = threading.Barrier(len(contents))

    def send(content: bytes) -> httpx.Response:
        with server.client() as client:
            ready.wait()
            return client.post("/predict", content=content, headers={"Content-Type": "image/png"})

    with ThreadPoolExecutor(len(contents)) as pool:
        return list(pool.map(send, contents))


def test_one_bad_image_among_eight_fails_alone(server: Running) -> None:
    pictures = [png(each) for each in noise(8)]
    pictures[5] = pictures[5][: len(pictures[5]) // 2]
    found = post_together(server, pictures)
    assert [response.status_code for response in found] == [200, 200, 200, 200, 200, 400, 200, 200]
    reason = found[5].json()["error"]
    assert "Expected an image; it cannot be read" in reason
    assert "\n" not in reason


def test_answers_are_those_of_the_adapted_model_whatever_waits_beside(server: Running, folder: Path) -> None:
    pixels = noise(12, seed=1)
    told = [response.json() for response in post_together(server, [png(each) for each in pixels])]
    loaded = load_model(f"{folder / 'net.py'}:build")
    adapted = loaded.adapt("ops")
    for one, answer in zip(pixels, told, strict=True):
        with sita.observe(adapted) as seen:
            p = sita_softmax(loaded.run(adapted, loaded.encode(one[None]))[0])
        source = sita_softmax(loaded.run(loaded.model, loaded.encode(one[None]))[0])
        assert answer["label"] == p.argmax()
        assert answer["probability"] == pytest.approx(p.max(), abs=1e-5)
        assert answer["entropy"] == pytest.approx(-(p * np.log(p)).sum(), abs=1e-4)
        assert answer["prior"] == pytest.approx(seen.priors[0])
        assert answer["source"]["label"] == source.argmax()
        assert answer["source"]["probability"] == pytest.approx(source.max(), abs=1e-5)
        assert answer["changed"] == (p.argmax() != source.argmax())
        assert [each["label"] for each in answer["top"]] == np.argsort(-p)[:5].tolist()
        assert answer["rows"] == sita.describe(adapted).rows
        assert answer["milliseconds"] > 0


def sita_softmax(scores: np.ndarray) -> np.ndarray:
    raised = np.exp(scores.astype(np.float64) - scores.max())
    return np.asarray(raised / raised.sum())


def bomb() -> bytes:
    """A PNG of a hundred bytes that says it is 50,000 pixels wide and high."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def many_pixels() -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (1100, 1000)).save(buffer, "PNG")
    return buffer.getvalue()


GOOD = png(noise(1)[0])

REFUSED: dict[str, tuple[bytes, str, int, str]] = {
    "too large": (b"\0" * 600_000, "image/png", 413, "at most 0.5 MB"),
    "far too large": (b"\0" * 9_000_000, "image/png", 413, "at most 0.5 MB"),
    "a bomb": (bomb(), "image/png", 413, "at most 1 million pixels"),
    "too many pixels": (many_pixels(), "image/png", 413, "1100 × 1000"),
    "not an image": (b"hello", "image/png", 415, "Expected an image"),
    "a script": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "image/png", 415, "Expected an image"),
    "truncated": (GOOD[:-40], "image/png", 400, "cannot be read"),
    "empty": (b"", "image/png", 400, "received nothing"),
    "wrong type": (GOOD, "text/html", 415, "received text/html"),
    "json": (b"{}", "application/json", 415, "received application/json"),
    "a form that is none": (GOOD, "multipart/form-data", 400, "form"),
    "a form without a file": (
        b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n',
        "multipart/form-data; boundary=x",
        400,
        "Expected a file in the form",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_answered_is_a_4xx_with_a_line_of_reason(server: Running, case: str) -> None:
    content, kind, status, reason = REFUSED[case]
    try:
        response = post(server, content, kind)
    except httpx.TransportError:  # the server does not read on for ever; a client that still sends may not hear why
        assert case == "far too large"
        return
    assert response.status_code == status
    assert reason in response.json()["error"]
    assert "\n" not in response.json()["error"]
    assert post(server, GOOD).status_code == 200


def test_an_image_may_come_in_a_form(server: Running) -> None:
    alone = post(server, GOOD).json()
    for field in ("image", "file", "anything"):
        with server.client() as client:
            told = client.post("/predict", files={field: ("a.png", GOOD, "image/png")}).json()
        assert {**told, "milliseconds": 0} == {**alone, "milliseconds": 0}


def test_health_and_info_say_what_is_served(server: Running) -> None:
    with server.client() as client:
        assert client.get("/health").json() == {"status": "ok"}
        told = client.get("/info").json()
        assert client.get("/docs").status_code == 404
        assert set(client.get("/openapi.json").json()["paths"]) == {"/predict", "/health", "/info", "/metrics"}
        assert client.get("/predict").status_code == 405
    assert told["model"] == "net.py:build"
    assert told["recipe"].startswith("ops")
    assert told["rows"] == 22
    assert told["size"] == [20, 20]
    assert "1 of 1 adapted" in told["description"]


def page_of(server: Running) -> dict[str, float]:
    with server.client() as client:
        return values_of(client.get("/metrics").text)


def test_the_metrics_count_right(server: Running) -> None:
    before = page_of(server)
    told = [response.json() for response in post_together(server, [png(each) for each in noise(8, seed=2)])]
    for _ in range(3):
        post(server, b"hello")
    after = page_of(server)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grown('sita_requests_total{outcome="ok"}') == 8
    assert grown('sita_requests_total{outcome="not_an_image"}') == 3
    assert grown("sita_request_seconds_count") == 11
    assert grown("sita_batch_images_sum") == 8
    assert 2 <= grown("sita_batch_images_count") <= 8  # four at once, at most
    assert after['sita_batch_images_bucket{le="4.0"}'] == after["sita_batch_images_count"]
    assert grown("sita_prior_count") == 8
    assert grown("sita_prior_sum") == pytest.approx(sum(one["prior"] for one in told))
    assert grown("sita_rows_total") == 8 * 22
    assert grown("sita_answers_compared_total") == 8
    assert grown("sita_answers_changed_total") == sum(one["changed"] for one in told)
    share = after["sita_answers_changed_total"] / after["sita_answers_compared_total"]
    assert after["sita_changed_share"] == pytest.approx(share)


def test_sigterm_ends_every_process_and_frees_the_port(folder: Path) -> None:
    with start_server("net.py:build", "--recipe", "augbn", folder=folder) as server:
        assert post(server, GOOD).json()["rows"] == 4  # three, and the source model's
        code, left = server.stop()
        assert (code, left) == (0, [])
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", server.port))
        assert not list(Path(tempfile.gettempdir()).glob(f"sita-metrics-{server.process.pid}-*"))


@pytest.mark.slow
def test_requests_that_run_are_answered_before_the_end(folder: Path) -> None:
    with start_server("net.py:build", folder=folder) as server:
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(post, server, GOOD) for _ in range(8)]
            time.sleep(0.05)
            assert server.stop() == (0, [])
            codes = [one.result().status_code for one in waiting if one.exception() is None]
        assert set(codes) <= {200}


@pytest.mark.slow
def test_a_worker_that_is_killed_comes_back_and_nothing_is_forgotten(folder: Path) -> None:
    with start_server("net.py:build", "--workers", "2", "--baseline", baseline(folder), folder=folder) as server:
        assert len(server.workers()) == 2
        assert all(response.status_code == 200 for response in post_together(server, [GOOD] * 8))
        killed = server.workers()[0]
        os.kill(killed, signal.SIGKILL)
        answered = 0
        for _ in range(40):
            try:
                answered += post(server, GOOD).status_code == 200
            except httpx.TransportError:  # what the dead worker had accepted
                continue
        assert answered >= 36
        end = time.monotonic() + 120
        while time.monotonic() < end and len(server.workers()) < 2:
            time.sleep(0.2)
        assert len(server.workers()) == 2
        assert killed not in server.workers()
        page = page_of(server)
        assert page['sita_requests_total{outcome="ok"}'] == 8 + answered
        assert page["sita_changed_share_baseline"] == 0.125
        assert server.stop() == (0, [])


@pytest.mark.slow
def test_a_restart_that_fails_leaves_the_other_workers_alone(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "gone.py"
    file.write_text(CLASSIFIER)
    with start_server("gone.py:build", "--workers", "2", folder=tmp_path) as server:
        file.unlink()
        os.kill(server.workers()[0], signal.SIGKILL)
        end = time.monotonic() + 60
        log = tmp_path / f"server-{server.port}.log"
        while time.monotonic() < end and "could not load its model" not in log.read_text():
            time.sleep(0.2)
        assert "gone.py" in log.read_text()
        assert [post(server, GOOD).status_code for _ in range(5)] == [200] * 5
        file.write_text(CLASSIFIER)
        while time.monotonic() < end and len(server.workers()) < 2:
            time.sleep(0.2)
        assert server.stop() == (0, [])


@pytest.mark.slow
def test_workers_end_with_a_server_that_is_killed(folder: Path) -> None:
    with start_server("net.py:build", folder=folder) as server:
        workers = server.workers()
        server.process.kill()
        end = time.monotonic() + 30
        while time.monotonic() < end and any(map(is_running, workers)):
            time.sleep(0.2)
        assert not any(map(is_running, workers))


def test_unfinished_headers_are_not_waited_for(server: Running) -> None:
    """Three hundred connections that never finish their headers are closed; requests are answered meanwhile."""
    opened = []
    for _ in range(300):
        one = socket.create_connection(("127.0.0.1", server.port))
        one.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        opened.append(one)
    assert post(server, GOOD).status_code == 200
    end = time.monotonic() + 30
    for one in opened:
        one.settimeout(max(0.1, end - time.monotonic()))
        with contextlib.suppress(ConnectionResetError):
            assert one.recv(100) == b""
        one.close()
    with server.client() as client:  # a connection that is kept alive has a deadline for each of its requests
        assert [client.post("/predict", content=GOOD).status_code for _ in range(3)] == [200] * 3


@pytest.mark.slow
def test_a_generated_client_finds_no_server_error(server: Running) -> None:
    """schemathesis sends what the published description allows, and what it does not."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"),
            *("--checks", "not_a_server_error,status_code_conformance,content_type_conformance"),
            *("--max-examples", "40", "--seed", "1", "--no-color"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-500:]
    assert post(server, GOOD).status_code == 200


@pytest.mark.slow
def test_the_only_worker_that_is_killed_leaves_nobody_waiting(folder: Path) -> None:
    """A request that it was answering fails at once; one that comes meanwhile waits for the next worker."""
    with start_server("net.py:build", folder=folder) as server:
        os.kill(server.workers()[0], signal.SIGKILL)
        assert post(server, GOOD).status_code == 200


def baseline(folder: Path) -> str:
    path = folder / "results.json"
    recipe = str(sita.RECIPES["auto"])
    path.write_text(json.dumps({"methods": [{"recipe": recipe, "changed": {"clean": 0.125}}]}))
    return str(path)


@pytest.mark.slow
def test_label_maps_are_pictures(folder: Path) -> None:
    pixels = noise(3, size=24)
    with start_server("streets.py:build", "--recipe", "ops", folder=folder) as server:
        found = post_together(server, [png(each) for each in (*pixels, noise(1, size=16)[0])])
    predictor = open_predictor(load_model(f"{folder / 'streets.py'}:build"), "ops")
    for one, response in zip(pixels, found, strict=False):
        answers = predictor.answer(one[None])
        picture = np.asarray(Image.open(io.BytesIO(response.content)))
        assert picture.shape == (24, 24)
        assert (picture != answers.adapted.labels[0]).mean() < 0.01
        assert answers.adapted.priors is not None
        assert float(response.headers["X-Sita-Prior"]) == pytest.approx(answers.adapted.priors.mean(), abs=0.01)
        assert 0 <= float(response.headers["X-Sita-Changed"]) <= 1
    assert np.asarray(Image.open(io.BytesIO(found[3].content))).shape == (16, 16)


KERAS = """
import keras

def build():
    keras.utils.set_random_seed(3)
    stem = [keras.layers.Conv2D(8, 3), keras.layers.BatchNormalization(), keras.layers.ReLU()]
    layers = [keras.Input((24, 24, 3)), *stem]
    model = keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(5)])
    return model, {"inputs": "unit", "size": 24, "crop": 1.0}
"""


@pytest.mark.slow
def test_a_keras_model_is_served(folder: Path) -> None:
    (folder / "keras_net.py").write_text(KERAS)
    pixels = noise(4, size=24)
    with start_server("keras_net.py:build", folder=folder) as server:
        found = [response.json() for response in post_together(server, [png(each) for each in pixels])]
        assert server.stop() == (0, [])
    predictor = open_predictor(load_model(f"{folder / 'keras_net.py'}:build"))
    for one, said in zip(pixels, found, strict=True):
        answers = predictor.answer(one[None])
        assert said["label"] == answers.adapted.labels[0]
        assert said["probability"] == pytest.approx(answers.adapted.probabilities[0].max(), abs=1e-5)
        assert said["source"]["label"] == answers.source.labels[0]
        assert said["prior"] == pytest.approx(answers.adapted.priors[0], abs=1e-5)


@pytest.mark.slow
def test_an_exported_file_is_served_as_the_model(folder: Path) -> None:
    loaded = load_model(f"{folder / 'net.py'}:build")
    example = loaded.arrange(loaded.encode(noise(2))).copy()
    fields = {"inputs": loaded.inputs, "crop": loaded.crop}
    export_checked(loaded.adapt("ops"), folder / "net.onnx", example, metadata_fields=fields, diagnostics=True)
    pixels, predictor = noise(8, seed=5), open_predictor(loaded, "ops")
    with start_server("net.onnx", "--providers", "CPU", folder=folder) as server:
        found = [response.json() for response in post_together(server, [png(each) for each in pixels])]
        with server.client() as client:
            assert client.get("/info").json()["diagnostics"] == ["prior", "entropy", "source"]
    for one, told in zip(pixels, found, strict=True):
        answers = predictor.answer(one[None])
        assert answers.adapted.priors is not None
        assert answers.source is not None
        assert told["label"] == answers.adapted.labels[0]
        assert told["probability"] == pytest.approx(answers.adapted.probabilities[0].max(), abs=1e-4)
        assert told["prior"] == pytest.approx(float(answers.adapted.priors[0]), abs=1e-5)
        assert told["source"]["label"] == answers.source.labels[0]
        assert told["rows"] == 22


def test_what_cannot_be_served_is_an_error_before_anything_listens(folder: Path, tmp_path: Path) -> None:
    from serving_process import free_port
    from typer.testing import CliRunner

    from sita_workbench import cli

    def serve(*arguments: str) -> Any:
        return CliRunner().invoke(cli.make_app(), ["serve", *arguments]).exception

    net = f"{folder / 'net.py'}:build"
    assert "received 'opps'" in str(serve(net, "--recipe", "opps"))
    shared = tmp_path / "shared.json"
    shared.write_text(sita.Recipe(priors=0.9, share="batch").to_json())
    assert "share='batch'" in str(serve(net, "--recipe", str(shared)))
    (tmp_path / "results.json").write_text("{}")
    assert "--baseline: expected results.json" in str(serve(net, "--baseline", str(tmp_path / "results.json")))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port := free_port()))
        taken.listen()
        assert f"cannot listen on 127.0.0.1, port {port}" in str(serve(net, "--port", str(port)))


@pytest.mark.real
@pytest.mark.slow
def test_a_trained_network_answers_a_thousand_requests_without_an_error(data: Path, tmp_path: Path) -> None:
    with np.load(data / "cifar10" / "test_1000.npz") as stored:
        pixels, labels = stored["images"], stored["labels"]
    weights = str(data / "weights" / "cifar10_resnet20.safetensors")
    bodies = [png(each) for each in pixels]
    with start_server("cifar10-resnet20", "--weights", weights, "--recipe", "augbn", folder=tmp_path) as server:
        numbers, told, lock = iter(range(len(bodies))), {}, threading.Lock()

        def client() -> None:
            with server.client() as connection:
                while True:
                    with lock:
                        number = next(numbers, None)
                    if number is None:
                        return
                    response = connection.post("/predict", content=bodies[number])
                    with lock:
                        told[number] = response.json() if response.status_code == 200 else None

        threads = [threading.Thread(target=client) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        page = page_of(server)
    assert None not in told.values()
    assert page['sita_requests_total{outcome="ok"}'] == len(bodies)
    loaded = load_model("cifar10-resnet20", weights)
    adapted, encoded = loaded.adapt("augbn"), loaded.encode(pixels[:100])
    expected = np.concatenate([loaded.run(adapted, each[None]) for each in encoded]).argmax(-1)
    assert [told[number]["label"] for number in range(100)] == expected.tolist()
    assert np.mean([told[number]["label"] == labels[number] for number in told]) > 0.85
    assert page["sita_changed_share"] == np.mean([told[number]["changed"] for number in told])
