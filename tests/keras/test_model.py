"""The adapted model as a Keras user handles it, and what it refuses."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import keras
import keras_nets as nets
import numpy as np
import pytest
from keras import layers

import sita_adapters as sita
from sita_adapters.errors import InputError, ModelError, RecipeError


def test_the_backend_is_the_one_that_was_asked_for() -> None:
    assert keras.backend.backend() == os.environ["KERAS_BACKEND"]


@pytest.mark.parametrize(
    "name",
    ["nested", "subclassed", *(pytest.param(n, marks=pytest.mark.slow) for n in ("composite", "shared", "own_norm"))],
)
def test_saved_models_reload_adapted(name: str, tmp_path: Path) -> None:
    model, batch = nets.MODELS[name](), nets.images(3)
    adapted = sita.adapt(model, "ops", priors=(0.5, 0.8, 1.0), inputs="imagenet")
    expected = adapted.predict(batch, verbose=0)
    adapted.save(tmp_path / "adapted.keras")
    again = keras.models.load_model(tmp_path / "adapted.keras")
    np.testing.assert_allclose(again.predict(batch, verbose=0), expected, rtol=1e-5, atol=1e-6)
    ours, theirs = sita.describe(adapted), sita.describe(again)
    assert (theirs.recipe, theirs.table, theirs.scores) == (ours.recipe, ours.table, ours.scores)
    assert len(theirs.adapted) == len(ours.adapted)
    assert abs(expected - model.predict(batch, verbose=0)).max() > 1e-4


def test_adapted_models_can_be_pickled() -> None:
    adapted, batch = sita.adapt(nets.functional(), "ops"), nets.images(2)
    again = pickle.loads(pickle.dumps(adapted))
    np.testing.assert_allclose(again.predict(batch, verbose=0), adapted.predict(batch, verbose=0), rtol=1e-5, atol=1e-6)


def test_evaluate_and_compile_work() -> None:
    model, batch = nets.functional(), nets.images(6)
    adapted = sita.adapt(model, "ops")
    labels = adapted.predict(batch, verbose=0).argmax(1)
    adapted.compile(loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    assert adapted.evaluate(batch, labels, verbose=0)[1] == 1.0


if keras.backend.backend() != "torch":  # there is no XLA

    def test_jit_compile_gives_the_same_answer() -> None:
        model, batch = nets.functional(), nets.images(3)
        expected = keras.ops.convert_to_numpy(sita.adapt(model, "ops")(batch))
        adapted = sita.adapt(model, "ops")
        adapted.compile(jit_compile=True)
        np.testing.assert_allclose(adapted.predict(batch, verbose=0), expected, rtol=1e-4, atol=1e-5)


def test_a_function_of_the_callers_cannot_be_stored() -> None:
    with pytest.raises(RecipeError, match=r"cannot be stored.*Try: save the source model"):
        sita.adapt(nets.functional(), "augbn", augment=[lambda x: 0.5 * x]).get_config()


@pytest.mark.parametrize("name", ["functional", "composite", "subclassed", "shared"])
def test_a_calibrated_model_comes_back_although_its_layers_have_other_names(name: str, tmp_path: Path) -> None:
    """Keras makes up new names for the layers that a loaded model makes."""
    model, batch = nets.MODELS[name](), nets.images(24)
    adapted = sita.adapt(model, sita.calibrate(model, batch))
    expected = adapted.predict(batch, verbose=0)
    assert abs(expected - model.predict(batch, verbose=0)).max() > 1e-3
    adapted.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(batch, verbose=0), expected, rtol=1e-5, atol=1e-6)
    assert sita.describe(again).recipe.rule.layers.keys() == {*sita.describe(again).adapted}


def test_channels_first_is_adapted_or_refused() -> None:
    inputs = keras.Input((3, 16, 16))
    x = layers.Conv2D(6, 3, data_format="channels_first")(inputs)
    x = layers.ReLU()(layers.BatchNormalization(axis=1)(x))
    x = layers.GlobalAveragePooling2D(data_format="channels_first")(x)
    first = nets.settle(keras.Model(inputs, layers.Dense(nets.CLASSES)(x)))
    if keras.backend.backend() == "tensorflow":
        with pytest.raises(InputError, match="channels first"):
            sita.adapt(first, "ops")
        return
    last = nets.sequential()
    last.set_weights(first.get_weights())
    batch = nets.images(2)
    expected = sita.adapt(last, "ops").predict(batch, verbose=0)
    answer = sita.adapt(first, "ops").predict(np.moveaxis(batch, -1, 1).copy(), verbose=0)
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)


def unbuilt() -> keras.Model:
    return nets.Subclassed()


def two_images() -> keras.Model:
    one, two = keras.Input((8, 8, 3)), keras.Input((8, 8, 3))
    return keras.Model([one, two], layers.BatchNormalization()(layers.Add()([one, two])))


class Overriding(keras.Model):
    """Functional, with a `call` of its own."""

    def call(self, inputs: object, training: bool | None = None, mask: object = None) -> object:
        return 2 * super().call(inputs, training=training, mask=mask)


def overriding() -> keras.Model:
    image = keras.Input((8, 8, 3))
    return Overriding(image, layers.BatchNormalization()(image))


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (unbuilt, ModelError, "not built"),
        (two_images, InputError, "one image input"),
        (overriding, ModelError, "`call` of its own"),
        (layers.BatchNormalization, ModelError, "keras.Model"),
    ],
    ids=["unbuilt", "two images", "own call", "layer"],
)
def test_models_that_cannot_be_adapted(make: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        sita.adapt(make(), "ops")


if keras.backend.backend() == "tensorflow":  # JAX compiles for every size, torch not at all

    def test_batch_sizes_do_not_retrace() -> None:
        traces = []

        def counted(x: object) -> object:
            traces.append(x)
            return 0.5 * x

        adapted = sita.adapt(nets.functional(), "augbn", augment=[counted])
        adapted.predict_on_batch(nets.images(1))
        traces.clear()
        for size in (2, 3, 5, 7):
            adapted.predict_on_batch(nets.images(size))
        assert len(traces) <= 1  # one for any size


class Unconfigured(layers.Layer):
    """A layer with a constructor argument that Keras cannot save."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function
        self.norm = layers.BatchNormalization()

    def call(self, x: object) -> object:
        return self.norm(self.function(x))


