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

import httpx
import numpy as np
import pytest
from invoking import invoke
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from scipy.special import softmax
from score_sets import KERAS, NETWORKS
from serving_process import Running, is_running, noise, png, start_server, wait_for

import sita_adapters as sita
from sita_workbench.models.loading import load_model
from sita_workbench.predictor import open_predictor

GOOD = png(noise(1, 12)[0])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    (folder / "net.py").write_text(NETWORKS)
    (folder / "keras_net.py").write_text(KERAS)
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


def test_answers_are_those_of_the_adapted_model_and_a_bad_image_fails_alone(server: Running, folder: Path) -> None:
    pixels = noise(12, 12, seed=1)
    contents = [png(each) for each in pixels]
    contents.insert(5, GOOD[: len(GOOD) // 2])
    found = post_together(server, contents)
    assert found.pop(5).status_code == 400
    loaded = load_model(f"{folder / 'net.py'}:build")
    adapted = loaded.adapt("ops")
    for one, answer in zip(pixels, (response.json() for response in found), strict=True):
        with sita.observe(adapted) as seen:
            p = softmax(loaded.run(adapted, loaded.encode(one[None]))[0].astype(float))
        source = softmax(loaded.run(loaded.model, loaded.encode(one[None]))[0].astype(float))
        found_labels = [answer["label"], answer["source"]["label"], *(each["label"] for each in answer["top"])]
        assert found_labels == [p.argmax(), source.argmax(), *np.argsort(-p)[:5]]
        assert answer["probability"] == pytest.approx(p.max(), abs=1e-5)
        assert answer["source"]["probability"] == pytest.approx(source.max(), abs=1e-5)
        assert answer["entropy"] == pytest.approx(-(p * np.log(p)).sum(), abs=1e-4)
        assert answer["prior"] == pytest.approx(seen.priors[0])
        assert answer["changed"] == (p.argmax() != source.argmax())
        assert answer["rows"] == sita.describe(adapted).rows


def bomb() -> bytes:
    """A PNG of two kilobytes that claims to be 50,000 pixels wide and high."""
    start = b"IHDR" + struct.pack(">II", 50_000, 50_000)
    data = bytearray(GOOD)
    data[12:24] = start
    data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    return bytes(data)


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
    "text": (b"<p>hello</p>", "text/html", 415, "Expected an image"),
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


def test_forms_health_and_info(server: Running) -> None:
    with server.client() as client:
        told = client.post("/predict", files={"image": ("a.png", GOOD, "image/png")}).json()
        assert {**told, "milliseconds": 0} == {**post(server).json(), "milliseconds": 0}
        assert client.get("/health").json() == {"status": "ok"}
        info = client.get("/info").json()
    assert (info["model"], info["rows"], info["size"]) == ("net.py:build", 22, [12, 12])


def test_the_metrics_count_right(server: Running) -> None:
    before = page_of(server)
    told = [response.json() for response in post_together(server, [png(each) for each in noise(8, 12, seed=2)])]
    for _ in range(3):
        post(server, b"hello")
    after = page_of(server)
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    expected = {"requests_total ok": 8, "requests_total not_an_image": 3, "request_seconds_count": 11}
    expected |= {"batch_images_sum": 8, "prior_count": 8, "prior_sum": sum(one["prior"] for one in told)}
    expected |= {"answers_compared_total": 8, "answers_changed_total": sum(one["changed"] for one in told)}
    assert {name: grown[f"sita_{name}"] for name in expected} == pytest.approx(expected)
    assert 2 <= grown["sita_batch_images_count"] <= 8  # up to four at once
    assert after["sita_batch_images_bucket 4.0"] == after["sita_batch_images_count"]


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
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"http://127.0.0.1:{server.port}/openapi.json"]
    command += ["--checks", "not_a_server_error,status_code_conformance,content_type_conformance"]
    command += ["--max-examples", "40", "--seed", "1", "--no-color"]
    subprocess.run(command, check=True, timeout=300, env={**os.environ, "NO_PROXY": "127.0.0.1"})
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
    file.write_text(NETWORKS)
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
        file.write_text(NETWORKS)
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
    with pytest.raises(RuntimeError, match=rf"The server ended \([12]\)[\s\S]*{reason}"):
        start_server("net.py:build", folder=tmp_path).__enter__()


def test_what_cannot_be_served_is_an_error_before_anything_listens(folder: Path, tmp_path: Path) -> None:
    net, shared = f"{folder / 'net.py'}:build", tmp_path / "shared.json"
    shared.write_text(sita.Recipe(priors=0.9, share="batch").to_json())
    with pytest.raises(sita.SitaError, match="share='batch'"):
        invoke("serve", net, "--recipe", shared)
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(sita.SitaError, match="cannot listen on 127"):
        invoke("serve", net, "--port", taken.getsockname()[1])


@pytest.mark.slow
def test_label_maps_are_images(folder: Path) -> None:
    pixels = noise(3, size=24)
    with start_server("net.py:segment", "--recipe", "ops", folder=folder) as server:
        found = post_together(server, [png(each) for each in (*pixels, noise(1, size=16)[0])])
    predictor = open_predictor(load_model(f"{folder / 'net.py'}:segment"), "ops")
    for one, response in zip(pixels, found, strict=False):
        answers = predictor.answer(one[None])
        labels = np.asarray(Image.open(io.BytesIO(response.content)))
        assert labels.shape == (24, 24)
        assert (labels != answers.adapted.labels[0]).mean() < 0.01
        assert float(response.headers["X-Sita-Prior"]) == pytest.approx(answers.adapted.priors.mean(), abs=0.01)
        assert 0 <= float(response.headers["X-Sita-Changed"]) <= 1
    assert np.asarray(Image.open(io.BytesIO(found[3].content))).shape == (16, 16)


@pytest.mark.slow
def test_keras_models_are_served(folder: Path) -> None:
    pixels = noise(8, 12, seed=5)
    with start_server("keras_net.py:build", "--recipe", "ops", folder=folder) as server:
        found = [response.json() for response in post_together(server, [png(each) for each in pixels])]
        assert server.stop() == (0, [])
    predictor = open_predictor(load_model(f"{folder / 'keras_net.py'}:build"), "ops")
    for one, told in zip(pixels, found, strict=True):
        answers = predictor.answer(one[None])
        assert (told["label"], told["source"]["label"]) == (answers.adapted.labels[0], answers.source.labels[0])
        assert told["probability"] == pytest.approx(answers.adapted.confidences[0], abs=1e-5)
        assert (told["prior"], told["rows"]) == (pytest.approx(answers.adapted.priors[0], abs=1e-5), answers.rows[0])
