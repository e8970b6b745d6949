"""Keras models, run on numpy arrays."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from sita_adapters.errors import InputError
from sita_adapters.outputs import find_scores, flatten


def is_numpy(value: Any) -> bool:
    """Whether this is an array of what `predict_on_batch` returns."""
    return isinstance(value, np.ndarray)


class KerasRunner:
    """Runs models with `predict_on_batch`."""

    class_axis = -1

    @property
    def label(self) -> str:
        """The framework and what it computes with."""
        return f"keras ({keras.backend.backend()})"

    def arrange(self, name: str, model: Any, images: np.ndarray) -> np.ndarray:
        """Return the images as the model's input takes them."""
        inputs = getattr(model, "inputs", None)  # a subclassed model has none to check against
        if not inputs:
            return images
        shape = tuple(inputs[0].shape)[1:]
        for arranged in (images, np.moveaxis(images, -1, 1)):
            pairs = zip(shape, arranged.shape[1:], strict=False)
            if len(shape) == 3 and all(size in (None, given) for size, given in pairs):
                return arranged
        if len(shape) == 3 and shape[-1] == images.shape[1] != images.shape[-1]:
            raise InputError(
                f"images: expected channels last, (N, h, w, {shape[-1]}) for {name!r}; received shape {images.shape}, "
                "which looks like channels first. Remedy: images.transpose(0, 2, 3, 1)."
            )
        raise InputError(f"images: {name!r} takes images of shape {shape}; received {images.shape[1:]}.")

    def run(self, model: Any, batch: np.ndarray) -> np.ndarray:
        """Return the scores."""
        output = model.predict_on_batch(batch)
        place = find_scores(output, None, is_numpy, lambda array: array.ndim > 1 and len(array) == len(batch))
        return np.asarray(flatten(output, is_numpy)[place][1])
