"""Fewer rows at once: the images one after the other, and an image's priors in parts."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
from keras import ops

from sita_adapters.observation import is_observed
from sita_adapters.outputs import flatten, rebuild
from sita_adapters.plan import split

from .answers import is_tensor
from .layers import PACKAGE, Body, Collapse, Expand
from .training import refuse_training


@keras.saving.register_keras_serializable(package=PACKAGE)
class Rounds(keras.layers.Layer):
    """Does what Expand, Body and Collapse do, with at most `max_rows` rows at a time.

    All the images at once where their number is known and they fit; else one after the other, in a loop of the
    framework's. A row travels with every row that its statistics draw from, so that the answers are the same.
    """

    def __init__(self, expand: Expand, body: Body, collapse: Collapse, max_rows: int, **kwargs: Any) -> None:
        super().__init__(**{**kwargs, "dtype": "float32", "autocast": False})
        self.expand, self.body, self.collapse, self.max_rows = expand, body, collapse, max_rows
        self.parts = split(body.plan, max_rows)
        self.built = True

    def call(self, images: Any, training: bool | None = None) -> Any:
        """Return an answer for every image."""
        if training:
            raise refuse_training("An adapted model")
        count = images.shape[0]
        if count is not None and count * self.body.plan.rows <= self.max_rows:
            return self._answer(images)
        if is_observed(self.collapse) and count is not None:
            answers = [self._answer(images[image : image + 1]) for image in range(count)]
            arrays = zip(*([array for _, array in flatten(answer, is_tensor)] for answer in answers), strict=True)
            return rebuild(answers[0], iter([ops.concatenate(each) for each in arrays]), is_tensor)
        return _one_by_one(self._answer_one, images)

    def _answer_one(self, image: Any) -> Any:
        answer = self._answer(image[None])
        return rebuild(answer, iter([array[0] for _, array in flatten(answer, is_tensor)]), is_tensor)

    def _answer(self, images: Any) -> Any:
        made: list[Any] = []
        for part in self.parts:
            with _after([array for candidates in made[-1:] for _, array in flatten(candidates, is_tensor)]):
                outputs = self.body.run_plan(self.expand.rows_of(images, part), part)
                made.append(self.collapse.candidates_of(outputs, part))
        flat = zip(*([array for _, array in flatten(candidates, is_tensor)] for candidates in made), strict=True)
        joined = [ops.concatenate(each, axis=1) if len(each) > 1 else each[0] for each in flat]
        return self.collapse.answer(rebuild(made[0], iter(joined), is_tensor))

    def compute_output_spec(self, images: Any, training: bool | None = None) -> Any:
        """As the three layers'."""
        outputs = self.body.compute_output_spec(self.expand.compute_output_spec(images))
        return self.collapse.compute_output_spec(outputs)

    def get_config(self) -> dict[str, Any]:
        """Return what this layer was made of."""
        parts = {name: keras.saving.serialize_keras_object(getattr(self, name)) for name in _PARTS}
        return {**super().get_config(), **parts, "max_rows": self.max_rows}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Rounds:
        """Return the layer that was saved."""
        parts = {name: keras.saving.deserialize_keras_object(config.pop(name)) for name in _PARTS}
        return cls(**parts, **config)


_PARTS = ("expand", "body", "collapse")


def _one_by_one(function: Any, images: Any) -> Any:
    """Map a function over the images, strictly one after the other."""
    if keras.backend.backend() != "tensorflow":
        return ops.map(function, images)
    import tensorflow as tf

    # Keras' own map leaves it to TensorFlow to run ten at a time, which would not keep memory flat.
    image = keras.KerasTensor(images.shape[1:], dtype=images.dtype)
    spec = keras.src.backend.compute_output_spec(function, image)
    signature = keras.tree.map_structure(lambda one: tf.TensorSpec(one.shape, one.dtype), spec)
    return tf.map_fn(function, images, fn_output_signature=signature, parallel_iterations=1)


def _after(tensors: list[Any]) -> Any:
    """Have TensorFlow, which runs what it can side by side, wait for these."""
    if keras.backend.backend() != "tensorflow" or not tensors:
        return contextlib.nullcontext()
    import tensorflow as tf

    return tf.control_dependencies([tensor for tensor in tensors if not isinstance(tensor, keras.KerasTensor)])
