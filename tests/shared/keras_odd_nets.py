"""Keras models that are written in ways a copy, a reader of layers or a batch of rows can stumble over."""

from __future__ import annotations

import functools
from collections.abc import Callable

import keras
from keras import layers, ops
from keras_nets import CLASSES, images, settle


class BoundMethods(keras.Model):
    """Runs its layers from a list, in which two are bound methods, of the model and of a layer, and one a partial."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = layers.Conv2D(6, 3), layers.BatchNormalization()
        self.second, self.pool = layers.BatchNormalization(), layers.GlobalAveragePooling2D()
        self.head, self.third = layers.Dense(CLASSES), layers.BatchNormalization()
        self.third.build((None, 14, 14, 6))
        partial = functools.partial(scaled, self.second)
        self.steps = [self.conv, self._norm, partial, self.third.call, self.pool, self.head]

    def _norm(self, x: object) -> object:
        return ops.relu(self.bn(x))

    def call(self, x: object) -> object:
        for step in self.steps:
            x = step(x)
        return x


def scaled(layer: layers.Layer, x: object) -> object:
    return 2 * layer(x)


class ByFunction(keras.Model):
    """Normalises with its layer's variables; one layer is called where `half` is set."""

    def __init__(self, half: bool = False) -> None:
        super().__init__()
        self.half = half
        self.bn, self.called = layers.BatchNormalization(), layers.BatchNormalization(name="called")
        self.pool, self.head = layers.GlobalAveragePooling2D(), layers.Dense(CLASSES)

    def build(self, shape: tuple[int | None, ...]) -> None:
        self.bn.build(shape)
        self.called.build(shape)
        self.head.build((None, shape[-1]))
        self.built = True

    def call(self, x: object) -> object:
        x = ops.batch_normalization(x, self.bn.moving_mean, self.bn.moving_variance, axis=-1)
        return self.head(self.pool(self.called(x) if self.half else x))


class HeadFirst(keras.Model):
    """Assigns its softmax before the layers that run before it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = layers.Dense(CLASSES, activation="softmax")
        self.bn, self.pool, self.conv = (
            layers.BatchNormalization(),
            layers.GlobalAveragePooling2D(),
            layers.Conv2D(6, 3),
        )

    def call(self, x: object) -> object:
        return self.head(self.pool(self.bn(self.conv(x))))


class Gained(keras.Model):
    """Is called on images and on something else."""

    def __init__(self) -> None:
        super().__init__()
        self.bn, self.pool = layers.BatchNormalization(), layers.GlobalAveragePooling2D()

    def call(self, x: object, gain: object = None) -> object:
        return self.pool(self.bn(x)) * (1.0 if gain is None else gain)


class GainedFromTheStart(Gained):
    """Is built for both, and so records both shapes."""

    def build(self, x_shape: tuple[int | None, ...], gain_shape: tuple[int | None, ...]) -> None:
        self.bn.build(x_shape)


class Frozen(layers.BatchNormalization):
    """Has no `training` argument."""

    def call(self, inputs: object) -> object:
        return super().call(inputs, training=False)


def built(model: keras.Model) -> keras.Model:
    model(images(2))
    return settle(model)


def run(model: keras.Model, batch: object) -> object:
    """Eagerly, but on JAX compiled as a whole: operation by operation would be compiled many times over."""
    answer = model.predict_on_batch(batch) if keras.backend.backend() == "jax" else model(batch)
    return keras.tree.map_structure(ops.convert_to_numpy, answer)


def ways(*models: keras.Model) -> list[Callable[[object], object]]:
    """Every way to run each of these models: eagerly (see `run`), and compiled."""
    found = [[functools.partial(run, model), model.predict_on_batch] for model in models]
    return [way for each in found for way in (each[1:] if keras.backend.backend() == "jax" else each)]


def graph(between: Callable[[object], object], classes: int | None = CLASSES) -> keras.Model:
    """Images (16, 16, 3), what stands between, and a head."""
    inputs = keras.Input((16, 16, 3))
    x = between(inputs)
    if classes is None:
        return settle(keras.Model(inputs, x))
    return settle(keras.Model(inputs, layers.Dense(classes)(layers.GlobalAveragePooling2D()(x))))


def frozen() -> keras.Model:
    return graph(lambda x: Frozen()(layers.Conv2D(6, 3)(x)))


def folds_rows(x: object, time_first: bool) -> object:
    """(B, 16, 16, 3) → (B·16, 16, 6) or, the wrong way round, (16·B, 16, 6), normalised, and back."""
    x = layers.ReLU()(layers.Conv2D(6, 3, padding="same")(x))
    x = ops.transpose(x, (1, 0, 2, 3)) if time_first else x
    x = layers.BatchNormalization(name="folded")(ops.reshape(x, (-1, 16, 6)))
    x = ops.reshape(x, (16, -1, 16, 6) if time_first else (-1, 16, 16, 6))
    return ops.transpose(x, (1, 0, 2, 3)) if time_first else x


def folds_unevenly(x: object) -> object:
    """(B, 16, 16, 3) → (2B/3, 24, 16, 3): no whole number of entries for an image."""
    x = layers.BatchNormalization(name="folded")(ops.reshape(x, (-1, 24, 16, 3)))
    return ops.reshape(x, (-1, 16, 16, 3))
