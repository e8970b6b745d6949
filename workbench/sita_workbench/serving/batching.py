"""Images that wait at the same time run in one call of the model.

No image waits for later ones: a call takes the images that are waiting, up to the maximum batch size. The model adapts
to every image independently. An answer does not depend on the batch, and an image that fails does not affect others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from ..predictor import Predictor
from .results import ImageResult, split


@dataclass(eq=False)
class _Waiting:
    pixels: np.ndarray
    answer: Future[ImageResult] = field(default_factory=Future)


class Batcher:
    """A thread that runs a predictor on the images that wait; `report` gets the size of every batch."""

    def __init__(self, predictor: Predictor, batch: int, report: Callable[[int], None] = lambda images: None) -> None:
        self._predictor, self._batch, self._report = predictor, batch, report
        self._waiting: list[_Waiting] = []
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "sita-model")

    def submit(self, pixels: np.ndarray) -> Future[ImageResult]:
        """Return the future answer for an image in bytes (h, w, 3)."""
        waiting = _Waiting(pixels)
        with self._lock:
            self._waiting.append(waiting)
        self._thread.submit(self._run)  # an earlier run may take this image, too; then this one finds less to do
        return waiting.answer

    def stop(self) -> None:
        """Answer what was submitted, and end."""
        self._thread.shutdown()

    def _run(self) -> None:
        """Answer the image that has waited longest, and others of the same size."""
        with self._lock:
            same = [each for each in self._waiting if each.pixels.shape == self._waiting[0].pixels.shape]
            batch = same[: self._batch]
            self._waiting = [each for each in self._waiting if each not in batch]
        running = [each for each in batch if each.answer.set_running_or_notify_cancel()]
        if running:
            self._report(len(running))
            self._answer(running)

    def _answer(self, batch: Sequence[_Waiting]) -> None:
        try:
            found = split(self._predictor.answer(np.stack([each.pixels for each in batch])))
        except Exception as error:
            if len(batch) == 1:
                batch[0].answer.set_exception(error)
                return
            for each in batch:  # to find the one that fails, and to answer the others
                self._answer([each])
            return
        for each, answer in zip(batch, found, strict=True):
            each.answer.set_result(answer)
