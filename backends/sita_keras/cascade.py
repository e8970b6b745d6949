"""The source model first; the adapted one for the images that it is unsure of."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from sita_adapters.cascade import Tally
from sita_adapters.errors import OutputError
from sita_adapters.outputs import Selector, find_scores, flatten, rebuild
from sita_adapters.voting import Scores, entropy

from .runner import is_numpy


class Cascade:
    """Predicts as a Keras model does, in numpy. Which images go on is read from values, which a graph cannot do.

    So it is no keras.Model itself; both models inside run compiled, with their `predict_on_batch`.
    """

    def __init__(
        self, model: keras.Model, adapted: keras.Model, threshold: float, scores: Scores, output: Selector = None
    ) -> None:
        self.model, self.adapted = model, adapted
        self.threshold, self.scores, self.output = threshold, scores, output
        self.tally = Tally()

    def __call__(self, images: Any) -> Any:
        """Return the model's output, in which unsure images have the adapted model's answer."""
        return self.predict_on_batch(images)

    def predict(self, images: Any, batch_size: int = 32) -> Any:
        """Return the outputs for any number of images, so many at a time."""
        images = _to_numpy(images)
        parts = [
            self.predict_on_batch(images[start : start + batch_size]) for start in range(0, len(images), batch_size)
        ]
        flat = [[array for _, array in flatten(part, is_numpy)] for part in parts]
        return rebuild(parts[0], iter([np.concatenate(arrays) for arrays in zip(*flat, strict=True)]), is_numpy)

    def predict_on_batch(self, images: Any) -> Any:
        """Return the outputs for a batch of images."""
        images = _to_numpy(images)
        output = self.model.predict_on_batch(images)
        arrays = [array for _, array in flatten(output, is_numpy)]
        unsure = self._entropies(output, arrays, len(images)) > self.threshold
        self.tally.add(len(images), int(unsure.sum()))
        if not unsure.any():
            return output
        adapted = [array for _, array in flatten(self.adapted.predict_on_batch(images[unsure]), is_numpy)]
        merged = []
        for array, new in zip(arrays, adapted, strict=True):
            changed = np.array(array)
            changed[unsure] = new
            merged.append(changed)
        return rebuild(output, iter(merged), is_numpy)

    def _entropies(self, output: Any, arrays: list[np.ndarray], count: int) -> np.ndarray:
        """Return each image's entropy, the mean over its pixels or labels."""

        def eligible(array: np.ndarray) -> bool:
            return array.ndim > 1 and len(array) == count

        scores = arrays[find_scores(output, self.output, is_numpy, eligible)]
        if not eligible(scores):
            raise OutputError(
                f"Expected scores (N, …, classes) for each of {count} images; received shape {scores.shape}."
            )
        found = entropy(scores.astype(np.float64), scores=self.scores, class_axis=-1, xp=np)
        return np.asarray(found.reshape(count, -1).mean(axis=1))

    def __repr__(self) -> str:
        return f"Cascade({self.model.name}, entropy > {self.threshold:g} nats; {self.tally})"


def _to_numpy(images: Any) -> np.ndarray:
    return images if is_numpy(images) else np.asarray(keras.ops.convert_to_numpy(images))
