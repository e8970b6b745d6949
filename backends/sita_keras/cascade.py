"""The source model first; the adapted one for the images that it is unsure of."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from sita_adapters.cascade import CascadeRule, Tally
from sita_adapters.errors import InputError, SharedWeightsError
from sita_adapters.ops import NUMPY


class Cascade:
    """Predicts as a Keras model does, in numpy. Which images go on is read from values, which a graph cannot do.

    So it is no keras.Model itself; both models inside run compiled, with their `predict_on_batch`.
    """

    def __init__(self, model: keras.Model, adapted: keras.Model, rule: CascadeRule) -> None:
        self.model, self.adapted, self.rule = model, adapted, rule

    @property
    def tally(self) -> Tally:
        """How many images went on."""
        return self.rule.tally

    def __call__(self, images: Any, training: bool = False) -> Any:
        """Return the model's output, in which unsure images have the adapted model's answer."""
        if training:
            raise SharedWeightsError("A cascade cannot be trained. Try: train the source model.")
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
        return keras.tree.map_structure(lambda *arrays: np.concatenate(arrays), *parts)

    def predict_on_batch(self, images: Any) -> Any:
        """Return the outputs for a batch of images."""
        images = _to_numpy(images)
        output = self.model.predict_on_batch(images)
        return self.rule.apply(output, [images], lambda some: self.adapted.predict_on_batch(some[0]), NUMPY)

    def __repr__(self) -> str:
        return f"Cascade({self.model.name}, {self.rule})"


def _to_numpy(images: Any) -> np.ndarray:
    if NUMPY.is_array(images) or keras.ops.is_tensor(images):
        return np.asarray(keras.ops.convert_to_numpy(images))
    raise InputError(
        f"Expected an array or tensor of images; received {type(images).__name__}. Try: of a dataset, call the "
        "cascade batch by batch."
    )
