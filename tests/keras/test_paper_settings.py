"""A batch that shares its statistics, and views drawn for every image, on Keras."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
from keras_nets import functional, images

import sita_adapters as sita
from sita_adapters.views import content_seed


def test_predict_and_a_saved_model_share_too(tmp_path: Path) -> None:
    batch = images(5)
    adapted = sita.adapt(functional(), "augbn", share="batch")
    expected = adapted.predict(batch, verbose=0)
    assert np.abs(expected - sita.adapt(functional(), "augbn").predict(batch, verbose=0)).max() > 1e-4
    adapted.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(batch, verbose=0), expected, rtol=1e-5, atol=1e-6)


def test_views_are_drawn_by_content_also_after_loading(tmp_path: Path) -> None:
    model, batch = functional(), images(2)
    adapted = sita.adapt(model, "augbn", augment="blur", n_views=1, resample=True, seed=3)
    together = adapted.predict(batch, verbose=0)
    for place in range(2):
        own = sita.adapt(model, "augbn", augment="blur", n_views=1, seed=content_seed(batch[place], 3))
        expected = own.predict(batch[place : place + 1], verbose=0)
        np.testing.assert_allclose(together[place : place + 1], expected, rtol=1e-5, atol=1e-6)
    adapted.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(batch, verbose=0), together, rtol=1e-5, atol=1e-6)
