"""Whose weights an adapted model computes with: the source's, read and never written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import keras_nets as nets
import keras_odd_nets as odd
import numpy as np
import pytest
from keras import layers, ops

import sita_adapters as sita
from sita_adapters.errors import ModelError, SharedWeightsError

BACKEND = keras.backend.backend()


def around(adapted: keras.Model) -> keras.Model:
    """A model that holds an adapted one, and a layer of its own."""
    return keras.Sequential([keras.Input((16, 16, 3)), adapted, layers.Dense(2)])


def zeros(model: Any) -> list[np.ndarray]:
    return [0 * weight for weight in model.get_weights()]


def fit(model: keras.Model) -> None:
    model.compile("sgd", "mse")
    model.fit(nets.images(2), np.zeros((2, 2)), verbose=0)


def load_into_wrapper(adapted: keras.Model, folder: Path) -> None:
    other = around(sita.adapt(nets.sequential(), "augbn"))
    sita.unwrap(other.layers[0]).set_weights(zeros(sita.unwrap(other.layers[0])))
    other.save_weights(folder / "other.weights.h5")
    around(adapted).load_weights(folder / "other.weights.h5")


WRITES: dict[str, Callable[[keras.Model, Path], Any]] = {
    "set_weights": lambda adapted, _: adapted.set_weights(zeros(sita.unwrap(adapted))),
    "a layer's set_weights": lambda adapted, _: adapted.layers[-1].set_weights(zeros(adapted.layers[-1])),
    "a wrapper's set_weights": lambda adapted, _: around(adapted).set_weights(zeros(around(adapted))),
    "a wrapper's load_weights": load_into_wrapper,
    "assign": lambda adapted, _: [variable.assign(0 * ops.array(variable)) for variable in adapted.variables],
    "fit": lambda adapted, _: adapted.fit(nets.images(2), np.zeros((2, 5)), verbose=0),
    "a wrapper's fit": lambda adapted, _: fit(around(adapted)),
    "training=True": lambda adapted, _: adapted(nets.images(2), training=True),
    "trainable": lambda adapted, _: setattr(around(adapted), "trainable", False),
    "quantize": lambda adapted, _: around(adapted).quantize("int8"),
}

if BACKEND == "torch":
    WRITES |= {
        "load_state_dict": lambda a, _: a.load_state_dict({name: 0 * v for name, v in a.state_dict().items()}),
        "half": lambda adapted, _: adapted.half(),
        "requires_grad_": lambda adapted, _: adapted.requires_grad_(False),
        "a wrapper's half": lambda adapted, _: around(adapted).half(),
        "a wrapper's parameters": lambda a, _: [p.data.zero_() for p in around(a).parameters()],
    }


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_no_write_reaches_the_source(write: Callable[[keras.Model, Path], Any], tmp_path: Path) -> None:
    model, batch = nets.sequential(), nets.images(3)
    weights, expected = model.get_weights(), odd.run(model, batch)
    flags = [(v.trainable, getattr(v.value, "requires_grad", None)) for v in model.variables]
    adapted = sita.adapt(model, "augbn")
    answer = odd.run(adapted, batch)
    with suppress(sita.SitaError, ValueError):
        write(adapted, tmp_path)
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    assert [(v.trainable, getattr(v.value, "requires_grad", None)) for v in model.variables] == flags
    np.testing.assert_array_equal(odd.run(model, batch), expected)
    np.testing.assert_allclose(odd.run(adapted, batch), answer, rtol=1e-6, atol=1e-6)


def test_what_writes_is_told_what_to_do(tmp_path: Path) -> None:
    model = nets.sequential()
    adapted = sita.adapt(model, "augbn")
    for name in ("set_weights", "fit", "a wrapper's fit", "training=True"):
        with pytest.raises(SharedWeightsError, match=r"Try: (train|load them into) the source model"):
            WRITES[name](adapted, tmp_path)
    with pytest.raises(ValueError, match="load them into the source model"):
        load_into_wrapper(adapted, tmp_path)
    if BACKEND == "torch":
        for name in ("load_state_dict", "half", "requires_grad_"):
            with pytest.raises(SharedWeightsError, match="Try: load them into the source model"):
                WRITES[name](adapted, tmp_path)
    else:  # on torch, a wrapper has nothing to write to
        with pytest.raises(SharedWeightsError, match="Try: load them into the source model"):
            WRITES["a wrapper's set_weights"](adapted, tmp_path)


def test_the_sources_new_weights_are_seen() -> None:
    """Also by what is compiled already, and by a model around the adapted one."""
    model, batch = nets.sequential(), nets.images(2)
    adapted = sita.adapt(model, "source")
    inputs = keras.Input((16, 16, 3))
    wrapper = keras.Model(inputs, adapted(inputs))
    for scale in (1, 3, 2):
        kernel = model.layers[0].kernel
        kernel.assign(np.full(kernel.shape, scale, "float32"))
        for use in (*odd.ways(adapted), *odd.ways(wrapper)):
            np.testing.assert_allclose(use(batch), odd.run(model, batch), rtol=1e-5, atol=1e-5)


def test_the_source_survives_what_interrupts_its_adapted_model() -> None:
    """Keras on JAX takes the arrays out of a model's variables while it predicts."""
    model, batch = nets.sequential(), nets.images(2)
    adapted, expected = sita.adapt(model, "augbn"), model.predict_on_batch(batch)

    meanwhile = []

    def batches() -> Any:
        for _ in range(3):
            meanwhile.append(model.predict_on_batch(batch))
            yield (batch,)
        raise KeyError("lost")

    with pytest.raises(Exception, match="lost"):
        adapted.predict(batches(), verbose=0)
    assert len(meanwhile) == 3
    for answer in meanwhile:
        np.testing.assert_array_equal(answer, expected)
    np.testing.assert_array_equal(model.predict_on_batch(batch), expected)


