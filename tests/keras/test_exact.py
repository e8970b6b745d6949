"""The adapted Keras model against an independent reference, on whichever backend KERAS_BACKEND names."""

from __future__ import annotations

import keras
import keras_nets as nets
import numpy as np
import pytest
import reference

import sita_adapters as sita

PRIORS = (0.5, 0.75, 1.0)
VIEWS = [lambda x, k=k: np.rot90(x, k, axes=(1, 2)) for k in (0, 1, 3)]


def run_rows(model: keras.Model, image: np.ndarray, rows: list[reference.Row]) -> list[np.ndarray]:
    """Every row has a clone of the model; layer by layer its moving statistics are overwritten by the blend."""
    clones = [nets.clone(model) for _ in rows]
    inputs = [np.ascontiguousarray(VIEWS[row.view](image[None])) for row in rows]
    names = [layer.name for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
    for name in names:
        moments = []
        for clone, x in zip(clones, inputs, strict=True):
            layer = clone.get_layer(name)
            seen = keras.ops.convert_to_numpy(keras.Model(clone.input, layer.input)(x)).astype(np.float64)
            by_channel = np.moveaxis(seen, layer.axis, 0).reshape(seen.shape[layer.axis], -1)
            moments.append((by_channel.mean(1), by_channel.var(1)))
        for clone, row in zip(clones, rows, strict=True):
            if row.prior == 1:
                continue
            mean, variance = reference.target_statistics(
                np.stack([moments[q][0] for q in row.weights]),
                np.stack([moments[q][1] for q in row.weights]),
                list(row.weights.values()),
            )
            layer = clone.get_layer(name)
            for variable, target in ((layer.moving_mean, mean), (layer.moving_variance, variance)):
                variable.assign(row.prior * keras.ops.convert_to_numpy(variable) + (1 - row.prior) * target)
    return [keras.ops.convert_to_numpy(clone(x))[0] for clone, x in zip(clones, inputs, strict=True)]


@pytest.mark.parametrize("recipe", ["augbn", "ops", "ops_shared"])
def test_adapted_equals_the_reference(recipe: str) -> None:
    model = nets.functional(softmax=False)
    batch = nets.images(2)
    if recipe == "augbn":
        adapted, (rows, answers) = sita.adapt(model, "augbn", priors=0.5), (reference.augbn_rows(0.5, 2), [0])
    else:
        adapted = sita.adapt(model, recipe, priors=PRIORS, top_k=2)
        rows, answers = (reference.ops_rows if recipe == "ops" else reference.shared_rows)(PRIORS, 2)
    answer = adapted.predict(batch, verbose=0)
    for image, said in zip(batch, answer, strict=True):
        outputs = run_rows(model, image, rows)
        candidates = np.stack([outputs[row] for row in answers]).astype(np.float64)
        expected = reference.vote(candidates, 2) if len(answers) > 1 else candidates[0]
        np.testing.assert_allclose(said, expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("make", nets.MODELS.values(), ids=nets.MODELS)
def test_lambda_one_is_the_source_model(make: object) -> None:
    model, batch = make(), nets.images(3)
    plain = model.predict(batch, verbose=0)
    almost = float(np.nextafter(1.0, 0.0))
    np.testing.assert_allclose(sita.adapt(model, "source").predict(batch, verbose=0), plain, rtol=1e-6, atol=1e-7)
    blended = sita.adapt(model, "augbn", priors=almost).predict(batch, verbose=0)
    tolerance = 2e-2 if model.compute_dtype == "bfloat16" or "mixed" in str(model.dtype_policy.name) else 1e-5
    np.testing.assert_allclose(blended, plain, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("recipe", sita.RECIPES)
def test_an_images_answer_does_not_depend_on_its_batch(recipe: str) -> None:
    adapted, batch = sita.adapt(nets.functional(), recipe), nets.images(4)
    together = adapted.predict(batch, verbose=0)
    alone = np.concatenate([adapted.predict_on_batch(batch[i : i + 1]) for i in range(4)])
    eager = keras.ops.convert_to_numpy(adapted(batch))
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(eager, together, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", nets.MODELS.values(), ids=nets.MODELS)
def test_every_kind_of_model_is_adapted_image_by_image(make: object) -> None:
    model, batch = make(), nets.images(3)
    count = nets.count_norms(model)
    adapted = sita.adapt(model, "augbn", priors=0.5)
    assert len(sita.describe(adapted).adapted) == count
    assert adapted.count_params() == model.count_params()
    together = adapted.predict(batch, verbose=0)
    alone = np.concatenate([adapted.predict_on_batch(batch[i : i + 1]) for i in range(3)])
    tolerance = 3e-2 if "mixed" in str(model.dtype_policy.name) else 1e-5
    np.testing.assert_allclose(together, alone, rtol=tolerance, atol=tolerance)
    assert abs(together - model.predict(batch, verbose=0)).max() > 1e-4


@pytest.mark.parametrize("recipe", ["ops", "ops_shared", "ensemble"])
def test_a_model_with_and_one_without_softmax_agree(recipe: str) -> None:
    ending, plain = nets.functional(softmax=True), nets.functional(softmax=False)
    plain.set_weights(ending.get_weights())
    batch = nets.images(6)
    probabilities = sita.adapt(ending, recipe)
    assert sita.describe(probabilities).scores == "probabilities"
    assert sita.describe(sita.adapt(plain, recipe)).scores == "logits"
    z = sita.adapt(plain, recipe).predict(batch, verbose=0)
    expected = np.exp(z - z.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    np.testing.assert_allclose(probabilities.predict(batch, verbose=0), expected, rtol=1e-4, atol=1e-6)


def test_nan_in_one_image_reaches_no_other() -> None:
    model, batch = nets.functional(), nets.images(3)
    adapted = sita.adapt(model)
    spoilt = batch.copy()
    spoilt[1] = np.nan
    clean, dirty = adapted.predict(batch, verbose=0), adapted.predict(spoilt, verbose=0)
    # XLA's maximum on the CPU takes NaN for 0: what the plain model loses in its ReLUs, the adapted one loses, too.
    assert np.isnan(dirty[1]).all() or not np.isnan(model.predict(spoilt, verbose=0)[1]).any()
    np.testing.assert_allclose(dirty[[0, 2]], clean[[0, 2]], rtol=1e-5, atol=1e-6)


def test_a_layer_on_integers_is_adapted_as_on_their_floats() -> None:
    """Keras' own layer converts what it gets; nothing may be rounded to the integers before."""
    model = nets.settle(
        keras.Sequential([keras.Input((8, 8, 3)), keras.layers.BatchNormalization(), keras.layers.GlobalMaxPooling2D()])
    )
    whole = keras.Input((8, 8, 3), dtype="uint8")
    twin = keras.Model(whole, model.layers[1](model.layers[0](whole)))
    batch = np.random.default_rng(0).integers(0, 256, size=(2, 8, 8, 3)).astype("uint8")
    expected = sita.adapt(model, "augbn").predict_on_batch(batch.astype("float32"))
    np.testing.assert_allclose(sita.adapt(twin, "augbn").predict_on_batch(batch), expected, rtol=1e-5, atol=1e-5)
