"""Small Keras models of every kind, seeded, with statistics that are not the identity's."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

CLASSES = 5


def images(count: int, height: int = 16, width: int = 16, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    coarse = random.normal(size=(count, height // 4, width // 4, 3)).repeat(4, axis=1).repeat(4, axis=2)
    gain = random.uniform(0.3, 2.3, size=(count, 1, 1, 1))
    return (gain * coarse + 0.3 * random.normal(size=coarse.shape)).astype(np.float32)


def settle(model: keras.Model) -> keras.Model:
    """Give every layer seeded weights, and BatchNorms statistics in a healthy range."""
    random = np.random.default_rng(1)
    for layer in walk(model):
        if isinstance(layer, layers.BatchNormalization):
            size = layer.moving_mean.shape[0]
            values = [random.uniform(0.7, 1.3, size), random.uniform(-0.2, 0.2, size)]
            layer.set_weights([*values, random.normal(0, 0.3, size), random.uniform(0.5, 2, size)])
        elif not layer._layers:
            layer.set_weights([random.normal(0, 0.3, weight.shape) for weight in layer.weights])
    return model


def walk(model: keras.Model) -> list[keras.layers.Layer]:
    return list(model._flatten_layers(include_self=False))


def count_norms(model: keras.Model) -> int:
    return sum(isinstance(layer, layers.BatchNormalization) for layer in walk(model))


def functional(softmax: bool = True, shape: tuple[int | None, ...] = (16, 16, 3), axis: int = -1) -> keras.Model:
    """Two branches, a residual sum, and a bare operation."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input(shape)
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(inputs)
    x = layers.ReLU()(layers.BatchNormalization(axis=axis, name="bn1")(x))
    y = layers.BatchNormalization(axis=axis, name="bn2")(layers.Conv2D(8, 3, padding="same")(x))
    z = layers.BatchNormalization(axis=axis, name="bn3", epsilon=1e-2)(layers.Conv2D(8, 1)(x))
    x = layers.ReLU()(layers.Add()([x, y, z]) * 1.5)
    x = layers.GlobalAveragePooling2D()(x)
    outputs = layers.Dense(CLASSES, activation="softmax" if softmax else None, dtype="float32")(x)
    return settle(keras.Model(inputs, outputs, name="functional"))


def sequential() -> keras.Model:
    return settle(
        keras.Sequential(
            [
                keras.Input((16, 16, 3)),
                layers.Conv2D(6, 3),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.GlobalAveragePooling2D(),
                layers.Dense(CLASSES),
            ]
        )
    )


def nested() -> keras.Model:
    """A Functional in a Sequential in a Functional, with a `training=False` baked in."""
    inner_input = keras.Input((16, 16, 6))
    inner = keras.Model(inner_input, layers.ReLU()(layers.BatchNormalization()(inner_input)), name="inner")
    middle = keras.Sequential([keras.Input((16, 16, 3)), layers.Conv2D(6, 3, padding="same"), inner], name="middle")
    inputs = keras.Input((16, 16, 3))
    x = layers.BatchNormalization()(middle(inputs), training=False)
    return settle(keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x))))


def shared() -> keras.Model:
    """One BatchNorm and one convolution, used twice."""
    conv, norm = layers.Conv2D(3, 3, padding="same"), layers.BatchNormalization()
    inputs = keras.Input((16, 16, 3))
    x = layers.ReLU()(norm(conv(inputs)))
    x = layers.ReLU()(norm(conv(x)))
    return settle(keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x))))


@keras.saving.register_keras_serializable(package="tests")
class Composite(layers.Layer):
    """A layer that holds layers, one in a list."""

    def __init__(self, width: int, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.width = width
        self.conv = layers.Conv2D(width, 3, padding="same")
        self.norms = [layers.BatchNormalization(), layers.BatchNormalization()]

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        self.conv.build(input_shape)
        for norm in self.norms:
            norm.build((*input_shape[:-1], self.width))

    def call(self, x: object, training: bool | None = None) -> object:
        x = keras.ops.relu(self.norms[0](self.conv(x), training=training))
        return self.norms[1](x, training=training)

    def get_config(self) -> dict[str, object]:
        return {**super().get_config(), "width": self.width}


def composite() -> keras.Model:
    inputs = keras.Input((16, 16, 3))
    x = Composite(6)(inputs)
    return settle(keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x))))


@keras.saving.register_keras_serializable(package="tests")
class MyNorm(layers.BatchNormalization):
    """A subclass with a `call` of its own."""

    def call(self, inputs: object, training: bool | None = None, mask: object = None) -> object:
        return keras.ops.relu(super().call(inputs, training=training, mask=mask))


def own_norm() -> keras.Model:
    inputs = keras.Input((16, 16, 3))
    x = MyNorm()(layers.Conv2D(6, 3)(inputs))
    return settle(keras.Model(inputs, layers.Dense(CLASSES)(layers.GlobalAveragePooling2D()(x))))


def time_distributed() -> keras.Model:
    """Rows of the image as time steps, each normalised in a folded batch."""
    inputs = keras.Input((16, 16, 3))
    x = layers.TimeDistributed(layers.Conv1D(6, 3, padding="same"))(inputs)
    x = layers.TimeDistributed(layers.BatchNormalization())(x)
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(x))
    return settle(keras.Model(inputs, layers.Dense(CLASSES)(x)))


@keras.saving.register_keras_serializable(package="tests")
class Subclassed(keras.Model):
    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.conv = layers.Conv2D(6, 3)
        self.bn = layers.BatchNormalization()
        self.pool = layers.GlobalAveragePooling2D()
        self.heads = {"main": layers.Dense(CLASSES)}

    def call(self, x: object, training: bool | None = None) -> object:
        x = keras.ops.relu(self.bn(self.conv(x), training=training))
        return self.heads["main"](self.pool(x))


def subclassed() -> keras.Model:
    model = Subclassed()
    model(images(2))
    return settle(model)


def mixed() -> keras.Model:
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        return functional()
    finally:
        keras.config.set_dtype_policy(policy)


def any_size() -> keras.Model:
    return functional(shape=(None, None, 3))


MODELS = {
    "functional": functional,
    "sequential": sequential,
    "nested": nested,
    "shared": shared,
    "composite": composite,
    "own_norm": own_norm,
    "time_distributed": time_distributed,
    "subclassed": subclassed,
    "mixed": mixed,
    "any_size": any_size,
}
