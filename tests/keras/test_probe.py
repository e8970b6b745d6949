"""What the probe establishes when a Keras model is adapted: the axis of the images, and that they are independent."""

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
from sita_adapters.errors import InputError


def features(x: Any) -> Any:
    return layers.GlobalAveragePooling2D()(layers.BatchNormalization()(layers.Conv2D(6, 3)(x)))


def graph(step: Callable[[Any], Any]) -> keras.Model:
    """A network whose features go through one more step."""
    return odd.graph(lambda x: layers.Dense(nets.CLASSES)(step(features(x))), classes=None)


class Returning(keras.Model):
    """A network whose output is arranged by a function of the scores."""

    def __init__(self, arrange: Callable[[Any], Any]) -> None:
        super().__init__()
        self.conv, self.bn, self.pool = (
            layers.Conv2D(6, 3),
            layers.BatchNormalization(),
            layers.GlobalAveragePooling2D(),
        )
        self.head, self.arrange = layers.Dense(nets.CLASSES), arrange

    def call(self, x: Any) -> Any:
        return self.arrange(self.head(self.pool(self.bn(self.conv(x)))))


def returning(arrange: Callable[[Any], Any]) -> keras.Model:
    return odd.built(Returning(arrange))


class Noise(layers.Layer):
    """Draws random numbers whenever it runs."""

    def __init__(self, seeded: bool) -> None:
        super().__init__()
        self.seed = keras.random.SeedGenerator(3) if seeded else None

    def call(self, x: Any) -> Any:
        return x + keras.random.normal(ops.shape(x), seed=self.seed)


def before_a_norm(step: Callable[[Any], Any]) -> keras.Model:
    return odd.graph(lambda x: layers.BatchNormalization()(step(x)))


def sort(scores: Any, by: Any) -> Any:
    return ops.take(scores, ops.argsort(by), axis=0)


MIXES = "Images influence each other|batch of layer"
REFUSED = {
    "subtracts the batch's mean": (lambda: graph(layers.Lambda(lambda x: x - ops.mean(x, 0))), MIXES),
    "subtracts it before a norm": (lambda: before_a_norm(lambda x: x - ops.mean(x, 0)), MIXES),
    "reorders its batch": (lambda: graph(layers.Lambda(lambda x: ops.flip(x, 0))), MIXES),
    "reorders before a norm": (
        lambda: odd.graph(lambda x: ops.flip(layers.BatchNormalization()(ops.flip(x, 0)), 0)),
        MIXES,
    ),
    "sorts its batch": (lambda: returning(lambda scores: sort(scores, scores[:, 0])), MIXES),
    "sorts it downwards": (lambda: returning(lambda scores: sort(scores, -scores[:, 0])), MIXES),
    "divides by the largest": (lambda: returning(lambda scores: scores / ops.max(scores)), MIXES),
    "divides by the smallest": (lambda: returning(lambda scores: scores / ops.min(scores)), MIXES),
    "the largest": (lambda: returning(lambda scores: {"logits": scores, "top": ops.max(scores)}), "whole batch"),
    "one number for the batch": (lambda: returning(lambda scores: (scores, ops.mean(scores))), "whole batch"),
    "a number of Python's": (lambda: returning(lambda scores: {"logits": scores, "n": int(scores.shape[0])}), "at n"),
    "a list of Python's": (lambda: returning(lambda z: [z[i] for i in range(z.shape[0])]), "different parts"),
    "draws with a seed of its own": (lambda: before_a_norm(Noise(True)), "not deterministic"),
    "nothing": (lambda: returning(lambda scores: {"logits": scores, "loss": None}), "None at loss"),
    "takes two images alone": (
        lambda: returning(lambda scores: ops.reshape(ops.reshape(scores, (2, nets.CLASSES)), (-1, nets.CLASSES))),
        "fails on random images",
    ),
    "merges its batch": (lambda: returning(lambda scores: ops.reshape(scores, (-1,))), "entry"),
}
if keras.backend.backend() != "jax":  # where Keras has no such models
    REFUSED["draws without a seed"] = (lambda: before_a_norm(Noise(False)), "not deterministic")


@pytest.mark.parametrize(("make", "words"), REFUSED.values(), ids=REFUSED)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_models_that_violate_the_contract(make: Callable[[], keras.Model], words: str) -> None:
    with pytest.raises(sita.SitaError, match=words):
        sita.adapt(make(), "augbn")


