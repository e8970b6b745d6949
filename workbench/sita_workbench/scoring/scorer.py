"""A model that answers for batches of images, and what the source model said of them."""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import replace

import numpy as np

from sita_adapters.errors import OutputError

from ..methods import images_per_call
from ..models.loading import load_model
from ..predictor import Answers, open_predictor
from .spec import ModelSpec

_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
}
"""What the frameworks read when they are imported."""


def use_one_thread() -> None:
    """Let this process compute on one core: several such workers side by side are faster than one with many threads.

    Frameworks that are not imported yet read it from the environment; torch can be told at any time.
    """
    os.environ.update(_ONE_THREAD)
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


class Scorer:
    """A loaded model with its recipe, or an exported file."""

    def __init__(self, spec: ModelSpec) -> None:
        loaded = load_model(
            spec.model,
            spec.weights,
            inputs=spec.inputs,
            size=spec.size,
            exported=True,
            trust=spec.trust,
            providers=spec.providers,
        )
        self.loaded = replace(loaded, task=spec.task or loaded.task, crop=spec.crop or loaded.crop)
        self._names = spec.names
        self._predictor = open_predictor(self.loaded, spec.open_recipe(self.loaded.task))

    @property
    def segments(self) -> bool:
        """Whether every pixel gets a label."""
        return self.loaded.task == "segmentation"

    def images_per_call(self, height: int, width: int) -> int:
        """Return how many images of this size run at once."""
        return images_per_call(self._predictor.rows, height, width)

    def answer(self, images: np.ndarray) -> Answers:
        """Return the answers for images in bytes (N, h, w, 3), in one call."""
        return self._predictor.answer(images)

    def name(self, label: int, classes: int) -> str | None:
        """Return a class's name, where it is known."""
        if self._names and len(self._names) != classes:
            raise OutputError(
                f"--labels: expected a name for each of the model's {classes} classes; received {len(self._names)}."
            )
        names = self._names or self.loaded.names
        return names[label] if len(names) == classes else None


@functools.lru_cache(maxsize=1)
def open_scorer(spec: ModelSpec) -> Scorer:
    """Return the scorer of a spec, loaded once per process."""
    return Scorer(spec)
