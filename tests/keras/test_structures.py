"""Layers that are hard to reach, masks, replicas, odd images: adapted everywhere, or refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import keras_nets as nets
import keras_odd_nets as odd
import numpy as np
import pytest
from keras import layers, ops

import sita_adapters as sita
from sita_adapters.errors import InputError, ModelError

NEAR = 1 - 1e-7
"""A prior at which the adapted model answers as the source, up to rounding, but through every step of adaptation."""


def check_near_source(model: keras.Model, batch: Any, tolerance: float = 1e-4, **settings: Any) -> None:
    adapted = sita.adapt(model, "augbn", priors=NEAR, **settings)
    expected = odd.run(model, batch)
    for use in odd.ways(adapted):
        answer = use(batch)
        keras.tree.map_structure(
            lambda one, other: np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance), answer, expected
        )


# Shared parts


class Backbone(keras.Model):
    """A graph with three stages, which knows the outputs of each, as KerasHub's do."""

    def __init__(self) -> None:
        inputs = keras.Input((32, 32, 3))
        x, stages = inputs, {}
        for stage in ("P1", "P2", "P3"):
            x = layers.Conv2D(4, 3, strides=2, padding="same", name=f"{stage}_conv")(x)
            x = stages[stage] = layers.ReLU()(layers.BatchNormalization(name=f"{stage}_bn")(x))
        super().__init__(inputs, x)
        self.pyramid_outputs = stages


@keras.saving.register_keras_serializable(package="tests")
class Pyramid(layers.Layer):
    """Makes its layers when it is built, in dicts and lists."""

    def build(self, shapes: Any) -> None:
        self.laterals = {level: layers.Conv2D(4, 1, name=f"lateral_{level}") for level in shapes}
        self.norms = [layers.BatchNormalization(name=f"norm_{level}") for level in shapes]
        for level, norm in zip(sorted(shapes), self.norms, strict=True):
            self.laterals[level].build(shapes[level])
            norm.build((*shapes[level][:-1], 4))

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        levels = zip(sorted(inputs), self.norms, strict=True)
        return {level: norm(self.laterals[level](inputs[level]), training=training) for level, norm in levels}


@keras.saving.register_keras_serializable(package="tests")
class Head(layers.Layer):
    """Is applied at every level."""

    def build(self, shape: Any) -> None:
        self.steps = [layers.Conv2D(4, 3, padding="same"), layers.BatchNormalization(), layers.Conv2D(2, 1)]
        for step in self.steps:
            step.build(shape)

    def call(self, x: Any, training: bool | None = None) -> Any:
        for step in self.steps:
            x = step(x)
        return ops.reshape(x, (-1, x.shape[1] * x.shape[2], 2))


class Detector(keras.Model):
    """A graph over a part of a backbone, all of which it holds, too."""

    def __init__(self) -> None:
        encoder, inputs = Backbone(), keras.Input((32, 32, 3))
        levels = {name: encoder.pyramid_outputs[name] for name in ("P1", "P2")}
        features = keras.Model(encoder.inputs[0], levels, name="features")
        head = Head(name="head")
        pyramid = Pyramid(name="pyramid")(features(inputs))
        super().__init__(inputs, ops.concatenate([head(pyramid[level]) for level in sorted(pyramid)], axis=1))
        self.image_encoder, self.features, self.head = encoder, features, head


def test_a_detector_that_holds_more_than_it_runs(tmp_path: Path) -> None:
    model, batch = nets.settle(Detector()), nets.images(3, 32, 32)
    adapted = sita.adapt(model, "augbn", priors=0.5)
    assert len(sita.describe(adapted).adapted) == 5  # two of the backbone's three, two of the pyramid, the head's
    check_near_source(model, batch)
    together = adapted.predict_on_batch(batch)
    assert abs(together - model.predict_on_batch(batch)).max() > 1e-3
    np.testing.assert_allclose(together[1:2], adapted.predict_on_batch(batch[1:2]), rtol=1e-4, atol=1e-5)
    adapted.save(tmp_path / "it.keras")
    again = keras.models.load_model(tmp_path / "it.keras")
    np.testing.assert_allclose(again.predict_on_batch(batch), together, rtol=1e-5, atol=1e-6)


def test_graphs_that_share_a_backbone() -> None:
    encoder, inputs = Backbone(), keras.Input((32, 32, 3))
    shallow = keras.Model(encoder.inputs[0], encoder.pyramid_outputs["P1"], name="shallow")
    deep = keras.Model(encoder.inputs[0], encoder.pyramid_outputs["P3"], name="deep")
    pool = layers.GlobalAveragePooling2D()
    model = nets.settle(keras.Model(inputs, [pool(shallow(inputs)), pool(deep(inputs)), pool(encoder(inputs))]))
    check_near_source(model, nets.images(2, 32, 32))
    assert len(sita.describe(sita.adapt(model, "augbn")).adapted) == 3


# Layers that a clone cannot reach


class Hiding(keras.Model):
    """Runs a BatchNorm that is held in some way, after one that is an attribute."""

    def __init__(self, hold: Callable[[Hiding, layers.Layer], Callable[[Any], Any]]) -> None:
        super().__init__()
        self.seen, self.pool, self.head = layers.BatchNormalization(), layers.GlobalAveragePooling2D(), layers.Dense(4)
        self.step = hold(self, layers.BatchNormalization(name="hidden"))

    def call(self, x: Any) -> Any:
        return self.head(self.pool(self.step(self.seen(x))))


