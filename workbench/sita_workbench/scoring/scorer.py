"""A model that answers for batches of images, and what the source model said of them."""

from __future__ import annotations

import functools
import os
import sys
from dataclasses import dataclass, replace

import numpy as np

import sita_adapters as sita
from sita_adapters.errors import OutputError
from sita_adapters.recipe import read_recipe

from ..methods import SOURCE, Method, Prediction, prepare, to_probabilities
from ..models.loading import load_model
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


@dataclass(frozen=True, eq=False)
class Answers:
    """What a batch of N images got: p and λ of the adapted model; label and probability of the source model's, (N, …).

    The further axes are those of the pixels, where each gets a label. What a model does not say is None.
    """

    adapted: Prediction
    source_labels: np.ndarray | None
    source_confidences: np.ndarray | None


class Scorer:
    """A loaded model with its recipe."""

    def __init__(self, spec: ModelSpec) -> None:
        loaded = load_model(spec.model, spec.weights, inputs=spec.inputs, size=spec.size)
        self.loaded = replace(loaded, task=spec.task or loaded.task, crop=spec.crop or loaded.crop)
        self.loaded.require_inputs()
        self.recipe = spec.open_recipe(self.loaded.task)
        self._names = spec.names
        adapted = Method(f"adapted: {self.recipe.name}", self.recipe)
        self._adapted = prepare(adapted, self.loaded, seed=self.recipe.seed)
        source = Method(SOURCE, read_recipe(SOURCE, {}, self.loaded.task))
        self._source = None if 1.0 in self.recipe.lambdas else prepare(source, self.loaded)

    @property
    def segments(self) -> bool:
        """Whether every pixel gets a label."""
        return self.loaded.task == "segmentation"

    def images_per_call(self, height: int, width: int) -> int:
        """Return how many images of this size run at once."""
        return self._adapted.images_per_call(height, width)

    def answer(self, images: np.ndarray) -> Answers:
        """Return the answers for images in bytes (N, h, w, 3), in one call."""
        from ..predictor import check_shape

        encoded = self.loaded.encode(images)
        if self.recipe.candidate_count > 1 or self.recipe.rules:
            with sita.observe(self._adapted.model) as seen:
                raw = self._adapted.run(encoded)
            adapted = Prediction(to_probabilities(raw, self._adapted.scores), seen.priors)
        else:
            seen, alone = None, self._adapted.predict(encoded)
            adapted = Prediction(alone.probabilities, np.full(alone.labels.shape, self.recipe.lambdas[0]))
        check_shape(adapted, self.loaded)
        if self._source is None and seen is not None:
            place = seen.candidates.index(1.0)
            return Answers(adapted, seen.labels[:, place], seen.confidences[:, place])
        source = adapted if self._source is None else self._source.predict(encoded)
        return Answers(adapted, source.labels, source.probabilities.max(axis=-1))

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
