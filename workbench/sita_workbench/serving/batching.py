"""Images that wait at the same time run in one call of the model.

Nobody waits for others to come: a call takes what is there, up to the largest batch. Every image is adapted to by
itself, so that its answer does not depend on the batch, and one that fails does not fail the others.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from ..methods import Prediction
from ..predictor import Answers, Predictor


@dataclass(frozen=True, eq=False)
class One:
    """The answer for one image: p (…, classes) and λ (…) of the adapted model, p of the source model, rows."""

    adapted: Prediction
    source: Prediction | None
    rows: int


@dataclass(eq=False)
class _Waiting:
    pixels: np.ndarray
    answer: Future[One] = field(default_factory=Future)


class Batcher:
    """A thread that runs a predictor on what waits."""

    def __init__(self, predictor: Predictor, batch: int, report: Callable[[int], None] = lambda images: None) -> None:
        self._predictor, self._batch, self._report = predictor, batch, report
        self._arriving: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._waiting: deque[_Waiting] = deque()
        self._thread = threading.Thread(target=self._run, name="sita-model", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer what was submitted, and end."""
        self._arriving.put(None)
        self._thread.join()

    def submit(self, pixels: np.ndarray) -> Future[One]:
        """Return the answer for an image in bytes (h, w, 3), when it is there."""
        waiting = _Waiting(pixels)
        self._arriving.put(waiting)
        return waiting.answer

    def _run(self) -> None:
        while batch := self._take():
            running = [each for each in batch if each.answer.set_running_or_notify_cancel()]
            if running:
                self._report(len(running))
                self._answer(running)

    def _take(self) -> list[_Waiting]:
        """Return the image that waits longest, and others of its size; nothing at the end."""
        if not self._waiting:
            first = self._arriving.get()
            if first is None:
                return []
            self._waiting.append(first)
        while not self._arriving.empty():
            arrived = self._arriving.get()
            if arrived is None:  # the end comes after what waits
                self._arriving.put(None)
                break
            self._waiting.append(arrived)
        shape = self._waiting[0].pixels.shape
        batch = [each for each in self._waiting if each.pixels.shape == shape][: self._batch]
        taken = set(map(id, batch))
        self._waiting = deque(each for each in self._waiting if id(each) not in taken)
        return batch

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
        for each, one in zip(batch, found, strict=True):
            each.answer.set_result(one)


def split(answers: Answers) -> list[One]:
    """Return the answers of a batch one by one."""
    adapted, source = answers.adapted, answers.source
    return [
        One(
            Prediction(adapted.probabilities[place], None if adapted.priors is None else adapted.priors[place]),
            None if source is None else Prediction(source.probabilities[place]),
            int(answers.rows[place]),
        )
        for place in range(len(adapted.probabilities))
    ]
