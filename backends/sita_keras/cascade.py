"""The source model first; the adapted one for the images that it is unsure of."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from sita_adapters.cascade import Tally
from sita_adapters.errors import InputError, OutputError
from sita_adapters.outputs import flatten, rebuild
from sita_adapters.voting import Scores, entropy

from .runner import is_numpy
from .training import refuse_training


class Cascade:
    """Predicts as a Keras model does, in numpy. Which images go on is read from values, which a graph cannot do.

    So it is no keras.Model itself; both models inside run compiled, with their `predict_on_batch`.
    """

    def __init__(self, model: keras.Model, adapted: keras.Model, threshold: float, scores: Scores, path: str) -> None:
        self.model, self.adapted = model, adapted
        self.threshold, self.scores, self.path = threshold, scores, path
        self.tally = Tally()

    def __call__(self, images: Any, training: bool = False) -> Any:
        """Return the model's output, in which unsure images have the adapted model's answer."""
        if training:
            raise refuse_training("A cascade")
        return self.predict_on_batch(images)

    def predict(self, images: Any, batch_size: int = 32, verbose: int = 0) -> Any:
        """Return the outputs for any number of images, so many at a time; `verbose=1` shows how far it is."""
        images = _to_numpy(images)
        starts = range(0, len(images), batch_size)
        bar = keras.utils.Progbar(len(starts), verbose=verbose)
        parts = []
        for done, start in enumerate(starts, 1):
            parts.append(self.predict_on_batch(images[start : start + batch_size]))
            bar.update(done)
        flat = [[array for _, array in flatten(part, is_numpy)] for part in parts]
        return rebuild(parts[0], iter([np.concatenate(arrays) for arrays in zip(*flat, strict=True)]), is_numpy)

    def predict_on_batch(self, images: Any) -> Any:
        """Return the outputs for a batch of images."""
        images = _to_numpy(images)
        output = self.model.predict_on_batch(images)
        found = dict(flatten(output, is_numpy))
        unsure = self._entropies(found[self.path], len(images)) > self.threshold
        self.tally.add(len(images), int(unsure.sum()))
        if not unsure.any():
            return output
        adapted = dict(flatten(self.adapted.predict_on_batch(images[unsure]), is_numpy))
        merged = []
        for path, array in found.items():
            changed = np.array(array)
            changed[unsure] = adapted[path]
            merged.append(changed)
        return rebuild(output, iter(merged), is_numpy)

    def _entropies(self, scores: np.ndarray, count: int) -> np.ndarray:
        """Return each image's entropy, the mean over its pixels or labels."""
        classes = self.scores.startswith("sigmoid") or (scores.ndim > 1 and scores.shape[-1] > 1)
        if len(scores) != count or not classes:
            raise OutputError(
                f"Expected scores (N, …, classes) of two classes or more for each of {count} images; received shape "
                f"{scores.shape}. Remedy: say where they are, with adapt(…, output=…), or that each label is true or "
                "not by itself, with adapt(…, scores=…)."
            )
        found = entropy(scores.astype(np.float64), scores=self.scores, class_axis=-1, xp=np)
        return np.asarray(found.reshape(count, -1).mean(axis=1))

    def __repr__(self) -> str:
        return f"Cascade({self.model.name}, entropy > {self.threshold:g} nats; {self.tally})"


def _to_numpy(images: Any) -> np.ndarray:
    if is_numpy(images) or keras.ops.is_tensor(images):
        return np.asarray(keras.ops.convert_to_numpy(images))
    raise InputError(
        f"Expected an array or tensor of images; received {type(images).__name__}. Remedy: of a dataset, call the "
        "cascade batch by batch."
    )
