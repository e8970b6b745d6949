"""The server's parts without a server: batches and limits."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import pytest
from serving_process import noise, png

from sita_adapters.errors import InputError
from sita_adapters.inputs import ENCODINGS
from sita_workbench.methods import Prediction
from sita_workbench.models.loaded import LoadedModel
from sita_workbench.models.loading import load_model
from sita_workbench.predictor import NoAnswerError, Predictions, open_predictor
from sita_workbench.scoring import ModelSpec
from sita_workbench.serving.app import ServeSettings, Service, make_app
from sita_workbench.serving.batching import Batcher

LOADED = LoadedModel("/secret/net.onnx", None, ENCODINGS["unit"], 20, 1.0)


class Counting:
    """Returns how bright an image is, fails on black ones or on all, and waits until it may run."""

    recipe, rows = "none", 1

    def __init__(self, loaded: LoadedModel = LOADED, error: type[Exception] | None = None) -> None:
        self.loaded, self.error = loaded, error
        self.sizes: list[int] = []
        self.busy, self.go = threading.Event(), threading.Event()

    def answer(self, pixels: np.ndarray) -> Predictions:
        self.busy.set()
        self.go.wait(10)
        self.sizes.append(len(pixels))
        bright = pixels.reshape(len(pixels), -1).mean(axis=1) / 255
        if self.error is not None or (bright == 0).any():
            raise (self.error or ValueError)(f"{self.loaded.spec} returned NaN.")
        return Predictions(Prediction(np.stack([bright, 1 - bright], axis=1), bright), None, np.arange(len(pixels)))


@pytest.mark.parametrize(
    ("images", "batch", "batches", "calls"),
    [
        ([(level, 4) for level in range(10, 17)], 3, [3, 3, 1], [3, 3, 1]),
        ([(10, 4), (11, 6), (12, 4), (13, 6), (14, 4)], 8, [3, 2], [3, 2]),
        ([(10, 4), (0, 4), (30, 4)], 4, [3], [3, 1, 1, 1]),
    ],
    ids=["up to the largest batch", "of one size", "one that fails fails alone"],
)
def test_images_that_wait_run_together(
    images: list[tuple[int, int]], batch: int, batches: list[int], calls: list[int]
) -> None:
    predictor, reported = Counting(), list[int]()
    batcher = Batcher(predictor, batch, reported.append)
    batcher.submit(np.full((4, 4, 3), 255, np.uint8))
    assert predictor.busy.wait(10)
    found = [batcher.submit(np.full((side, side, 3), level, np.uint8)) for level, side in images]
    batcher.submit(np.full((4, 4, 3), 255, np.uint8)).cancel()
    predictor.go.set()
    batcher.stop()
    assert (reported[1:], predictor.sizes[1:]) == (batches, calls)
    for (level, _), one in zip(images, found, strict=True):
        if level == 0:
            assert isinstance(one.exception(), ValueError)
        else:
            assert one.result().adapted.probabilities[0] == pytest.approx(level / 255)


@pytest.mark.parametrize("recipe", ["ops", "auto", "ops_shared"])
def test_a_batch_that_runs_in_rounds_has_all_its_diagnostics(recipe: str) -> None:
    """Ten images of `ops` are 220 rows, more than run at once."""
    predictor = open_predictor(load_model("digits"), recipe)
    pixels = noise(10, size=32)
    together = predictor.answer(pixels)
    for index, alone in enumerate(predictor.answer(each[None]) for each in pixels):
        np.testing.assert_allclose(together.adapted.priors[index], alone.adapted.priors[0], atol=1e-5)
        np.testing.assert_allclose(together.source.probabilities[index], alone.source.probabilities[0], atol=1e-5)


def post(predictor: Any) -> httpx.Response:
    """Ask the application itself, without a server."""

    async def ask() -> httpx.Response:
        app = make_app(Service(predictor, ServeSettings(ModelSpec("none"))))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/predict", content=png(noise(1)[0]))

    predictor.go.set()
    return asyncio.run(ask())


@pytest.mark.parametrize(
    ("size", "error", "status", "words"),
    [
        (None, InputError, 422, "The model returned NaN"),
        (20, InputError, 500, "The model returned NaN"),
        (20, NoAnswerError, 422, "The model returned NaN"),
        (20, ValueError, 500, "Internal Server Error"),
        (20, None, 200, "probability"),
    ],
)
def test_the_cause_of_a_failure_decides_the_status(
    size: int | None, error: type[Exception] | None, status: int, words: str
) -> None:
    """A model of any size may fail on this image's size, and NaN is no answer; else the server is the cause."""
    response = post(Counting(replace(LOADED, size=size), error))
    assert response.status_code == status
    assert words in response.text
    assert "secret" not in response.text


def test_a_request_is_refused_when_too_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sita_workbench.serving.app.MAX_WAITING", 0)
    response = post(Counting())
    assert (response.status_code, response.headers["Retry-After"]) == (503, "1")
    assert "already waiting" in response.json()["error"]
