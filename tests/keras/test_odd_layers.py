"""Layers and outputs that are unusual: found, adapted as the reference says, or named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import keras_nets as nets
import keras_reference
import numpy as np
import pytest
from keras import layers, ops

import sita_adapters as sita
from sita_adapters.errors import ModelError, OutputError

BACKEND = keras.backend.backend()


def photos(count: int = 3) -> np.ndarray:
    images = np.random.default_rng(1).normal(size=(count, 16, 16, 3)).astype("float32")
    return images * np.linspace(0.5, 2.0, count, dtype="float32")[:, None, None, None]


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=2e-4, atol=2e-5)


class Augmenting(keras.Model):
    """Its augmentation runs in training only, and was never built."""

    def __init__(self) -> None:
        super().__init__()
        self.augment = keras.Sequential([layers.RandomFlip(), layers.RandomRotation(0.1)])
        self.body = [layers.Conv2D(6, 3), layers.BatchNormalization(), layers.GlobalAveragePooling2D(), layers.Dense(5)]

    def call(self, x: Any, training: bool = False) -> Any:
        x = self.augment(x) if training else x
        for layer in self.body:
            x = layer(x)
        return x


def test_a_part_that_was_never_built_because_only_training_runs_it() -> None:
    model = Augmenting()
    model(photos())
    nets.settle(model)
    close(sita.adapt(model).predict_on_batch(photos()), keras_reference.auto(model, photos(), "logits"))


class OwnNorm(layers.Layer):
    """Normalizes like BatchNormalization, and does not derive from it."""

    def build(self, shape: Any) -> None:
        for name, start in (("moving_mean", "zeros"), ("moving_variance", "ones")):
            setattr(self, name, self.add_weight(shape=(shape[-1],), initializer=start, trainable=False, name=name))

    def call(self, x: Any) -> Any:
        return ops.batch_normalization(x, self.moving_mean, self.moving_variance, -1)


def functional(step: Callable[[Any], Any]) -> keras.Model:
    inputs = keras.Input((16, 16, 3))
    x = step(layers.BatchNormalization(name="first")(layers.Conv2D(6, 3)(inputs)))
    return nets.settle(keras.Model(inputs, layers.Dense(5)(layers.GlobalAveragePooling2D()(layers.ReLU()(x)))))


def test_layers_of_another_class_that_normalize_are_named() -> None:
    model = functional(OwnNorm(name="own"))
    model.get_layer("own").moving_variance.assign(np.linspace(0.5, 2.0, 6))
    with pytest.warns(sita.SitaWarning, match="own normalize like BatchNorm, but are no BatchNormalization"):
        adapted = sita.adapt(model)
    assert "own normalize like BatchNorm" in str(sita.describe(adapted))
    close(adapted.predict_on_batch(photos()), keras_reference.auto(model, photos(), "logits"))


class Mapped(layers.Layer):
    """Normalizes image by image, inside of a map."""

    def __init__(self) -> None:
        super().__init__(name="mapped")
        self.norm = layers.BatchNormalization(name="inside")

    def build(self, shape: Any) -> None:
        self.norm.build(shape)

    def call(self, x: Any) -> Any:
        return ops.vectorized_map(lambda image: self.norm(image[None])[0], x)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def test_a_layer_inside_of_a_map_is_refused_and_the_advice_works() -> None:
    model = functional(Mapped())
    with pytest.raises(ModelError, match=r"'mapped/inside' runs inside an inner graph.*not in \['mapped/inside'\]"):
        sita.adapt(model)
    adapted = sita.adapt(model, layers=lambda name, layer: name not in ["mapped/inside"])
    assert sita.describe(adapted).skipped == ("mapped/inside",)


class Counting(layers.Layer):
    """Counts its calls; its `adapt` is no preprocessing layer's."""

    def build(self, _: Any) -> None:
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def adapt(self, data: Any) -> None:
        """Do nothing."""

    def call(self, x: Any) -> Any:
        self.count.assign(self.count + 1)
        return x


