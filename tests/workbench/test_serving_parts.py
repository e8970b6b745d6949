"""The server's parts without a server: batches and limits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import ImageFile
from serving_process import noise, png

from sita_adapters.errors import InputError
from sita_adapters.inputs import ENCODINGS
from sita_workbench.data.images import ImageError
from sita_workbench.methods import Prediction
from sita_workbench.models.loaded import LoadedModel
from sita_workbench.models.loading import load_model
from sita_workbench.predictor import Answers, NoAnswerError, open_predictor
from sita_workbench.serving.answers import Answer
from sita_workbench.serving.app import Service, Settings, make_app
from sita_workbench.serving.batching import Batcher
from sita_workbench.serving.decoding import decode

LOADED = LoadedModel("/secret/net.onnx", None, ENCODINGS["unit"], 20, 1.0)
SETTINGS = Settings(lambda: LOADED)


class Counting:
    """Returns how bright an image is, fails on black ones, and waits until it may run."""

    loaded, recipe, rows = LOADED, "none", 1

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.busy, self.go = threading.Event(), threading.Event()

    def answer(self, pixels: np.ndarray) -> Answers:
        self.busy.set()
        self.go.wait(10)
        self.sizes.append(len(pixels))
        bright = pixels.reshape(len(pixels), -1).mean(axis=1) / 255
        if (bright == 0).any():
            raise ValueError("black")
        p = np.stack([bright, 1 - bright], axis=1)
        return Answers(Prediction(p, bright), None, np.arange(len(pixels)))


def gray(level: int, side: int = 4) -> np.ndarray:
    return np.full((side, side, 3), level, np.uint8)


def ask(
    images: Sequence[np.ndarray], batch: int, cancelled: Sequence[int] = ()
) -> tuple[list[Future[Answer]], list[int], list[int]]:
    """Submit images that all wait while another one runs; return the answers, and the sizes of calls and batches."""
    predictor, reported = Counting(), []
    batcher = Batcher(predictor, batch, reported.append)
    batcher.submit(gray(255))
    assert predictor.busy.wait(10)
    found = [batcher.submit(image) for image in images]
    for index in cancelled:
        found[index].cancel()
    predictor.go.set()
    batcher.stop()
    return found, predictor.sizes[1:], reported[1:]


@pytest.mark.parametrize(
    ("sides", "batch", "cancelled", "sizes"),
    [([4] * 7, 3, [], [3, 3, 1]), ([4, 6, 4, 6, 4], 8, [], [3, 2]), ([4, 4], 4, [0], [1])],
    ids=["up to the largest batch", "of one size", "without what was cancelled"],
)
def test_images_that_wait_run_together(sides: list[int], batch: int, cancelled: list[int], sizes: list[int]) -> None:
    levels = range(10, 10 + len(sides))
    found, ran, reported = ask([gray(*each) for each in zip(levels, sides, strict=True)], batch, cancelled)
    assert ran == reported == sizes
    for index, (level, one) in enumerate(zip(levels, found, strict=True)):
        if index not in cancelled:
            assert one.result().adapted.probabilities[0] == pytest.approx(level / 255)


def test_an_image_that_fails_fails_alone() -> None:
    found, ran, reported = ask([gray(10), gray(0), gray(30)], batch=4)
    assert [one.exception() is None for one in found] == [True, False, True]
    assert str(found[1].exception()) == "black"
    assert ran == [3, 1, 1, 1]
    assert reported == [3]


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
    with pytest.raises(ImageError, match=r"at most 0\.0001 million pixels.*received 20 × 20"):
        decode(png(noise(1)[0]), LOADED, 100)
    with pytest.raises(ImageError, match="decoded"):
        decode(png(noise(1)[0]), LOADED, 400)


class Failing(Counting):
    """Cannot take any image."""

    def __init__(self, loaded: LoadedModel, error: type[Exception]) -> None:
        super().__init__()
        self.loaded, self.error = loaded, error

    def answer(self, pixels: np.ndarray) -> Answers:
        raise self.error(f"{self.loaded.spec} returned NaN.")


def post(predictor: Any) -> httpx.Response:
    """Ask the application itself, without a server."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(make_app(Service(predictor, SETTINGS)), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/predict", content=png(noise(1)[0]))

    predictor.go.set()
    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("size", "error", "status"),
    [(None, InputError, 422), (20, InputError, 500), (20, NoAnswerError, 422), (20, ValueError, 500)],
)
def test_the_cause_of_a_failure_decides_the_status(size: int | None, error: type[Exception], status: int) -> None:
    """A model of any size may fail on this image's size, and NaN is no answer; else the server is the cause."""
    response = post(Failing(replace(LOADED, size=size), error))
    assert response.status_code == status
    assert (
        response.text == "Internal Server Error" if error is ValueError else "The model returned NaN" in response.text
    )
    assert "secret" not in response.text
    assert post(Counting()).status_code == 200


def test_a_request_is_refused_when_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sita_workbench.serving.app.MAX_WAITING", 0)
    response = post(Counting())
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "1"
    assert "waiting already" in response.json()["error"]
