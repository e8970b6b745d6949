"""Models that could be adapted without effect, with images mixed, or with layouts and scores misread."""

from __future__ import annotations

from pathlib import Path

import keras
import keras_nets as nets
import keras_odd_nets as odd
import numpy as np
import pytest
from keras import layers, ops

import sita_adapters as sita
from sita_adapters.errors import InputError, ModelError


def answers(model: keras.Model, batch: np.ndarray, **settings: object) -> np.ndarray:
    return sita.adapt(model, "augbn", priors=0.5, **settings).predict_on_batch(batch)


def check_image_by_image(model: keras.Model, batch: np.ndarray) -> np.ndarray:
    """Adapted, with an effect, and every image by itself."""
    adapted = sita.adapt(model, "augbn", priors=0.5)
    together = adapted.predict_on_batch(batch)
    np.testing.assert_allclose(together[1:2], adapted.predict_on_batch(batch[1:2]), rtol=1e-4, atol=1e-5)
    assert abs(together - model.predict_on_batch(batch)).max() > 1e-4
    return together


def test_bound_methods_and_partials_run_the_adapted_layers() -> None:
    model, batch = odd.built(odd.BoundMethods()), nets.images(3)
    every = check_image_by_image(model, batch)
    names = sita.describe(sita.adapt(model, "source")).adapted
    assert len(names) == 3
    for name in names:
        others = [other for other in names if other != name]
        assert abs(every - answers(model, batch, layers=others)).max() > 1e-4
    near = sita.adapt(model, "augbn", priors=1 - 1e-7)
    for use in odd.ways(near):
        np.testing.assert_allclose(use(batch), odd.run(model, batch), rtol=1e-4, atol=1e-4)


def test_layers_that_are_not_called_are_reported() -> None:
    with pytest.raises(ModelError, match="calls none of its 2 adapted layers"):
        sita.adapt(odd.built(odd.ByFunction()), "ops")
    with pytest.warns(sita.SitaWarning, match="does not call 1 of its 2 adapted layers.*: batch_normalization"):
        sita.adapt(odd.built(odd.ByFunction(half=True)), "ops")
    sita.adapt(odd.built(odd.ByFunction(half=True)), "ops", layers="called")
    sita.adapt(odd.built(odd.ByFunction()), "source")  # has no effect to miss


def test_folds_are_followed_or_refused() -> None:
    check_image_by_image(odd.graph(lambda x: odd.folds_rows(x, time_first=False)), nets.images(3))
    with pytest.raises(ModelError, match=r"batch of layer folded .* folds time first"):
        sita.adapt(odd.graph(lambda x: odd.folds_rows(x, time_first=True)), "ops")
    with pytest.raises(InputError, match="fails on random images"):
        sita.adapt(odd.graph(odd.folds_unevenly), "augbn")


def test_time_steps_count_as_space() -> None:
    """TimeDistributed(BatchNorm) gives what BatchNorm over the whole clip gives."""
    batch = nets.images(2)
    stepwise = odd.graph(layers.TimeDistributed(layers.BatchNormalization()))
    whole = odd.graph(layers.BatchNormalization())
    whole.set_weights(stepwise.get_weights())
    np.testing.assert_allclose(answers(stepwise, batch), answers(whole, batch), rtol=1e-5, atol=1e-6)
    assert type(sita.unwrap(sita.adapt(stepwise, "ops")).layers[1]) is layers.TimeDistributed


def test_a_permutation_inside_does_not_turn_the_images() -> None:
    """Views are of the images as they come in, whatever the layers see."""
    batch = nets.images(2)

    def permuted(x: object) -> object:
        x = layers.Permute((3, 1, 2))(layers.Conv2D(6, 3)(x))
        return layers.Permute((2, 3, 1))(layers.BatchNormalization(axis=1)(x))

    plain = odd.graph(lambda x: layers.BatchNormalization()(layers.Conv2D(6, 3)(x)))
    inside = odd.graph(permuted)
    inside.set_weights(plain.get_weights())
    np.testing.assert_allclose(answers(inside, batch), answers(plain, batch), rtol=1e-4, atol=1e-5)
    first = keras.Input((3, 16, 16))
    for permute in (layers.Permute((2, 3, 1)), lambda x: ops.transpose(x, (0, 2, 3, 1))):
        before = keras.Model(first, plain(permute(first)))
        with pytest.raises(InputError, match="Try: a recipe without views"):
            sita.adapt(before, "augbn")
        found = sita.adapt(before).predict_on_batch(np.moveaxis(batch, -1, 1))
        np.testing.assert_allclose(found, sita.adapt(plain).predict_on_batch(batch), rtol=1e-4, atol=1e-5)


def test_frozen_layers_and_models_stay_so_in_unwrap() -> None:
    model = nets.functional()
    model.get_layer("bn2").trainable = False
    flags = [variable.trainable for variable in model.variables]
    adapted = sita.adapt(model, "ops")
    for value in (False, True):
        adapted.trainable = value
        assert [variable.trainable for variable in model.variables] == flags
    plain = sita.unwrap(sita.adapt(model, "ops"))
    assert [layer.trainable for layer in plain.layers] == [layer.trainable for layer in model.layers]
    assert len(plain.trainable_variables) == len(model.trainable_variables)
    model.trainable = False
    plain = sita.unwrap(sita.adapt(model, "ops"))
    assert not plain.trainable
    plain.trainable = True
    assert len(plain.trainable_variables) == len(model.variables) - 2 * nets.count_norms(model)


