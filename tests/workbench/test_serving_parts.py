"""The server's parts without a server: batches, limits, the baseline."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image, ImageFile
from serving_process import noise, png

from sita_adapters.errors import InputError
from sita_adapters.inputs import ENCODINGS
from sita_workbench.methods import Prediction
from sita_workbench.models.loaded import LoadedModel
from sita_workbench.models.loading import load_model
from sita_workbench.predictor import Answers, open_predictor
from sita_workbench.serving.app import Service, make_app
from sita_workbench.serving.baseline import read_baseline
from sita_workbench.serving.batching import Batcher, One
from sita_workbench.serving.decoding import UploadError, decode
from sita_workbench.serving.settings import ServeSettings

LOADED = LoadedModel("test", None, ENCODINGS["unit"], 20, 1.0)


class Counting:
    """Says how bright an image is, fails on black ones, and can be made to wait."""

    loaded, recipe = LOADED, "none"

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.go = threading.Event()

    def answer(self, pixels: np.ndarray) -> Answers:
        self.go.wait(10)
        self.sizes.append(len(pixels))
        bright = pixels.reshape(len(pixels), -1).mean(axis=1) / 255
        if (bright == 0).any():
            raise ValueError("black")
        p = np.stack([bright, 1 - bright], axis=1)
        return Answers(Prediction(p, bright), None, np.arange(len(pixels)))


def grey(level: int, size: int = 4) -> np.ndarray:
    return np.full((size, size, 3), level, np.uint8)


def ask(images: list[np.ndarray], batch: int) -> tuple[list[Future[One]], Counting, list[int]]:
    """Submit images that all wait when the first batch is taken."""
    predictor, reported = Counting(), []
    batcher = Batcher(predictor, batch, reported.append)
    found = [batcher.submit(image) for image in images]
    batcher.start()
    predictor.go.set()
    batcher.stop()
    return found, predictor, reported


def test_what_waits_runs_together_and_everybody_gets_their_own_answer() -> None:
    levels = [10, 20, 30, 40, 50, 60, 70]
    found, predictor, reported = ask([grey(level) for level in levels], batch=3)
    assert predictor.sizes == reported == [3, 3, 1]
    assert [one.result().adapted.probabilities[0] for one in found] == pytest.approx([each / 255 for each in levels])


def test_one_that_fails_fails_alone() -> None:
    found, predictor, reported = ask([grey(10), grey(0), grey(30)], batch=4)
    assert [one.exception() is None for one in found] == [True, False, True]
    assert str(found[1].exception()) == "black"
    assert predictor.sizes == [3, 1, 1, 1]
    assert reported == [3]


def test_only_images_of_one_size_share_a_call() -> None:
    sizes = [4, 6, 4, 6, 4]
    found, predictor, _ = ask([grey(100, size) for size in sizes], batch=8)
    assert predictor.sizes == [3, 2]
    assert all(one.result().adapted.probabilities[0] == pytest.approx(100 / 255) for one in found)


def test_one_that_was_cancelled_is_not_run() -> None:
    predictor = Counting()
    batcher = Batcher(predictor, 4)
    first, second = batcher.submit(grey(10)), batcher.submit(grey(20))
    first.cancel()
    batcher.start()
    predictor.go.set()
    batcher.stop()
    assert predictor.sizes == [1]
    assert second.result().adapted.probabilities[0] == pytest.approx(20 / 255)


@pytest.mark.parametrize("recipe", ["ops", "auto", "ops_shared"])
def test_a_batch_that_runs_in_rounds_has_all_its_diagnostics(recipe: str) -> None:
    """Ten images of `ops` are 220 rows, more than run at once."""
    predictor = open_predictor(load_model("digits"), recipe)
    pixels = noise(10, size=32)
    together = predictor.answer(pixels)
    alone = [predictor.answer(each[None]) for each in pixels]
    for found, wanted in (
        (together.adapted.priors, [one.adapted.priors for one in alone]),
        (together.source.probabilities, [one.source.probabilities for one in alone]),
    ):
        np.testing.assert_allclose(found, np.concatenate(wanted), atol=1e-5)


def test_pixels_are_counted_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any) -> None:
        raise AssertionError("decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)
    with pytest.raises(UploadError, match=r"at most 0\.0001 million pixels.*received 20 × 20") as caught:
        decode(png(noise(1)[0]), LOADED, 100)
    with pytest.raises(UploadError, match="decoded"):
        decode(png(noise(1)[0]), LOADED, 400)
    assert caught.value.status == 413


def test_a_picture_is_turned_as_its_camera_says() -> None:
    pixels = noise(1, size=20)[0]
    buffer, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(pixels).save(buffer, "PNG", exif=exif)
    np.testing.assert_array_equal(decode(buffer.getvalue(), LOADED, 10_000), pixels[::-1, ::-1])


def test_the_baseline_is_that_of_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    entries = [{"recipe": "a: 1", "changed": {"clean": 0.25}}, {"recipe": "b: 2", "changed": {"clean": None}}]
    path.write_text(json.dumps({"methods": entries}))
    assert read_baseline(path, "a: 1") == 0.25
    with pytest.raises(InputError, match=r"expected results on clean images for 'b: 2'; .* has a: 1. Try"):
        read_baseline(path, "b: 2")
    path.write_text("[]")
    with pytest.raises(InputError, match=r"expected results\.json of sita bench"):
        read_baseline(path, "a: 1")


class Failing(Counting):
    """Cannot take any image."""

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__()
        self.loaded = loaded

    def answer(self, pixels: np.ndarray) -> Answers:
        raise InputError("too small")


def post(service: Service, content: bytes) -> httpx.Response:
    """Ask the application itself, without a server."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(service), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/predict", content=content)

    service.batcher.start()
    try:
        return asyncio.run(ask())
    finally:
        service.batcher.stop()


def test_whose_fault_it_is_decides_the_status() -> None:
    settings, picture = ServeSettings("test"), png(noise(1)[0])
    told = post(Service(Failing(replace(LOADED, size=None)), settings), picture)
    assert (told.status_code, told.json()) == (422, {"error": "too small"})
    assert post(Service(Failing(LOADED), settings), picture).status_code == 500
    broken = Counting()
    broken.go.set()
    assert post(Service(broken, settings), png(np.zeros((20, 20, 3), np.uint8))).status_code == 500
    assert post(Service(broken, settings), picture).status_code == 200


def test_who_comes_when_too_many_wait_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sita_workbench.serving.app.MAX_WAITING", 0)
    told = post(Service(Counting(), ServeSettings("test")), png(noise(1)[0]))
    assert told.status_code == 503
    assert told.headers["Retry-After"] == "1"
    assert "waiting already" in told.json()["error"]