def test_layers_that_cannot_be_saved_can_be_adapted(tmp_path: Path) -> None:
    inputs = keras.Input((16, 16, 3))
    x = layers.Lambda(lambda x: 2 * x)(inputs)
    x = Unconfigured(lambda x: x + 1)(layers.Conv2D(6, 3)(x))
    model = nets.settle(keras.Model(inputs, layers.Dense(nets.CLASSES)(layers.GlobalAveragePooling2D()(x))))
    batch = nets.images(3)
    adapted = sita.adapt(model, "augbn", priors=0.5)
    together = adapted.predict(batch, verbose=0)
    np.testing.assert_allclose(together[:1], adapted.predict(batch[:1], verbose=0), rtol=1e-5, atol=1e-6)
    assert abs(together - model.predict(batch, verbose=0)).max() > 1e-4
    for cannot in (model, adapted):
        with pytest.raises(Exception, match=r"serializ|get_config|NotImplemented"):
            cannot.save(tmp_path / "it.keras")


def test_layers_inside_models_are_named_by_their_path() -> None:
    adapted = sita.adapt(nets.nested(), "ops", layers="middle")
    assert sita.describe(adapted).adapted[0].startswith("middle/inner/")
    assert len(sita.describe(adapted).skipped) == 1


def test_a_layer_that_runs_outside_a_call_of_the_adapted_model_is_an_error() -> None:
    adapted = sita.adapt(nets.functional(), "ops")
    with pytest.raises(ModelError, match="outside a call"):
        adapted.call_layer().hidden.clone(nets.images(1))
