"""TENT, MEMO, MixNorm and TTT on Keras models; what is not the same as in PyTorch (tests/contract has the rest)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import keras_nets
import numpy as np
import pytest
from keras import layers
from keras_framework import KerasFramework
from small_network import images

torch = pytest.importorskip("torch")

from direct_baselines import DIRECT, INPUTS, direct_ttt  # noqa: E402

import sita_adapters as sita  # noqa: E402
from sita_adapters.errors import InputError, ModelError, OutputError  # noqa: E402
from sita_workbench.baselines import BASELINES  # noqa: E402
from sita_workbench.baselines.keras_copy import OWN, SOURCE, ModelCopy  # noqa: E402
from sita_workbench.baselines.keras_training import Memo, MixNorm, Tent  # noqa: E402
from sita_workbench.baselines.keras_ttt import TTT  # noqa: E402
from sita_workbench.baselines.settings import MemoSettings, TentSettings, TTTSettings  # noqa: E402
from sita_workbench.methods import make_methods  # noqa: E402
from sita_workbench.models.loaded import LoadedModel  # noqa: E402

HEAD = (np.random.default_rng(3).normal(size=(8, 4)).astype(np.float32), np.zeros(4, np.float32))


def softmax(z: np.ndarray) -> np.ndarray:
    return np.exp(z) / np.exp(z).sum(1, keepdims=True)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [(Tent, TentSettings(steps=2, lr=1e-2)), (Memo, MemoSettings(views=4, optimizer="sgd", lr=0.02))],
)
def test_models_that_return_probabilities_take_the_same_steps(kind: Any, settings: Any) -> None:
    batch, arguments = images(2), () if kind is Tent else (INPUTS,)
    given = kind(KerasFramework().model(activation="softmax"), *arguments, settings=settings)(batch)
    expected = torch.cat([DIRECT[kind.__name__.lower()](image, settings) for image in batch]).detach().numpy()
    np.testing.assert_allclose(given, softmax(expected), rtol=0, atol=1e-5)


def joint(momentum: float = 0.9) -> tuple[keras.Model, keras.Model]:
    """The small network, and a head that takes what its last BatchNorm returns."""
    model = KerasFramework().model()
    for name in ("bn1", "bn2", "bn3"):
        model.get_layer(name).momentum = momentum
    head = keras.Sequential([keras.Input((12, 12, 8)), layers.GlobalAveragePooling2D(), layers.Dense(4)], name="turned")
    head.layers[-1].set_weights(HEAD)
    return model, head


def test_ttt_equals_its_direct_computation_and_leaves_both_models_alone() -> None:
    (model, head), batch = joint(), images(2)
    settings, plain = TTTSettings(steps=2, lr=0.1, batch=4), KerasFramework().run(model, batch)
    before = KerasFramework().fingerprint(model), model.get_weights(), head.get_weights()
    ttt = TTT(model, INPUTS, head=head, shared="bn3", settings=settings)
    given = ttt(batch)
    expected = torch.cat([direct_ttt(image, settings, HEAD, momentum=0.1) for image in batch]).detach().numpy()
    assert np.abs(expected - plain).max() > 0.05
    np.testing.assert_allclose(given, expected, rtol=0, atol=5e-5)
    np.testing.assert_array_equal(ttt(batch[1:]), given[1:])
    after = KerasFramework().fingerprint(model), model.get_weights(), head.get_weights()
    assert after[0] == before[0]
    for was, value in zip([*before[1], *before[2]], [*after[1], *after[2]], strict=True):
        np.testing.assert_array_equal(value, was)


def test_a_model_names_its_head_for_the_benchmark() -> None:
    model, head = joint()
    loaded = LoadedModel("mine", model, INPUTS)
    (method,) = (each for each in make_methods("ttt", "classification") if each.name == "ttt")
    with pytest.raises(ModelError, match=r"model\.ttt"):
        method.prepare(loaded)
    model.ttt = {"head": head, "shared": "bn3"}
    prepared = method.prepare(loaded)
    prepared.settings = TTTSettings(steps=1, lr=0.1, batch=2)
    assert method.predict(loaded, prepared, images(2)).probabilities.shape == (2, 5)


@pytest.mark.parametrize("name", ["functional", "sequential", "shared", "composite", "subclassed", "any_size"])
def test_a_copy_computes_as_the_model_in_evaluation_and_in_training_mode(name: str) -> None:
    """With the statistics of the source, and with those of its input."""
    model, batch = keras_nets.MODELS[name](), keras_nets.images(4)
    copy = ModelCopy(model)
    for statistics, training in ((SOURCE, False), (OWN, True)):
        given, measured = copy.run(copy.start, copy.fixed, keras.ops.convert_to_tensor(batch), statistics)
        assert len(measured) == (keras_nets.count_norms(model) if training else 0)
        weights = model.get_weights()
        expected = keras.ops.convert_to_numpy(model(batch, training=training))
        model.set_weights(weights)
        np.testing.assert_allclose(keras.ops.convert_to_numpy(given), expected, rtol=0, atol=2e-5)


def test_frozen_layers_are_trained_as_in_pytorch() -> None:
    model = KerasFramework().model()
    count = len(model.trainable_variables)
    model.trainable = False
    assert len(Memo(model, INPUTS).copy.trained) == count
    assert len(Tent(model).copy.trained) == 6
    assert not model.trainable_variables


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda model: Tent(keras_nets.own_norm()), ModelError, r"MyNorm.*Try: plain"),
        (lambda model: Tent(sita.adapt(model)), ModelError, "adapted"),
        (lambda model: Tent(keras_nets.Subclassed()), ModelError, "not built"),
        (lambda model: Tent(torch.nn.Linear(1, 1)), ModelError, "another framework"),
        (lambda model: MixNorm(KerasFramework().without_batchnorm(), INPUTS), ModelError, "has none"),
        (lambda model: Tent(KerasFramework().without_batchnorm()), ModelError, "γ or β"),
        (lambda model: Tent(KerasFramework().model("list"))(images(1)), OutputError, "one array of scores"),
        (lambda model: Tent(KerasFramework().model(classes=1))(images(1)), OutputError, r"2 classes.*\(1, 1\)"),
        (lambda model: Memo(KerasFramework().model(dense=True), INPUTS)(images(1)), OutputError, "segmentation"),
        (lambda model: Tent(pooled())(images(1)), InputError, "one value per channel"),
        (lambda model: TTT(model, INPUTS, head=joint()[1], shared="bn4"), ModelError, "Did you mean 'bn"),
        (lambda model: TTT(model, INPUTS, head="turned", shared="bn3"), ModelError, "head: expected a Keras layer"),
        (lambda model: TTT(keras_nets.subclassed(), INPUTS, head=joint()[1], shared="bn"), ModelError, "functional"),
        (lambda model: TTT(*joint()[:1], INPUTS, head=five(), shared="bn3")(images(1)), OutputError, "four rotations"),
    ],
)
def test_models_that_they_cannot_adapt_are_refused(
    make: Callable[[keras.Model], Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make(KerasFramework().model())


def pooled() -> keras.Model:
    inner = [layers.Conv2D(8, 3), layers.GlobalAveragePooling2D(), layers.BatchNormalization(), layers.Dense(3)]
    return keras.Sequential([keras.Input((12, 12, 3)), *inner])


def five() -> keras.Model:
    return keras.Sequential([keras.Input((12, 12, 8)), layers.GlobalAveragePooling2D(), layers.Dense(5)])


@pytest.mark.parametrize("name", ["tent", "memo", "mixnorm"])
def test_the_benchmark_runs_them(name: str) -> None:
    loaded = LoadedModel("small", KerasFramework().model(activation="softmax"), INPUTS)
    prepared = BASELINES[name].prepare(loaded)
    np.testing.assert_allclose(loaded.predict(prepared, images(2)), prepared(images(2)), rtol=0, atol=1e-6)