@pytest.mark.parametrize(("policy", "dtype"), [("mixed_float16", "float32"), ("float32", "float64")])
def test_the_dtype_policy_of_the_day_does_not_matter(policy: str, dtype: str) -> None:
    """The source has its head in float32, or all of it in float64."""
    if dtype == "float64" and keras.backend.backend() == "jax":
        pytest.skip("JAX has float64 only where it is switched on")
    inputs, batch = keras.Input((16, 16, 3), dtype=dtype), nets.images(2).astype(dtype)
    x = layers.BatchNormalization(dtype=dtype)(layers.Conv2D(6, 3, dtype=dtype)(inputs))
    x = layers.Dense(nets.CLASSES, dtype=dtype)(layers.GlobalAveragePooling2D(dtype=dtype)(x))
    model = nets.settle(keras.Model(inputs, x))
    expected = sita.adapt(model, "ops")(batch) if dtype == "float32" else None
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        adapted = sita.adapt(model, "ops")
        answer = adapted(batch)
    finally:
        keras.config.set_dtype_policy(before)
    assert keras.backend.standardize_dtype(answer.dtype) == dtype == adapted.outputs[0].dtype
    if expected is not None:
        np.testing.assert_array_equal(ops.convert_to_numpy(answer), ops.convert_to_numpy(expected))


if keras.backend.backend() == "tensorflow":  # JAX's goes through it, torch's fails for plain models, too

    def test_an_exported_model_serves_the_same_answers(tmp_path: Path) -> None:
        """By Keras' own method."""
        import tensorflow

        adapted, batch = sita.adapt(nets.subclassed(), "augbn"), nets.images(3)
        adapted.export(tmp_path / "served", verbose=False)
        served = tensorflow.saved_model.load(tmp_path / "served")
        for size in (1, 3):
            expected = ops.convert_to_numpy(adapted(batch[:size]))
            np.testing.assert_allclose(served.serve(batch[:size]).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_norms_without_a_training_argument() -> None:
    check_image_by_image(odd.frozen(), nets.images(2))


class Loss(keras.losses.Loss):
    """Not registered, and it cannot be saved."""

    def call(self, y_true: object, y_pred: object) -> object:
        return ops.mean(y_pred)

    def get_config(self) -> dict[str, object]:
        raise NotImplementedError


def test_saved_models_know_nothing_of_the_sources_training(tmp_path: Path) -> None:
    inner, batch = nets.sequential(), nets.images(2)
    inputs = keras.Input((16, 16, 3))
    model = keras.Model(inputs, inner(inputs))
    model.save(tmp_path / "plain.keras")
    for compiled in (inner, model):
        compiled.compile("sgd", Loss())
    adapted = sita.adapt(model, "ops")
    assert model.compiled
    adapted.save(tmp_path / "it.keras")
    again = keras.models.load_model(tmp_path / "it.keras")
    expected = ops.convert_to_numpy(adapted(batch))
    np.testing.assert_allclose(ops.convert_to_numpy(again(batch)), expected, rtol=1e-5, atol=1e-6)
    assert (tmp_path / "it.keras").stat().st_size < 2 * (tmp_path / "plain.keras").stat().st_size
    with pytest.raises(ModelError, match=r"adapted.save\('model.keras'\)"):
        adapted.save(tmp_path / "it.h5")


@pytest.mark.filterwarnings("error:The structure of `inputs`")
def test_inputs_and_outputs_keep_their_structure() -> None:
    plain, batch = nets.functional(softmax=False), nets.images(2)
    expected = answers(plain, batch)
    named = keras.Input((16, 16, 3), name="image")
    for model, given in (
        (keras.Model(plain.inputs, plain.outputs), ops.convert_to_tensor(batch)),
        (keras.Model(plain.inputs, plain.outputs), [batch]),
        (keras.Model({"image": named}, {"scores": plain(named)}), {"image": batch}),
    ):
        adapted = sita.adapt(model, "augbn", priors=0.5)
        answer, like = adapted(given), model(given)
        assert type(answer) is type(like)
        if isinstance(answer, dict):
            answer = answer["scores"]
        np.testing.assert_allclose(ops.convert_to_numpy(answer), expected, rtol=1e-5, atol=1e-6)


def test_an_input_may_have_the_name_of_any_layer_of_an_adapted_model() -> None:
    for layer in sita.adapt(nets.sequential(), "ops").layers:
        inputs = keras.Input((16, 16, 3), name=layer.name)
        assert sita.describe(sita.adapt(keras.Model(inputs, nets.sequential()(inputs)), "ops")).adapted


def test_layers_come_in_the_sources_order() -> None:
    for model in (nets.subclassed(), odd.built(odd.BoundMethods()), odd.built(odd.HeadFirst())):
        plain = sita.unwrap(sita.adapt(model, "augbn"))
        assert [layer.name for layer in nets.walk(plain)] == [layer.name for layer in nets.walk(model)]


def test_a_call_on_more_than_images_is_refused() -> None:
    batch, gain = nets.images(2), np.ones((2, 1), "float32")
    recording = odd.GainedFromTheStart()
    recording(batch, gain=gain)
    with pytest.raises(InputError, match="built with x, gain"):
        sita.adapt(recording, "augbn")
    model = odd.Gained()
    model(batch, gain=gain)
    with pytest.raises(InputError, match="also received gain"):
        sita.adapt(model, "augbn")(batch, gain=gain)


def test_preprocessing_follows_the_source() -> None:
    batch = nets.images(3)
    model = odd.graph(lambda x: layers.BatchNormalization()(layers.Normalization(name="pixels")(x)))
    adapted = sita.adapt(model, "source")
    for scale in (1, 5):
        model.get_layer("pixels").adapt(scale * batch + 1)
        expected = ops.convert_to_numpy(model(batch))
        np.testing.assert_allclose(ops.convert_to_numpy(adapted(batch)), expected, rtol=1e-5, atol=1e-6)