def test_a_layer_with_an_adapt_method_of_its_own_cannot_write_to_the_source() -> None:
    layer = Counting(name="counting")
    model = functional(layer)
    layer.count.assign(0)
    with pytest.raises(ModelError, match="writes to its variable"):
        sita.adapt(model)
    assert float(layer.count) == 0


def test_the_same_tensor_twice() -> None:
    inputs = keras.Input((16, 16, 3))
    features = functional(layers.ReLU())(inputs)
    model = keras.Model(inputs, {"logits": features, "again": features, "teacher": ops.stop_gradient(features)})
    expected = keras_reference.auto(model, photos(), "logits", lambda output: output["logits"])["logits"]
    adapted = sita.adapt(model)
    for found in (adapted(photos()), adapted.predict(photos(), verbose=0)):
        for name in ("logits", "again", "teacher"):
            close(ops.convert_to_numpy(found[name]), expected)
    assert sita.calibrate(model, np.tile(photos(4), (16, 1, 1, 1))).rule


if BACKEND == "tensorflow":  # the only one whose tensors hold text

    def test_labels_as_text_are_refused() -> None:
        inputs = keras.Input((16, 16, 3))
        labels = ops.argmax(functional(layers.ReLU())(inputs), axis=-1)
        words = layers.StringLookup(vocabulary=[*"abcd"], invert=True)(labels)
        with pytest.raises(OutputError, match=r"which is text.*Try: adapt a model that returns these"):
            sita.adapt(keras.Model(inputs, words))

else:  # TensorFlow allows no such name

    def test_names_with_numbers_do_not_collide() -> None:
        class Same(keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.norms = [layers.BatchNormalization(name=name) for name in ("bn#2", "bn", "bn")]

            def call(self, x: Any) -> Any:
                for norm in self.norms:
                    x = norm(x)
                return ops.mean(x, axis=(1, 2)) - 1.0

        model = Same()
        model(photos())
        assert sita.describe(sita.adapt(model)).adapted == ("bn#2", "bn", "bn#3")


class Distilling(keras.Model):
    """The source trains beside its frozen adapted model; the last output is the gap between their logits."""

    def __init__(self, source: keras.Model, adapted: keras.Model) -> None:
        super().__init__()
        self.source, self.adapted = source, adapted

    def call(self, x: Any, training: bool | None = None) -> Any:
        logits = self.source(x, training=False)
        return ops.concatenate([logits, ops.abs(logits - self.adapted(x))], -1)


def test_an_adapted_model_sees_every_step_of_its_source() -> None:
    source, gaps = functional(layers.ReLU()), []
    adapted = sita.adapt(source, "bn", priors=1.0)
    adapted.trainable = False
    model = Distilling(source, adapted)
    model(photos())
    labels = np.arange(4)

    def loss(truth: Any, output: Any) -> Any:
        return keras.losses.sparse_categorical_crossentropy(truth, output[:, :5], from_logits=True)

    def gap(_: Any, output: Any) -> Any:
        return ops.max(output[:, 5:])

    model.compile(keras.optimizers.SGD(0.5), loss=loss, metrics=[gap])
    watch = keras.callbacks.LambdaCallback(on_train_batch_end=lambda _, logs: gaps.append(float(logs["gap"])))
    model.fit(photos(4), labels, batch_size=1, epochs=1, verbose=0, callbacks=[watch])
    assert len(gaps) == 4
    assert max(gaps) < 1e-5


def test_a_call_in_the_middle_of_an_epoch_is_right_or_refused() -> None:
    """Keras on JAX keeps the weights to itself during an epoch."""
    source, found = functional(layers.ReLU()), []
    adapted = sita.adapt(source, "bn", priors=1.0)
    source.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    watch = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: found.append(
            [each.predict_on_batch(photos()) for each in (adapted, source)]
        )
    )
    fit = lambda: source.fit(photos(2), np.arange(2), batch_size=1, verbose=0, callbacks=[watch])  # noqa: E731
    if BACKEND == "jax":
        with pytest.raises(ModelError, match=r"trains right now.*Try: on_epoch_end"):
            fit()
    else:
        fit()
        for one, other in found:
            close(one, other)
