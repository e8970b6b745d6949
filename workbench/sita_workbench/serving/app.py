"""The application that every worker runs: /predict, /health, /info and /metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from sita_adapters.errors import SitaError
from sita_adapters.version import __version__

from ..data.images import ImageError
from ..label_maps import encode_label_map
from ..predictor import NoAnswerError, Predictor
from ..scoring import ModelSpec
from .batching import Batcher
from .decoding import STATUS, decode, read_upload
from .metrics import Metrics
from .results import ImageResult

MAX_WAITING = 64
"""How many requests may wait in a worker; more are refused before their images are read."""


@dataclass(frozen=True)
class ServeSettings:
    """What a worker serves, as values that can be sent to a process. `batch` is the maximum batch size."""

    spec: ModelSpec
    with_source: bool = True
    batch: int = 4
    max_bytes: int = 10_000_000
    max_pixels: int = 50_000_000
    threads: int = 1


class Service:
    """A predictor behind HTTP: reads uploads, answers them, and counts."""

    def __init__(self, predictor: Predictor, settings: ServeSettings) -> None:
        self.predictor, self.settings = predictor, settings
        self.max_pixels = min(settings.max_pixels, predictor.loaded.max_pixels)
        self.metrics = Metrics()
        self.batcher = Batcher(predictor, settings.batch, self.metrics.batches.observe)
        self._decoders = ThreadPoolExecutor(2, "sita-decode")  # more would only keep more images in memory
        self._waiting = 0

    async def predict(self, request: Request) -> Response:
        """Answer for an image. The request is counted exactly once."""
        started, outcome = time.perf_counter(), "failed"
        try:
            answer = await self._answer(request)
            response = self._respond(answer, 1000 * (time.perf_counter() - started))
            outcome = "ok"
        except ImageError as error:
            outcome, response = error.kind, _refuse(error)
        except NoAnswerError as error:
            outcome, response = "no_answer", self._fail(error, 422)
        except SitaError as error:
            # A model that takes any size may fail on this image's size; otherwise it is not the image's fault.
            outcome, status = ("unfit", 422) if self.predictor.loaded.sides is None else ("failed", 500)
            response = self._fail(error, status)
        finally:
            self.metrics.count_request(outcome, time.perf_counter() - started)
        return response

    async def _answer(self, request: Request) -> ImageResult:
        if self._waiting >= MAX_WAITING:
            raise ImageError("busy", f"{MAX_WAITING} requests are already waiting. Try: again later.")
        self._waiting += 1
        try:
            data = await read_upload(request, self.settings.max_bytes)
            loop = asyncio.get_running_loop()
            pixels = await loop.run_in_executor(self._decoders, decode, data, self.predictor.loaded, self.max_pixels)
            return await asyncio.wrap_future(self.batcher.submit(pixels))
        finally:
            self._waiting -= 1

    def _respond(self, answer: ImageResult, milliseconds: float) -> Response:
        self.metrics.count_answer(answer.prior, answer.changed)
        loaded = self.predictor.loaded
        if loaded.task == "segmentation":
            png = encode_label_map(answer.adapted.labels, answer.adapted.probabilities.shape[-1])
            return Response(png, media_type="image/png", headers=answer.to_headers(milliseconds))
        return JSONResponse(answer.to_json(loaded.names, milliseconds))

    def _fail(self, error: SitaError, status: int) -> Response:
        """Return an error of the model, without its file name, which clients must not see."""
        loaded, text = self.predictor.loaded, str(error)
        for name in (loaded.spec, *([] if loaded.file is None else [str(loaded.file.path)])):
            text = text.replace(name, "The model")
        return JSONResponse({"error": text}, status)

    def info(self) -> dict[str, Any]:
        """Return the model, its description and the limits."""
        loaded = self.predictor.loaded
        return {
            "model": loaded.spec,
            "weights": loaded.weights,
            "framework": loaded.framework,
            "task": loaded.task,
            "size": loaded.sides,
            "recipe": self.predictor.recipe,
            "rows": self.predictor.rows,
            "batch": self.settings.batch,
            "max_mb": self.settings.max_bytes / 1e6,
            "max_pixels": self.max_pixels,
            "description": self.predictor.description,
        }


def _refuse(error: ImageError) -> Response:
    status = STATUS.get(error.kind, 400)
    headers = {"Retry-After": "1"} if status == 503 else {}
    if status in (408, 413, 503):  # the rest of the body was not read, and is no beginning of a next request
        headers["Connection"] = "close"
    return JSONResponse({"error": str(error)}, status, headers)


def make_app(service: Service) -> FastAPI:
    """Return the application with these endpoints, and /openapi.json, which describes them."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.batcher.stop)

    app = FastAPI(title="sita", lifespan=lifespan, version=__version__, docs_url=None, redoc_url=None)
    body = {"requestBody": {"required": True, "content": _BODIES}}
    text: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {}}}}
    app.get("/metrics", response_class=Response, responses=text)(service.metrics.page)
    app.get("/info")(service.info)
    app.post("/predict", response_class=Response, responses=_RESPONSES, openapi_extra=body)(service.predict)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    return app


_BYTES = {"schema": {"type": "string", "format": "binary"}}
_FORM = {"schema": {"type": "object", "properties": {"image": _BYTES["schema"]}, "required": ["image"]}}
_BODIES = {"image/*": _BYTES, "application/octet-stream": _BYTES, "multipart/form-data": _FORM}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "JSON; for a segmentation model, a PNG.",
        "content": {"application/json": {}, "image/png": {}},
    },
    **{code: {"content": {"application/json": {}}} for code in (400, 408, 413, 415, 422, 503)},
}
