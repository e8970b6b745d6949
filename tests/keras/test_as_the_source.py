"""What an adapted model has in common with its source: files, names, losses, inputs, and what is no number."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import keras_nets as nets
import keras_odd_nets as odd
import numpy as np
import pytest
from keras import layers, ops

import sita_adapters as sita
from sita_adapters.errors import ModelError


@keras.saving.register_keras_serializable(package="tests")
class Holding(keras.Model):
    """A graph with one of its layers as an attribute, as KerasHub's backbones."""

    def __init__(self, **settings: Any) -> None:
        inputs, conv = keras.Input((16, 16, 3)), layers.Conv2D(4, 3)
        super().__init__(inputs, layers.BatchNormalization()(conv(inputs)), **settings)
        self.stem = conv

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name}


def test_graphs_with_layers_as_attributes_load(tmp_path: Path) -> None:
    model, batch = odd.graph(Holding()), nets.images(2)
    adapted = sita.adapt(model, "augbn", priors=0.5)
    adapted.save(tmp_path / "it.keras")
    again = keras.saving.load_model(tmp_path / "it.keras")
    expected = adapted.predict(batch, verbose=0)
    np.testing.assert_allclose(again.predict(batch, verbose=0), expected, rtol=1e-5, atol=1e-6)
    assert abs(expected - model.predict(batch, verbose=0)).max() > 1e-4


def test_preprocessing_that_learned_its_statistics_loads(tmp_path: Path) -> None:
    batch = nets.images(3)
    model = odd.graph(lambda x: layers.BatchNormalization()(layers.Normalization(name="pixels")(x)))
    model.get_layer("pixels").adapt(3 * batch + 1)
    adapted = sita.adapt(model, "augbn")
    adapted.save(tmp_path / "it.keras")
    again = keras.saving.load_model(tmp_path / "it.keras")
    expected = adapted.predict(batch, verbose=0)
    np.testing.assert_allclose(again.predict(batch, verbose=0), expected, rtol=1e-5, atol=1e-6)


def features(x: Any) -> Any:
    return layers.GlobalAveragePooling2D()(layers.BatchNormalization()(layers.Conv2D(6, 3)(x)))


def test_losses_are_assigned_by_the_outputs_names(tmp_path: Path) -> None:
    inputs, batch = keras.Input((16, 16, 3)), nets.images(3)
    x = features(inputs)
    outputs = [layers.Dense(5, activation="softmax", name="cls")(x), layers.Dense(4, name="box")(x)]
    model = nets.settle(keras.Model(inputs, outputs))
    adapted = sita.adapt(model, "source", output=0)
    adapted.save(tmp_path / "it.keras")
    labels = {"cls": np.zeros(3), "box": np.zeros((3, 4))}
    results = []
    for each in (model, adapted, keras.saving.load_model(tmp_path / "it.keras")):
        assert each.output_names == ["cls", "box"]
        each.compile(loss={"cls": "sparse_categorical_crossentropy", "box": "mse"})
        results.append(each.evaluate(batch, labels, verbose=0))
    np.testing.assert_allclose(results[1:], [results[0]] * 2, rtol=1e-4)


class Adding(layers.Layer):
    """Adds a loss of its own."""

    def call(self, x: Any) -> Any:
        self.add_loss(ops.mean(ops.square(x)))
        return x


def test_regularizers_and_added_losses_count_as_in_the_source() -> None:
    inputs, batch = keras.Input((16, 16, 3)), nets.images(3)
    x = layers.Conv2D(6, 3, kernel_regularizer="l2", activity_regularizer="l2")(inputs)
    x = layers.GlobalAveragePooling2D()(layers.BatchNormalization()(Adding()(x)))
    model = nets.settle(keras.Model(inputs, layers.Dense(nets.CLASSES)(x)))
    adapted, labels = sita.adapt(model, "source"), np.zeros((3, nets.CLASSES))
    results = []
    for each in (model, adapted, adapted):  # the second time, nothing of the first is left
        each.compile(loss="mse")
        results.append(each.evaluate(batch, labels, verbose=0))
        each(batch)
    np.testing.assert_allclose(results[1:], [results[0]] * 2, rtol=1e-4)
    plain = odd.graph(lambda x: layers.BatchNormalization()(layers.Conv2D(6, 3)(x)))
    assert len(adapted.losses) == len(model.losses) == 3
    assert not sita.adapt(plain, "source").losses


class Late(layers.Layer):
    """Says what shape it returns, so Keras does not run it; what it adds with is built by the first call."""

    def __init__(self, last: layers.Layer) -> None:
        super().__init__()
        self.conv, self.norm, self.last = layers.Conv2D(3, 3, padding="same"), layers.BatchNormalization(), last

    def build(self, shape: Any) -> None:
        self.conv.build(shape)
        self.norm.build(shape)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape

    def call(self, x: Any) -> Any:
        y = self.norm(self.conv(x))
        return self.last([x, y]) if isinstance(self.last, layers.Add) else self.last(y)


def late(last: layers.Layer) -> keras.Model:
    inputs = keras.Input((16, 16, 3))
    return keras.Model(inputs, layers.Dense(5)(layers.GlobalAveragePooling2D()(Late(last)(inputs))))


def test_layers_that_the_first_call_builds() -> None:
    batch = nets.images(2)
    adapted = sita.adapt(model := late(layers.Add()), "source")
    np.testing.assert_allclose(adapted.predict_on_batch(batch), model.predict_on_batch(batch), rtol=1e-5, atol=1e-6)
    model = late(layers.Dense(3))
    with pytest.raises(ModelError, match="Try: call the model once on an image batch"):
        sita.adapt(model, "source")
    expected = odd.run(model, batch) if keras.backend.backend() != "jax" else ops.convert_to_numpy(model(batch))
    adapted = sita.adapt(model, "source")
    np.testing.assert_allclose(adapted.predict_on_batch(batch), expected, rtol=1e-5, atol=1e-6)


def test_what_is_no_number_stays_none() -> None:
    """Behind a ReLU, too, and compiled: XLA makes 0 of it there."""
    adapted, batch = sita.adapt(nets.functional(), "ops"), nets.images(3)
    alone = adapted.predict_on_batch(batch[2:])
    batch[0, 3, 3, 0] = np.nan
    batch[1] = np.inf
    for use in odd.ways(adapted):
        answers = use(batch)
        assert np.isnan(answers[:2]).all()
        np.testing.assert_allclose(answers[2:], alone, rtol=1e-4, atol=1e-5)