def as_attribute(model: Hiding, norm: layers.Layer) -> None:
    model.norm = norm


def in_closure(model: Hiding, norm: layers.Layer) -> Callable[[Any], Any]:
    as_attribute(model, norm)
    return lambda x: ops.relu(model.norm(x))


def in_object(model: Hiding, norm: layers.Layer) -> Callable[[Any], Any]:
    model.held = SimpleNamespace(norm=norm)
    return lambda x: ops.relu(norm(x))


def as_method(model: Hiding, norm: layers.Layer) -> Callable[[Any], Any]:
    as_attribute(model, norm)
    norm.build((None, 16, 16, 3))
    call = norm.call
    return lambda x: ops.relu(call(x))


@pytest.mark.parametrize("hold", [in_closure, in_object, as_method])
def test_norms_that_a_clone_cannot_reach_are_named(hold: Any) -> None:
    model = odd.built(Hiding(hold))
    with pytest.raises(ModelError, match=r"runs hidden .*closure"):
        sita.adapt(model, "augbn")


# Masks


@pytest.mark.parametrize("wrap", [lambda norm: norm, layers.TimeDistributed])
def test_masks_are_refused(wrap: Callable[[Any], Any]) -> None:
    inputs = keras.Input((12, 6))
    x = layers.BatchNormalization(name="first")(inputs)
    x = wrap(layers.BatchNormalization(name="masked"))(layers.Masking()(x))
    model = nets.settle(keras.Model(inputs, x))
    with pytest.raises(InputError, match=r"received a mask.*; or layers=(lambda .*\])") as caught:
        sita.adapt(model, "bn")
    advised = eval(re.search(r"layers=(lambda .*?\])", str(caught.value))[1])
    assert sita.describe(sita.adapt(model, "bn", layers=advised)).adapted == ("first",)


# Images of every kind


def test_a_constant_image_is_answered() -> None:
    batch = nets.images(3)
    batch[1] = 7.0
    check_near_source(nets.sequential(), batch)
    assert np.isfinite(sita.adapt(nets.sequential(), "ops").predict_on_batch(batch)).all()


@pytest.mark.parametrize("policy", ["mixed_float16", "float16", "bfloat16"])
def test_half_precision(policy: str) -> None:
    if keras.backend.backend() == "torch" and policy == "float16":
        pytest.skip("torch has few operations in float16 on the CPU")
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        model = odd.graph(lambda x: layers.BatchNormalization()(layers.Conv2D(6, 3)(x)))
        check_near_source(model, nets.images(2), tolerance=3e-2)
    finally:
        keras.config.set_dtype_policy(before)


class Cell(layers.Layer):
    """A recurrent step that normalises its state."""

    state_size = 6

    def __init__(self) -> None:
        super().__init__()
        self.mix, self.norm = layers.Dense(6), layers.BatchNormalization()

    def build(self, shape: Any) -> None:
        self.mix.build((None, shape[-1] + 6))
        self.norm.build((None, 6))

    def call(self, x: Any, states: Any, training: bool | None = None) -> Any:
        y = self.norm(self.mix(ops.concatenate([x, states[0]], -1)), training=training)
        return y, [y]


def recurrent(unroll: bool) -> keras.Model:
    inputs = keras.Input((16, 16, 3))
    x = layers.RNN(Cell(), unroll=unroll)(layers.Reshape((16, 48))(inputs))
    return nets.settle(keras.Model(inputs, layers.Dense(4)(layers.BatchNormalization()(x))))


def test_norms_inside_a_recurrence() -> None:
    check_near_source(recurrent(unroll=True), nets.images(2))
    if keras.backend.backend() != "torch":  # which has no loop of a graph
        with pytest.raises(ModelError, match=r"inner graph.*Try: .*unroll=True"):
            sita.adapt(recurrent(unroll=False)).predict_on_batch(nets.images(2))


if keras.backend.backend() == "tensorflow":

    @pytest.mark.parametrize(("name", "recipe"), [("functional", "ops"), ("time_distributed", "augbn")])
    def test_a_replica_without_images(name: str, recipe: str) -> None:
        """Of the last batch, a replica of a MirroredStrategy may get none; its graph is for any number."""
        import tensorflow as tf

        convolve = tf.function(lambda x: tf.nn.conv2d(x, tf.zeros((3, 3, 3, 8)), 1, "SAME"))
        if convolve(tf.zeros((0, 4, 4, 3))).shape[-1] != 8:
            pytest.skip("TensorFlow's oneDNN convolution of an empty batch has the wrong shape on this processor")
        adapted, batch = sita.adapt(nets.MODELS[name](), recipe), nets.images(3)
        replica = tf.function(adapted, input_signature=[tf.TensorSpec((None, 16, 16, 3))])
        assert replica(batch[:0]).shape == (0, nets.CLASSES)
        np.testing.assert_allclose(replica(batch), adapted(batch), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="code that XLA fuses for the CPU may take NaN for 0")
@pytest.mark.parametrize(("recipe", "size"), [("augbn", 1e18), ("ops", 1e20)])
def test_variances_that_overflow_are_never_taken_for_numbers(recipe: str, size: float) -> None:
    adapted = sita.adapt(nets.sequential(), recipe)
    ordinary, huge = nets.images(2)
    huge = np.float32(size) * huge
    for use in odd.ways(adapted):
        answers = use(np.stack([ordinary, huge]))
        assert np.isnan(answers[1]).all()
        np.testing.assert_allclose(answers[0], use(ordinary[None])[0], rtol=1e-5, atol=1e-5)