@keras.saving.register_keras_serializable(package="tests")
class Counting(layers.Layer):
    """Adds the number of its calls, in a variable."""

    def build(self, shape: Any) -> None:
        self.counter = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        self.counter.assign_add(1.0)
        return x + self.counter


class Remembering(layers.Layer):
    """Adds the number of its calls, in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def call(self, x: Any) -> Any:
        self.calls += 1
        return x + float(self.calls)


def between(layer: layers.Layer) -> keras.Model:
    return odd.graph(lambda x: layers.BatchNormalization()(layer(layers.Conv2D(6, 3)(x))))


def test_a_model_that_writes_to_its_variables_is_refused() -> None:
    model = between(Counting())
    before = model.get_weights()
    with pytest.raises(ModelError, match=r"writes to its variable '.*' while it predicts"):
        sita.adapt(model, "augbn")
    for was, now in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(was, now)


def test_a_model_that_remembers_is_refused() -> None:
    with pytest.raises(sita.SitaError):
        sita.adapt(between(Remembering()), "augbn")


def test_dropout_that_is_always_on_is_refused_and_draws_nothing_from_the_source() -> None:
    dropout = layers.Dropout(0.5, seed=1)
    model = odd.graph(lambda x: dropout(layers.BatchNormalization()(x), training=True))
    before = np.array(dropout.seed_generator.state)
    with pytest.raises(ModelError, match="is called with training=True"):
        sita.adapt(model, "augbn")
    np.testing.assert_array_equal(np.array(dropout.seed_generator.state), before)


def test_saved_weights_are_the_sources(tmp_path: Path) -> None:
    """The source, a fresh model and a loaded adapted model can load them; for the others, the advice works."""
    model, batch, path = nets.functional(), nets.images(2), tmp_path / "it.weights.h5"
    adapted = sita.adapt(model)
    weights, expected = model.get_weights(), adapted.predict_on_batch(batch)
    adapted.save_weights(path)
    adapted.save(tmp_path / "it.keras")
    fresh = nets.functional()
    loaded = keras.saving.load_model(tmp_path / "it.keras")
    for plain in (fresh, sita.unwrap(loaded), model):
        plain.set_weights(zeros(plain))
    with pytest.raises(SharedWeightsError, match="Try: load them into the source model"):
        adapted.load_weights(path)
    for reader in (fresh, loaded, model):
        reader.load_weights(path)
    for before, after, other in zip(weights, model.get_weights(), fresh.get_weights(), strict=True):
        np.testing.assert_array_equal(after, before)
        np.testing.assert_array_equal(other, before)
    for use in (adapted, loaded):
        np.testing.assert_allclose(use.predict_on_batch(batch), expected, rtol=1e-5, atol=1e-6)


def test_source_and_adapted_models_in_one_graph() -> None:
    source, inputs, batch = nets.functional(), keras.Input((16, 16, 3)), nets.images(2)
    adapted, other = sita.adapt(source), sita.adapt(source, "shift")
    other.name = "cautious"
    both = keras.Model(inputs, [source(inputs), adapted(inputs), other(inputs)])
    for found, alone in zip(both.predict_on_batch(batch), (source, adapted, other), strict=True):
        np.testing.assert_allclose(found, alone.predict_on_batch(batch), rtol=1e-5, atol=1e-6)


def extractor(adapted: keras.Model) -> keras.Model:
    """A head on the outputs of an adapted model."""
    inputs = keras.Input((16, 16, 3))
    model = keras.Model(inputs, layers.Dense(2, kernel_initializer="zeros")(adapted(inputs)))
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def train(model: keras.Model, x: np.ndarray) -> list[float]:
    labels = np.random.default_rng(0).normal(size=(len(x), 2)).astype("float32")
    stop = keras.callbacks.EarlyStopping("loss", patience=1, restore_best_weights=True)
    history = model.fit(x, labels, epochs=3, batch_size=4, shuffle=False, verbose=0, callbacks=[stop])
    return history.history["loss"]


def test_an_adapted_model_as_a_frozen_feature_extractor(tmp_path: Path) -> None:
    """The advice of the error; the head learns what it would learn from the adapted model's answers."""
    source, batch = nets.functional(), nets.images(8)
    adapted, weights = sita.adapt(source), source.get_weights()
    answers = adapted.predict(batch, verbose=0)
    with pytest.raises(SharedWeightsError, match=r"trains other layers around it: adapted\.trainable = False"):
        train(extractor(adapted), batch)
    adapted.trainable = False
    model = extractor(adapted)
    inputs = keras.Input((5,))
    head = keras.Model(inputs, layers.Dense(2, kernel_initializer="zeros")(inputs))
    head.compile(keras.optimizers.SGD(0.1), "mse")
    np.testing.assert_allclose(train(model, batch), train(head, answers), rtol=1e-5)
    np.testing.assert_allclose(model.predict(batch, verbose=0), head.predict(answers, verbose=0), rtol=1e-4, atol=1e-5)
    assert len(model.trainable_variables) == 2
    for before, after in zip(weights, source.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)
    np.testing.assert_array_equal(adapted.predict(batch, verbose=0), answers)
    model.save_weights(tmp_path / "it.weights.h5")
    again = extractor(adapted)
    again.load_weights(tmp_path / "it.weights.h5")
    np.testing.assert_allclose(again.predict(batch, verbose=0), model.predict(batch, verbose=0), rtol=1e-5, atol=1e-6)