@keras.saving.register_keras_serializable(package="tests")
class Arranged(keras.Model):
    """Scores, the same with the images on the second axis, and a table that has nothing to do with them."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.bn, self.pool = layers.BatchNormalization(), layers.GlobalAveragePooling2D()
        self.head = layers.Dense(nets.CLASSES)

    def call(self, x: Any) -> Any:
        scores = self.head(self.pool(self.bn(x)))
        return {"logits": scores, "time_first": ops.transpose(scores), "table": ops.arange(4.0)}


@pytest.mark.parametrize("recipe", ["augbn", "ops"])
def test_constants_and_time_first_outputs_also_in_a_loaded_model(recipe: str, tmp_path: Path) -> None:
    model, batch = odd.built(Arranged()), nets.images(3)
    adapted = sita.adapt(model, recipe)
    adapted.save(tmp_path / "it.keras")
    again = keras.models.load_model(tmp_path / "it.keras")
    scores = adapted.predict_on_batch(batch)["logits"]
    for use in odd.ways(adapted, again):
        answer = use(batch)
        np.testing.assert_allclose(answer["logits"], scores, rtol=1e-5, atol=1e-6)
        assert answer["time_first"].shape == (nets.CLASSES, 3)
        if recipe == "augbn":
            np.testing.assert_allclose(answer["time_first"], answer["logits"].T, rtol=1e-6)
        np.testing.assert_array_equal(answer["table"], np.arange(4.0))


class Patches(keras.Model):
    """Cuts an image into patches of 48², and has to get whole ones."""

    def __init__(self) -> None:
        super().__init__()
        self.bn, self.pool, self.head = layers.BatchNormalization(), layers.GlobalAveragePooling2D(), layers.Dense(4)

    def compute_output_shape(self, shape: Any) -> Any:
        return (shape[0], 4)

    def call(self, x: Any) -> Any:
        height, width = x.shape[1:3]
        patches = ops.reshape(self.bn(x), (-1, height // 48, 48, width // 48, 48, 3))
        return self.head(self.pool(ops.reshape(patches, (-1, height, width, 3))))


def test_an_example_tells_the_size() -> None:
    inner, inputs = Patches(), keras.Input((None, None, 3), name="image")
    inner(nets.images(1, 48, 48))
    nets.settle(inner)
    batch = nets.images(2, 96, 48)
    for model, example in (
        (keras.Model(inputs, inner(inputs)), batch),
        (keras.Model([inputs], inner(inputs)), [batch[:1]]),
        (keras.Model({"image": inputs}, inner(inputs)), {"image": batch}),
    ):
        with pytest.raises(InputError, match=r"sita.adapt\(model, example=images\)"):
            sita.adapt(model, "augbn")
        adapted = sita.adapt(model, "augbn", example=example)
        near = sita.adapt(model, "augbn", priors=1 - 1e-7, example=example)
        assert abs(odd.run(adapted, example) - odd.run(model, example)).max() > 1e-4
        np.testing.assert_allclose(odd.run(near, example), odd.run(model, example), rtol=1e-4, atol=1e-4)
    with pytest.raises(InputError, match=r"example: expected .*\(None, None, None, 3\); received shape \(48, 3\)"):
        sita.adapt(model, "augbn", example=batch[0, 0])
    with pytest.raises(InputError, match="received 2 arrays"):
        sita.adapt(model, "augbn", example=[batch, batch])


def test_an_example_of_whole_numbers() -> None:
    """A subclassed model is built for floats; it may do something else with bytes, as the example tells."""

    class Bytes(Returning):
        def call(self, x: Any) -> Any:
            return super().call(ops.cast(x, "float32") / (255 if "int" in str(x.dtype) else 1))

    model, batch = Bytes(lambda scores: scores), np.arange(2 * 16 * 16 * 3, dtype="uint8").reshape(2, 16, 16, 3)
    odd.built(model)
    expected = ops.convert_to_numpy(model(batch))
    with pytest.raises(InputError, match=r"Expected images of float32; received .*uint8.*example=images"):
        sita.adapt(model, "source")(batch)
    adapted = sita.adapt(model, "source", example=batch)
    np.testing.assert_allclose(odd.run(adapted, batch), expected, rtol=1e-5, atol=1e-6)
    near = sita.adapt(model, "augbn", priors=1 - 1e-7, example=batch).predict_on_batch(batch)
    np.testing.assert_allclose(near, expected, rtol=1e-4, atol=1e-4)


def test_tiny_features_are_no_reason_to_refuse() -> None:
    """Random weights may make features so small that rounding hides what changing the statistics does."""
    layers = [keras.layers.Rescaling(1e-8), keras.layers.BatchNormalization(), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((8, 8, 3)), *layers, keras.layers.Dense(4)])
    assert sita.describe(sita.adapt(model)).rows == 2


def test_image_layers_do_not_switch_the_layers_after_them_to_training() -> None:
    """Keras' Resizing does so in a call that leaves `training` open. `predict` does not."""
    inner = [layers.Resizing(8, 8), layers.Conv2D(4, 3), layers.BatchNormalization(), layers.GlobalAveragePooling2D()]
    model = keras.Sequential([keras.Input((16, 16, 3)), *inner, layers.Dense(3)])
    batch = np.random.default_rng(0).uniform(size=(2, 16, 16, 3)).astype("float32")
    adapted = sita.adapt(model, "augbn", priors=1 - 1e-7)
    np.testing.assert_allclose(adapted.predict(batch, verbose=0), model.predict(batch, verbose=0), rtol=1e-4, atol=1e-4)
    expected = ops.convert_to_numpy(model(batch, training=False))
    np.testing.assert_allclose(ops.convert_to_numpy(adapted(batch)), expected, rtol=1e-4, atol=1e-4)
