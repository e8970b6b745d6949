"""`sita serve`: a real server process on loopback, under bounded load."""

from __future__ import annotations

import contextlib
import io
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
from prometheus_client.parser import text_string_to_metric_families
from serving_process import Running, free_port, is_running, noise, png, start_server, wait_for
from typer.testing import CliRunner

import sita_adapters as sita
from sita_workbench import cli
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

KERAS = """
import keras

def build():
    keras.utils.set_random_seed(3)
    stem = [keras.layers.Conv2D(8, 3), keras.layers.BatchNormalization(), keras.layers.ReLU()]
    layers = [keras.Input((20, 20, 3)), *stem]
    model = keras.Sequential([*layers, keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(5)])
    return model, {"inputs": "unit", "size": 20, "crop": 1.0}
"""

GOOD = png(noise(1)[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    for name, text in {"net": CLASSIFIER, "streets": STREETS, "keras_net": KERAS}.items():
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with start_server("net.py:build", "--recipe", "ops", "--max-mb", "0.5", "--max-pixels", "1", folder=folder) as one:
        yield one


def post(server: Running, content: bytes = GOOD, kind: str = "image/png") -> httpx.Response:
    with server.client() as client:
        return client.post("/predict", content=content, headers={"Content-Type": kind})


def post_together(server: Running, contents: list[bytes]) -> list[httpx.Response]:
    """Send all at the same moment."""
    ready = threading.Barrier(len(contents))

    def send(content: bytes) -> httpx.Response:
        ready.wait()
        return post(server, content)

    with ThreadPoolExecutor(len(contents)) as pool:
        return list(pool.map(send, contents))


def page_of(server: Running) -> dict[str, float]:
    with server.client() as client:
        families = text_string_to_metric_families(client.get("/metrics").text)
    return {
        " ".join([sample.name, *sample.labels.values()]): sample.value for each in families for sample in each.samples
    }


def test_a_bad_image_among_eight_fails_alone(server: Running) -> None:
    contents = [png(each) for each in noise(8)]
    contents[5] = contents[5][: len(contents[5]) // 2]
    found = post_together(server, contents)
    assert [response.status_code for response in found] == [200, 200, 200, 200, 200, 400, 200, 200]


def softmax(scores: np.ndarray) -> np.ndarray:
    raised = np.exp(scores.astype(np.float64) - scores.max())
    return np.asarray(raised / raised.sum())


def test_answers_are_those_of_the_adapted_model_whatever_waits_beside(server: Running, folder: Path) -> None:
    pixels = noise(12, seed=1)
    told = [response.json() for response in post_together(server, [png(each) for each in pixels])]
    loaded = load_model(f"{folder / 'net.py'}:build")
    adapted = loaded.adapt("ops")
    for one, answer in zip(pixels, told, strict=True):
        with sita.observe(adapted) as seen:
            p = softmax(loaded.run(adapted, loaded.encode(one[None]))[0])
        source = softmax(loaded.run(loaded.model, loaded.encode(one[None]))[0])
        assert answer["label"] == p.argmax()
        assert answer["probability"] == pytest.approx(p.max(), abs=1e-5)
        assert answer["entropy"] == pytest.approx(-(p * np.log(p)).sum(), abs=1e-4)
        assert answer["prior"] == pytest.approx(seen.priors[0])
        assert answer["source"]["label"] == source.argmax()
        assert answer["source"]["probability"] == pytest.approx(source.max(), abs=1e-5)
        assert answer["changed"] == (p.argmax() != source.argmax())
        assert [each["label"] for each in answer["top"]] == np.argsort(-p)[:5].tolist()
        assert answer["rows"] == sita.describe(adapted).rows


def bomb() -> bytes:
    """A PNG of a hundred bytes that claims to be 50,000 pixels wide and high."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def form(*parts: str) -> tuple[bytes, str]:
    entries = [f"--x\r\nContent-Disposition: form-data; {part}\r\n\r\n1\r\n" for part in parts]
    return "".join([*entries, "--x--\r\n"]).encode(), "multipart/form-data; boundary=x"


REFUSED: dict[str, tuple[bytes, str, int, str]] = {
    "too large": (b"\0" * 600_000, "image/png", 413, "at most 0.5 MB"),
    "far too large": (b"\0" * 9_000_000, "image/png", 413, "at most 0.5 MB"),
    "a bomb": (bomb(), "image/png", 413, "at most 1 million pixels"),
    "too many pixels": (png(np.zeros((1000, 1100), np.uint8)), "image/png", 413, "1100 × 1000"),
    "a script": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "image/png", 415, "Expected an image"),
    "truncated": (GOOD[:-40], "image/png", 400, "cannot be read"),
    "empty": (b"", "image/png", 400, "received nothing"),
    "wrong type": (GOOD, "text/html", 415, "received text/html"),
    "a form that is none": (GOOD, "multipart/form-data", 400, "form"),
    "a form without a file": (*form('name="a"'), 400, "Expected a file in the form"),
    "two files": (*form('name="a"; filename="a"', 'name="b"; filename="b"'), 400, "Too many files"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_answered_is_a_4xx_with_a_line_of_reason(server: Running, case: str) -> None:
    content, kind, status, reason = REFUSED[case]
    try:
        response = post(server, content, kind)
    except httpx.TransportError:  # the server stops reading; a client that still sends may not get the reason
        assert case == "far too large"
        return
    assert response.status_code == status
    assert reason in response.json()["error"]
    assert "\n" not in response.json()["error"]
    assert post(server).status_code == 200


def test_an_image_may_come_in_a_form(server: Running) -> None:
    with server.client() as client:
        told = client.post("/predict", files={"image": ("a.png", GOOD, "image/png")}).json()
    assert {**told, "milliseconds": 0} == {**post(server).json(), "milliseconds": 0}


def test_health_and_info_say_what_is_served(server: Running) -> None:
    with server.client() as client:
        assert client.get("/health").json() == {"status": "ok"}
        told = client.get("/info").json()
        assert set(client.get("/openapi.json").json()["paths"]) == {"/predict", "/health", "/info", "/metrics"}
    assert told["model"] == "net.py:build"
    assert told["recipe"].startswith("ops")
    assert told["rows"] == 22
    assert told["size"] == [20, 20]
    assert "1 of 1 adapted" in told["description"]


def test_the_metrics_count_right(server: Running) -> None:
    before = page_of(server)
    told = [response.json() for response in post_together(server, [png(each) for each in noise(8, seed=2)])]
    for _ in range(3):
        post(server, b"hello")
    after = page_of(server)
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    assert grown["sita_requests_total ok"] == 8
    assert grown["sita_requests_total not_an_image"] == 3
    assert grown["sita_request_seconds_count"] == 11
    assert grown["sita_batch_images_sum"] == 8
    assert 2 <= grown["sita_batch_images_count"] <= 8  # up to four at once
    assert after["sita_batch_images_bucket 4.0"] == after["sita_batch_images_count"]
    assert grown["sita_prior_count"] == 8
    assert grown["sita_prior_sum"] == pytest.approx(sum(one["prior"] for one in told))
    assert grown["sita_answers_compared_total"] == 8
    assert grown["sita_answers_changed_total"] == sum(one["changed"] for one in told)
    share = after["sita_answers_changed_total"] / after["sita_answers_compared_total"]
    assert after["sita_changed_share"] == pytest.approx(share)


def test_unfinished_headers_have_a_deadline(server: Running) -> None:
    """Three hundred connections that never finish their headers are closed; requests are answered meanwhile."""
    opened = []
    for _ in range(300):
        one = socket.create_connection(("127.0.0.1", server.port))
        one.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nX-Slow: ")
        opened.append(one)
    assert post(server).status_code == 200
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
    assert post(server).status_code == 200


def test_sigterm_answers_what_runs_ends_every_process_and_frees_the_port(folder: Path) -> None:
    with start_server("net.py:build", "--recipe", "augbn", folder=folder) as server:
        assert post(server).json()["rows"] == 4  # three, and the source model's
        with ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(post, server) for _ in range(8)]
            time.sleep(0.05)
            assert server.stop() == (0, [])
            codes = {one.result().status_code for one in waiting if one.exception() is None}
        assert codes <= {200}
        socket.create_server(("127.0.0.1", server.port)).close()
        assert not list(Path(tempfile.gettempdir()).glob(f"sita-metrics-{server.process.pid}-*"))


@pytest.mark.slow
def test_a_killed_worker_comes_back_and_a_failed_restart_leaves_the_others_alone(tmp_path: Path) -> None:
    file = tmp_path / "gone.py"
    file.write_text(CLASSIFIER)
    with start_server("gone.py:build", "--workers", "2", folder=tmp_path) as server:
        first = server.workers()
        assert len(first) == 2
        assert all(response.status_code == 200 for response in post_together(server, [GOOD] * 8))
        file.unlink()
        os.kill(first[0], signal.SIGKILL)
        answered = 0
        for _ in range(40):
            with contextlib.suppress(httpx.TransportError):  # what the dead worker had accepted
                answered += post(server).status_code == 200
        assert answered >= 36
        assert wait_for(lambda: "gone.py" in server.log.read_text().partition("died")[2])
        assert [post(server).status_code for _ in range(5)] == [200] * 5
        file.write_text(CLASSIFIER)
        os.kill(first[1], signal.SIGKILL)
        assert post(server).status_code == 200  # it waits for the next worker
        assert page_of(server)["sita_requests_total ok"] == 8 + answered + 5 + 1
        assert wait_for(lambda: len(server.workers()) == 2)
        assert not set(first) & set(server.workers())
        workers = server.workers()
        server.process.kill()  # workers end with a server that is killed
        assert wait_for(lambda: not any(map(is_running, workers)), 30)


@pytest.mark.parametrize(
    ("build", "reason"),
    [("raise ValueError('no such layer')", "ValueError: no such layer"), ("os._exit(7)", "exit code 7")],
)
def test_a_worker_that_dies_while_it_loads_ends_the_server_with_the_reason(
    tmp_path: Path, build: str, reason: str
) -> None:
    (tmp_path / "net.py").write_text(f"import os\n\ndef build():\n    {build}\n")
    with (
        pytest.raises(RuntimeError, match=rf"The server ended \([12]\)[\s\S]*{reason}"),
        start_server("net.py:build", folder=tmp_path),
    ):
        pass


def test_what_cannot_be_served_is_an_error_before_anything_listens(folder: Path, tmp_path: Path) -> None:
    def serve(*arguments: str) -> str:
        return str(CliRunner().invoke(cli.make_app(), ["serve", f"{folder / 'net.py'}:build", *arguments]).exception)

    assert "received 'opps'" in serve("--recipe", "opps")
    shared = tmp_path / "shared.json"
    shared.write_text(sita.Recipe(priors=0.9, share="batch").to_json())
    assert "share='batch'" in serve("--recipe", str(shared))
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1, port {port}" in serve("--port", str(port))


@pytest.mark.slow
def test_label_maps_are_images(folder: Path) -> None:
    pixels = noise(3, size=24)
    with start_server("streets.py:build", "--recipe", "ops", folder=folder) as server:
        found = post_together(server, [png(each) for each in (*pixels, noise(1, size=16)[0])])
    predictor = open_predictor(load_model(f"{folder / 'streets.py'}:build"), "ops")
    for one, response in zip(pixels, found, strict=False):
        answers = predictor.answer(one[None])
        labels = np.asarray(Image.open(io.BytesIO(response.content)))
        assert labels.shape == (24, 24)
        assert (labels != answers.adapted.labels[0]).mean() < 0.01
        assert float(response.headers["X-Sita-Prior"]) == pytest.approx(answers.adapted.priors.mean(), abs=0.01)
        assert 0 <= float(response.headers["X-Sita-Changed"]) <= 1
    assert np.asarray(Image.open(io.BytesIO(found[3].content))).shape == (16, 16)


def export_onnx(folder: Path) -> str:
    loaded = load_model(f"{folder / 'net.py'}:build")
    example = loaded.arrange(loaded.encode(noise(2))).copy()
    fields = {"inputs": loaded.inputs, "crop": loaded.crop}
    export_checked(loaded.adapt("ops"), folder / "net.onnx", example, metadata_fields=fields, diagnostics=True)
    return "net.onnx"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["keras", "onnx"])
def test_other_models_are_served(folder: Path, kind: str) -> None:
    """A file gets the answers of the model that was exported."""
    served = "keras_net.py:build" if kind == "keras" else export_onnx(folder)
    pixels = noise(8, seed=5)
    with start_server(served, *([] if kind == "keras" else ["--providers", "CPU"]), folder=folder) as server:
        found = [response.json() for response in post_together(server, [png(each) for each in pixels])]
        assert server.stop() == (0, [])
    reference: Any = ("keras_net.py:build", None) if kind == "keras" else ("net.py:build", "ops")
    predictor = open_predictor(load_model(str(folder / reference[0])), reference[1])
    for one, told in zip(pixels, found, strict=True):
        answers = predictor.answer(one[None])
        assert told["label"] == answers.adapted.labels[0]
        assert told["probability"] == pytest.approx(
            answers.adapted.probabilities[0].max(), abs=1e-5 if kind == "keras" else 1e-4
        )
        assert told["prior"] == pytest.approx(float(answers.adapted.priors[0]), abs=1e-5)
        assert told["source"]["label"] == answers.source.labels[0]
        assert told["rows"] == answers.rows[0]


@pytest.mark.real
@pytest.mark.slow
def test_a_trained_network_answers_400_requests_of_8_clients_without_an_error(data: Path, tmp_path: Path) -> None:
    with np.load(data / "cifar10" / "test_1000.npz") as stored:
        pixels, labels = stored["images"][:400], stored["labels"][:400]
    weights = str(data / "weights" / "cifar10_resnet20.safetensors")
    with start_server("cifar10-resnet20", "--weights", weights, "--recipe", "augbn", folder=tmp_path) as server:
        with ThreadPoolExecutor(8) as pool, server.client() as client:
            found = list(pool.map(lambda each: client.post("/predict", content=png(each)), pixels))
        page = page_of(server)
    assert [response.status_code for response in found] == [200] * 400
    told = [response.json() for response in found]
    loaded = load_model("cifar10-resnet20", weights)
    adapted, encoded = loaded.adapt("augbn"), loaded.encode(pixels[:100])
    expected = np.concatenate([loaded.run(adapted, each[None]) for each in encoded]).argmax(-1)
    assert [one["label"] for one in told[:100]] == expected.tolist()
    assert np.mean([one["label"] == label for one, label in zip(told, labels, strict=True)]) > 0.85
    assert page["sita_changed_share"] == np.mean([one["changed"] for one in told])
