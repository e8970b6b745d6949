"""Methods of a model besides `call`: what the source's class changes, and what an adapted model refuses."""

from __future__ import annotations

from collections.abc import Callable
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


class Classifier(keras.Model):
    """A task model: a graph, and a `predict` that scales the pixels first, as KerasHub's do."""

    def __init__(self) -> None:
        inner = nets.sequential()
        super().__init__(inner.inputs[0], inner.outputs[0])

    def predict(self, x: Any, **settings: Any) -> Any:
        return super().predict(x / 255, **settings)


class Stepper(nets.Subclassed):
    """Has its preprocessing in the steps."""

    def predict_step(self, data: Any) -> Any:
        return super().predict_step(data / 255)

    def test_step(self, data: Any) -> Any:
        return super().test_step(data)


class Caller(nets.Subclassed):
    def __call__(self, x: Any, **settings: Any) -> Any:
        return super().__call__(x / 255, **settings)


class GraphCaller(keras.Model):
    """A graph with a `__call__` of its own, to stand in another model."""

    def __call__(self, x: Any, *args: Any, **settings: Any) -> Any:
        return 2 * super().__call__(x, *args, **settings)


def patched() -> keras.Model:
    model = nets.sequential()
    model.predict_on_batch = lambda x: 2 * x
    return model


def around_graph_caller() -> keras.Model:
    inner, inputs = nets.sequential(), keras.Input((16, 16, 3))
    return keras.Model(inputs, GraphCaller(inner.inputs, inner.outputs[0])(inputs))


@pytest.mark.parametrize(
    ("make", "methods"),
    [
        (Classifier, "its own predict,"),
        (lambda: odd.built(Stepper()), "its own predict_step, test_step,"),
        (lambda: odd.built(Caller()), "its own __call__,"),
        (patched, "its own predict_on_batch,"),
        (around_graph_caller, "`__call__` of its own"),
    ],
    ids=["predict", "steps", "call", "patched", "inside"],
)
def test_methods_that_would_be_lost_are_named(make: Callable[[], keras.Model], methods: str) -> None:
    with pytest.raises(ModelError, match=methods) as caught:
        sita.adapt(make(), "ops")
    assert "Try: " in str(caught.value)


def test_what_the_error_advises_for_subclasses_works() -> None:
    model, batch = odd.built(Stepper()), nets.images(2)
    with pytest.raises(ModelError, match=r"keras.Sequential\(\[keras.Input\(shape\), model\]\)"):
        sita.adapt(model, "source")
    adapted = sita.adapt(keras.Sequential([keras.Input((16, 16, 3)), model]), "source")
    expected = ops.convert_to_numpy(model(batch))
    np.testing.assert_allclose(adapted.predict(batch, verbose=0), expected, rtol=1e-5, atol=1e-6)


class Trained(nets.Subclassed):
    """Is trained in its own way, which concerns no adapted model."""

    def train_step(self, data: Any) -> Any:
        raise NotImplementedError


def test_a_training_step_of_its_own_does_not_matter() -> None:
    assert sita.describe(sita.adapt(odd.built(Trained()), "augbn")).adapted


def quantizable() -> keras.Model:
    """A dense layer of a size that int8 is worth it for."""
    return odd.graph(lambda x: layers.BatchNormalization()(layers.Dense(8, name="mix")(x)))


def test_quantized_models() -> None:
    """The adapted model refuses; of a source that was quantized since, the next call does."""
    model, batch = quantizable(), nets.images(2)
    adapted = sita.adapt(model, "augbn")
    with pytest.raises(SharedWeightsError, match="quantize the source model"):
        adapted.quantize("int8")
    adapted.compile(loss="mse")

    def evaluate(x: Any) -> Any:
        return adapted.evaluate(x, np.zeros((2, nets.CLASSES)), verbose=0)

    uses = (adapted, adapted.predict, adapted.predict_on_batch, evaluate)
    for use in uses[1:]:  # compiled
        use(batch)
    model.quantize("int8")
    for use in uses:
        with pytest.raises(ModelError, match="adapt it again"):
            use(batch)
    expected = odd.run(model, batch)
    np.testing.assert_allclose(sita.adapt(model, "source").predict_on_batch(batch), expected, rtol=1e-5, atol=1e-6)
    tuned = quantizable()
    adapted = sita.adapt(tuned, "augbn")
    tuned.get_layer("mix").enable_lora(2)  # an adapter for fine-tuning
    with pytest.raises(ModelError, match="adapt it again"):
        adapted(batch)


def test_a_loaded_model_has_a_source_of_its_own(tmp_path: Path) -> None:
    """Which takes weights from a file, and through `unwrap`."""
    model, batch = nets.sequential(), nets.images(2)
    adapted = sita.adapt(model, "augbn")
    adapted.save(tmp_path / "it.keras")
    adapted.save_weights(tmp_path / "it.weights.h5")
    expected = adapted.predict_on_batch(batch)
    for again in (keras.models.clone_model(adapted), keras.models.load_model(tmp_path / "it.keras")):
        plain = sita.unwrap(again)
        plain.set_weights([0 * weight for weight in plain.get_weights()])
        assert abs(again.predict_on_batch(batch) - expected).max() > 1e-3
        again.load_weights(tmp_path / "it.weights.h5")
        np.testing.assert_allclose(again.predict_on_batch(batch), expected, rtol=1e-5, atol=1e-6)
        with pytest.raises(SharedWeightsError, match=r"sita.unwrap\(adapted\)"):
            again.set_weights(again.get_weights())
    np.testing.assert_array_equal(adapted.predict_on_batch(batch), expected)


def test_layers_are_asked_of_the_source() -> None:
    model = nets.functional()
    adapted = sita.adapt(model, "augbn")
    with pytest.raises(ValueError, match=r"sita.unwrap\(adapted\).get_layer\('bn2'\)"):
        adapted.get_layer("bn2")
    assert sita.unwrap(adapted).get_layer("bn2").gamma is model.get_layer("bn2").gamma
    assert adapted.get_layer(index=1) is adapted.call_layer()
