"""The application that every worker runs: /predict, /health, /info and /metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from sita_adapters.errors import SitaError
from sita_adapters.version import __version__

from ..predictor import NoAnswerError, Predictor
from .batching import Batcher, One
from .decoding import UploadError, decode, read_upload
from .metrics import Metrics
from .responses import changed, prior, to_headers, to_json, to_png
from .settings import MAX_PIXELS, MAX_WAITING, READ_SECONDS, ServeSettings


class Service:
    """A predictor behind HTTP: reads uploads, has them answered, and counts."""

    def __init__(self, predictor: Predictor, settings: ServeSettings, baseline: float | None = None) -> None:
        self.predictor, self.settings = predictor, settings
        self.metrics = Metrics(baseline)
        self.batcher = Batcher(predictor, settings.batch, self.metrics.count_batch)
        self._decoders = ThreadPoolExecutor(2, "sita-decode")  # more would only hold more pictures in memory
        self._waiting = 0
        self._max_pixels = settings.max_pixels or min(MAX_PIXELS, predictor.loaded.max_pixels)

    async def predict(self, request: Request) -> Response:
        """Answer for an image. Whatever happens, the request is counted once."""
        started = time.perf_counter()
        try:
            outcome, response = "ok", await self._answer(request, started)
        except UploadError as error:
            outcome, response = error.outcome, _refuse(error)
        except NoAnswerError as error:
            outcome, response = "no_answer", self._fail(error, 422)
        except SitaError as error:
            # A model that takes any size may not be able to take this one's; else it is not the image's fault.
            outcome, status = ("unfit", 422) if self.predictor.loaded.sides is None else ("failed", 500)
            response = self._fail(error, status)
        except Exception:
            self.metrics.count_request("failed", time.perf_counter() - started)
            raise
        self.metrics.count_request(outcome, time.perf_counter() - started)
        return response

    async def _answer(self, request: Request, started: float) -> Response:
        if self._waiting >= MAX_WAITING:
            raise UploadError(503, "busy", f"{MAX_WAITING} requests are waiting already. Try: try again later.")
        self._waiting += 1
        try:
            one = await self._predict(request)
        finally:
            self._waiting -= 1
        milliseconds = 1000 * (time.perf_counter() - started)
        self.metrics.count_answer(prior(one), changed(one), one.rows)
        loaded = self.predictor.loaded
        if loaded.task == "segmentation":
            return Response(to_png(one), media_type="image/png", headers=to_headers(one, milliseconds))
        return JSONResponse(
            to_json(one, lambda label, classes: self.settings.name_of(label, loaded, classes), milliseconds)
        )

    async def _predict(self, request: Request) -> One:
        limits = self.settings
        try:
            data = await asyncio.wait_for(read_upload(request, limits.max_bytes), READ_SECONDS)
        except asyncio.TimeoutError as error:
            reason = f"Expected the whole image within {READ_SECONDS} s; received a part of it."
            raise UploadError(408, "too_slow", reason) from error
        loop = asyncio.get_running_loop()
        pixels = await loop.run_in_executor(self._decoders, decode, data, self.predictor.loaded, self._max_pixels)
        return await asyncio.wrap_future(self.batcher.submit(pixels))

    def _fail(self, error: SitaError, status: int) -> Response:
        """Return an error of the model's, without its file name, which is no business of a client's."""
        return JSONResponse({"error": str(error).replace(self.predictor.loaded.spec, "The model")}, status)

    def info(self) -> dict[str, Any]:
        """Return what is served: what `describe` says, and the limits."""
        loaded, limits = self.predictor.loaded, self.settings
        metadata = None if loaded.file is None else loaded.file.metadata
        described = getattr(self.predictor, "description", None)
        rows = described.rows if described is not None else metadata.rows if metadata else None
        return {
            "model": loaded.spec,
            "weights": loaded.weights,
            "framework": loaded.framework,
            "task": loaded.task,
            "size": loaded.sides,
            "recipe": self.predictor.recipe,
            "rows": rows,
            "diagnostics": list(metadata.diagnostics) if metadata else ["prior", "entropy", "source"],
            "batch": limits.batch,
            "max_mb": limits.max_bytes / 1e6,
            "max_pixels": self._max_pixels,
            "description": None if described is None else str(described),
        }


def _refuse(error: UploadError) -> Response:
    headers = {"Retry-After": "1"} if error.status == 503 else None
    # What was not read of a body stays in the connection, where a next request would begin.
    if error.status in (408, 413, 503):
        headers = {**(headers or {}), "Connection": "close"}
    return JSONResponse({"error": error.reason}, error.status, headers)


def make_app(service: Service, when_ready: Callable[[], None] = lambda: None) -> FastAPI:
    """Return the application: what is listed here, and /openapi.json, which describes it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.batcher.start()
        when_ready()
        yield
        await asyncio.get_running_loop().run_in_executor(None, service.batcher.stop)

    app = FastAPI(title="sita", lifespan=lifespan, version=__version__, docs_url=None, redoc_url=None)

    async def health() -> dict[str, str]:
        return {"status": "ok"}

    async def info() -> dict[str, Any]:
        return service.info()

    async def metrics() -> Response:
        page, content_type = await asyncio.get_running_loop().run_in_executor(None, service.metrics.page)
        return Response(page, media_type=content_type)

    app.add_api_route(
        "/predict",
        service.predict,
        methods=["POST"],
        response_class=Response,
        responses=_ANSWERS,
        openapi_extra={"requestBody": {"required": True, "content": _BODIES}},
    )
    app.add_api_route("/health", health)
    app.add_api_route("/info", info)
    app.add_api_route("/metrics", metrics, response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    return app


_BYTES = {"schema": {"type": "string", "format": "binary"}}
_FORM = {"schema": {"type": "object", "properties": {"image": _BYTES["schema"]}, "required": ["image"]}}
_BODIES = {"image/*": _BYTES, "application/octet-stream": _BYTES, "multipart/form-data": _FORM}
_ERROR = {"schema": {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}}
_REASONS = {
    400: "The image is damaged, or there is none.",
    408: "The image did not come in time.",
    413: "The image is too large.",
    415: "It is no image that can be decoded.",
    422: "The model has no answer for this image.",
    503: "Too many requests are waiting.",
}
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer as JSON; of a segmentation model, a PNG of labels.",
        "content": {"application/json": {"schema": {"type": "object"}}, "image/png": _BYTES},
    },
    **{code: {"description": text, "content": {"application/json": _ERROR}} for code, text in _REASONS.items()},
}
