"""Every kind of Keras model: λ = 1 is the source, and images are adapted one by one."""

from __future__ import annotations

import keras
import keras_nets as nets
import keras_odd_nets as odd
import numpy as np
import pytest

import sita_adapters as sita


@pytest.mark.parametrize("make", nets.MODELS.values(), ids=nets.MODELS)
def test_every_kind_of_model_is_adapted_image_by_image_and_at_lambda_one_is_the_source(make: object) -> None:
    model, batch = make(), nets.images(3)
    plain, mixed = odd.run(model, batch), "mixed" in str(model.dtype_policy.name)
    np.testing.assert_allclose(odd.run(sita.adapt(model, "source"), batch), plain, rtol=1e-6, atol=1e-7)
    blended = odd.run(sita.adapt(model, "augbn", priors=float(np.nextafter(1.0, 0.0))), batch)
    np.testing.assert_allclose(blended, plain, rtol=2e-2 if mixed else 1e-5, atol=2e-2 if mixed else 1e-5)
    adapted = sita.adapt(model, "augbn", priors=0.5)
    assert len(sita.describe(adapted).adapted) == nets.count_norms(model)
    assert adapted.count_params() == model.count_params()
    together = adapted.predict(batch, verbose=0)
    alone = np.concatenate([odd.run(adapted, batch[i : i + 1]) for i in range(3)])
    tolerance = 3e-2 if mixed else 1e-5
    np.testing.assert_allclose(together, alone, rtol=tolerance, atol=tolerance)
    eager = keras.ops.convert_to_numpy(adapted(batch))
    np.testing.assert_allclose(together, eager, rtol=tolerance, atol=tolerance)
    assert abs(together - plain).max() > 1e-4


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
