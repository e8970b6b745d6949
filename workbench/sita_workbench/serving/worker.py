"""A worker process: uvicorn asks it for the application, for which it loads the model."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sita_adapters.errors import SitaError

from .metrics import FOLDER
from .settings import GRACE_SECONDS, ServeSettings

if TYPE_CHECKING:
    from fastapi import FastAPI

SETTINGS = "settings.json"
"""The file of the settings, in the folder that workers share."""

READY, FAILED = "ready-", "failed-"
"""What the names of the files begin with in which workers say so; the rest is the process's number."""

_PAUSE = 5.0
"""Seconds between two attempts to load a model that could be loaded before."""

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


def make_worker() -> FastAPI:
    """Return the application with its model.

    If the model can't be loaded and no worker ever could, the server ends, with the reason. If others could, they go
    on, and this one is started again, after a pause.
    """
    folder = Path(os.environ[FOLDER])
    settings = ServeSettings.from_json((folder / SETTINGS).read_text(encoding="utf-8"))
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    logging.getLogger("asyncio").addFilter(_Seldom())
    for name in _THREADS:
        os.environ.setdefault(name, str(settings.threads))  # before a framework is imported
    try:
        service = _load(settings)
    except Exception as error:
        reason = str(error) if isinstance(error, SitaError) else f"{type(error).__name__}: {error}"
        if any(folder.glob(f"{READY}*")):
            print(f"A worker could not load its model, and is started again: {reason}", file=sys.stderr, flush=True)
            time.sleep(_PAUSE)
            os._exit(1)  # not uvicorn's own code for this, at which it would end the server
        (folder / f"{FAILED}{os.getpid()}").write_text(reason, encoding="utf-8")
        os._exit(1)
    from .app import make_app

    return make_app(service, when_ready=(folder / f"{READY}{os.getpid()}").touch)


def _load(settings: ServeSettings) -> Any:
    """Return the service with its model, which has answered once: the first call of a model takes longer."""
    import numpy as np

    from ..models.loading import load_model
    from ..predictor import open_predictor
    from .app import Service
    from .baseline import read_baseline

    loaded = load_model(
        settings.model,
        settings.weights,
        inputs=settings.inputs,
        size=settings.size,
        exported=True,
        trust=settings.trust,
        providers=settings.providers,
    )
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(settings.threads)
    loaded = replace(loaded, task=settings.task or loaded.task, crop=settings.crop or loaded.crop)
    predictor = open_predictor(loaded, settings.recipe, with_source=settings.with_source)
    height, width = loaded.sides or (224, 224)
    sizes = range(1, settings.batch + 1) if loaded.framework.startswith("keras") else (1, settings.batch)
    for count in sizes:  # Keras compiles for every number of images
        predictor.answer(np.random.default_rng(0).integers(0, 256, (count, height, width, 3), np.uint8))
    baseline = None if settings.baseline is None else read_baseline(Path(settings.baseline), predictor.recipe)
    return Service(predictor, settings, baseline)


def _end_with_parent(parent: int) -> None:
    """End this process when the parent has, however it did."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS + 1)
    os._exit(1)


class _Seldom(logging.Filter):
    """Lets one message of asyncio through per minute: out of file descriptors, it would log thousands."""

    _last = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log this message."""
        due = time.monotonic() - self._last > 60
        if due:
            self._last = time.monotonic()
        return due
