"""A worker process: uvicorn asks it for the application, for which it loads the model."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

import numpy as np
from fastapi import FastAPI

from sita_adapters.errors import SitaError

from ..processes import end_with_parent, use_threads
from .app import ServeSettings, Service, make_app
from .metrics import FOLDER

STARTED, FAILED = "started", "failed-"
"""Files in the folder that the processes share: all workers were ready; why a worker could not load, by process id."""

_PAUSE = 5.0
"""Seconds between two attempts to load a model that could be loaded before."""


def make_worker(settings: ServeSettings, folder: Path) -> FastAPI:
    """Return the application with its model. If the model cannot be loaded, write the reason for the parent, and end.

    A worker that restarts ends after a pause, because the parent starts the next attempt at once.
    """
    end_with_parent()
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # out of file descriptors, it would log without end
    os.environ[FOLDER] = str(folder)  # before prometheus_client is imported
    use_threads(settings.threads)  # before a framework is imported
    try:
        return make_app(_load(settings))
    except Exception as error:
        reason = str(error) if isinstance(error, SitaError) else f"{type(error).__name__}: {error}"
        (folder / f"{FAILED}{os.getpid()}").write_text(reason, encoding="utf-8")
        if (folder / STARTED).exists():
            time.sleep(_PAUSE)
        os._exit(1)


def _load(settings: ServeSettings) -> Service:
    """Return the service with its model, which has answered once: the first call of a model takes longer."""
    predictor = settings.spec.open_predictor(with_source=settings.with_source)
    loaded = predictor.loaded
    height, width = loaded.sides or (224, 224)
    sizes = range(1, settings.batch + 1) if loaded.framework.startswith("keras") else (1, settings.batch)
    for count in sizes:  # Keras compiles for every number of images
        found = predictor.answer(np.random.default_rng(0).integers(0, 256, (count, height, width, 3), np.uint8))
    settings.spec.check_names(found.adapted.probabilities.shape[-1])
    return Service(predictor, settings)
