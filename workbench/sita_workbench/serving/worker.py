"""A worker process: loads the model, and runs uvicorn on the port that its parent has bound."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from sita_adapters.errors import SitaError

from .settings import GRACE_SECONDS, ServeSettings

FAILED = 3
"""The exit code of a worker that could not load its model: another would not be able to, either."""

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")


def run_worker(settings: ServeSettings, listening: socket.socket, parent: Connection) -> None:
    """Serve until SIGTERM, or until the parent is gone. Tell the parent when the model is there, or why it is not."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent decides
    for name in _THREADS:
        os.environ.setdefault(name, str(settings.threads))  # before a framework is imported
    try:
        service = _load(settings)
    except SitaError as error:
        parent.send(("failed", str(error)))
        sys.exit(FAILED)
    except Exception as error:
        parent.send(("failed", f"{settings.model} could not be loaded: {type(error).__name__}: {error}"))
        raise SystemExit(FAILED) from error
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()

    import uvicorn

    from .app import make_app

    app = make_app(service, when_ready=lambda: parent.send(("ready", os.getpid())))
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="on", timeout_graceful_shutdown=GRACE_SECONDS
    )
    uvicorn.Server(config).run(sockets=[listening])


def _load(settings: ServeSettings) -> Any:
    """Return the service with its model, which has answered once: the first call of a model takes longer."""
    from dataclasses import replace

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


def _end_with(parent: Connection) -> None:
    """End this process when the parent has, however it did: the connection to it breaks."""
    try:
        while True:
            parent.recv()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE_SECONDS + 1)
        os._exit(1)
