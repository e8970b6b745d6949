"""The axes of images: what needs no views takes inputs of any rank; views need to know where the channels are."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import keras
import keras_nets as nets
import keras_reference
import numpy as np
import pytest
import reference
from keras import layers, ops

import sita_adapters as sita
from sita_adapters.errors import InputError, ModelError, OutputError

BACKEND = keras.backend.backend()


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=2e-5)


def inputs_of(*shape: int) -> np.ndarray:
    random = np.random.default_rng(5)
    return (random.normal(size=(3, *shape)) * random.uniform(0.5, 3, (3, *[1] * len(shape)))).astype("float32")


def points(x: Any) -> Any:
    """Each point on its own, and their maximum."""
    return ops.max(layers.ReLU()(layers.BatchNormalization()(layers.Dense(8)(x))), axis=1)


SHAPES: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "waveforms": (
        (64, 2),
        lambda x: layers.GlobalAveragePooling1D()(layers.ReLU()(layers.BatchNormalization()(layers.Conv1D(6, 5)(x)))),
    ),
    "points": ((40, 3), points),
    "features": ((12,), lambda x: layers.ReLU()(layers.BatchNormalization()(layers.Dense(8)(x)))),
    "volumes": (
        (8, 8, 8, 1),
        lambda x: layers.GlobalAveragePooling3D()(layers.ReLU()(layers.BatchNormalization()(layers.Conv3D(4, 3)(x)))),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_inputs_of_any_rank_are_adapted_without_views(name: str) -> None:
    shape, body = SHAPES[name]
    inputs, batch = keras.Input(shape), inputs_of(*shape)
    model = nets.settle(keras.Model(inputs, layers.Dense(5)(body(inputs))))
    close(sita.adapt(model).predict_on_batch(batch), keras_reference.auto(model, batch, "logits"))
    for recipe, prior in (("shift", reference.GENTLE), ("bn", 16 / 17)):
        expected = np.concatenate(keras_reference.adapted_rows(model, batch, prior))
        close(sita.adapt(model, recipe).predict_on_batch(batch), expected)


def test_views_of_inputs_without_space_are_refused_and_the_advice_works() -> None:
    inputs = keras.Input((12,))
    model = nets.settle(keras.Model(inputs, layers.Dense(5)(SHAPES["features"][1](inputs))))
    with pytest.raises(InputError, match=r"Views need images .*Try: a recipe without views \('auto', 'shift', 'bn'\)"):
        sita.adapt(model, "augbn")


def spectrograms(axis: int, *first: Callable[[Any], Any], dense: bool = False) -> keras.Model:
    """A network that normalizes one axis of its input first: each frequency band, perhaps."""
    inputs = keras.Input((12, 16, 3))
    x = layers.BatchNormalization(axis=axis)(inputs)
    for step in first:
        x = step(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = x if dense else layers.GlobalAveragePooling2D(data_format="channels_last")(x)
    return nets.settle(keras.Model(inputs, layers.Dense(5)(x)))


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_a_later_layer_tells_where_the_channels_are(axis: int) -> None:
    model, batch = spectrograms(axis, layers.Conv2D(8, 3, padding="same")), inputs_of(12, 16, 3)
    for name, flipped in (("vflip", 1), ("hflip", 2)):
        found = sita.adapt(model, "augbn", priors=0.5, augment=[name]).predict_on_batch(batch)
        by_hand = sita.adapt(model, "augbn", priors=0.5, augment=[lambda x, a=flipped: ops.flip(x, a)])
        close(found, by_hand.predict_on_batch(batch))
        other = sita.adapt(model, "augbn", priors=0.5, augment=[lambda x, a=3 - flipped: ops.flip(x, a)])
        assert abs(found - other.predict_on_batch(batch)).max() > 1e-4


@pytest.mark.parametrize("axis", [1, 2])
def test_scores_of_every_position_have_their_classes_last(axis: int) -> None:
    model, batch = spectrograms(axis, layers.Conv2D(8, 3, padding="same"), dense=True), inputs_of(12, 16, 3)
    close(sita.adapt(model).predict_on_batch(batch), keras_reference.auto(model, batch, "logits"))


@pytest.mark.parametrize("axis", [1, 2])
def test_if_no_layer_tells_views_are_refused_and_the_class_axis_is_asked_for(axis: int) -> None:
    model, batch = spectrograms(axis, layers.Dense(8), dense=True), inputs_of(12, 16, 3)
    with pytest.raises(InputError, match=r"normalizes another axis than the last.*Try: a recipe without views"):
        sita.adapt(model, "augbn")
    with pytest.raises(OutputError, match=r"Try: class_axis="):
        sita.adapt(model, "auto", combine="vote")
    assert sita.describe(sita.adapt(model)).scores is None
    adapted = sita.adapt(model, class_axis=-1)
    assert sita.describe(adapted).scores == "logits"
    close(adapted.predict_on_batch(batch), keras_reference.auto(model, batch, "logits"))


class Switch(layers.Layer):
    """Normalizes if a switch is on, which belongs to the layer and not to the images."""

    def __init__(self, choose: Callable[..., Any]) -> None:
        super().__init__(name="switch")
        self.norm, self.choose = layers.BatchNormalization(name="inside"), choose

    def build(self, shape: Any) -> None:
        self.norm.build(shape)
        self.on = self.add_weight(shape=(), initializer="ones", trainable=False, name="on")

    def call(self, x: Any) -> Any:
        return self.choose(self, x)


def switched(choose: Callable[..., Any]) -> keras.Model:
    inputs = keras.Input((12, 16, 3))
    x = layers.BatchNormalization(name="outside")(layers.Conv2D(6, 3)(inputs))
    switch = Switch(choose)
    x = layers.GlobalAveragePooling2D()(layers.ReLU()(switch(x)))
    model = nets.settle(keras.Model(inputs, layers.Dense(5)(x)))
    switch.on.assign(1.0)
    return model


def branch(layer: Switch, x: Any) -> Any:
    return ops.cond(layer.on > 0.5, lambda: layer.norm(x), lambda: 2.0 * x)


if BACKEND != "torch":  # which runs one of the branches, as any code

    def test_a_batchnorm_in_a_branch_is_refused_and_the_advice_works() -> None:
        batch = inputs_of(12, 16, 3)
        with pytest.raises(ModelError, match=r"runs inside an inner graph.*ops\.where for a branch") as caught:
            sita.adapt(switched(branch)).predict_on_batch(batch)
        model = switched(lambda layer, x: ops.where(layer.on > 0.5, layer.norm(x), 2.0 * x))
        close(sita.adapt(model).predict_on_batch(batch), keras_reference.auto(model, batch, "logits"))
        advised = eval(re.search(r"layers=(lambda .*?\])", str(caught.value)).group(1))
        model = switched(branch)
        adapted = sita.adapt(model, layers=advised)
        assert sita.describe(adapted).skipped == ("switch/inside",)
        adapted.predict_on_batch(batch)


@pytest.mark.skipif(BACKEND == "tensorflow", reason="convolutions with channels first need a GPU")
def test_colors_of_videos_are_on_the_channel_axis() -> None:
    """Three frames of three channels: the answers do not depend on which of the two comes first."""

    def model(order: str) -> keras.Model:
        first = order == "channels_first"
        x = keras.Input((3, 3, 8, 8) if first else (3, 8, 8, 3))
        y = layers.BatchNormalization(axis=1 if first else -1)(layers.Conv3D(4, 2, data_format=order)(x))
        y = layers.GlobalAveragePooling3D(data_format=order)(layers.ReLU()(y))
        return keras.Model(x, layers.Dense(5)(y))

    last, first = model("channels_last"), model("channels_first")
    first.set_weights(last.get_weights())
    videos = np.random.default_rng(0).random((2, 3, 8, 8, 3)).astype("float32")
    changes: dict[str, Any] = {"augment": "color", "inputs": "imagenet", "seed": 1}
    expected = sita.adapt(last, "augbn", **changes).predict(videos, verbose=0)
    close(sita.adapt(first, "augbn", **changes).predict(np.moveaxis(videos, -1, 1), verbose=0), expected)
