"""A small Keras network with any last step, and a check of the default recipe on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import keras_nets as nets
import keras_odd_nets as odd
import keras_reference
import numpy as np
from keras import layers

import sita_adapters as sita


def body(x: Any) -> Any:
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(6, 3)(x)))
    return layers.GlobalAveragePooling2D()(x)


def head(step: Callable[[Any], Any]) -> keras.Model:
    """The features of a small network, and one more step."""
    return odd.graph(lambda x: step(body(x)), classes=None)


def batch_of(count: int = 2) -> np.ndarray:
    return nets.images(count, seed=7)


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-5)


def check_auto(model: keras.Model, kind: str | None, batch: np.ndarray | None = None, **settings: Any) -> None:
    """The default recipe answers as the reference, and otherwise than the source."""
    adapted, batch = sita.adapt(model, **settings), batch_of() if batch is None else batch
    assert sita.describe(adapted).scores == kind
    expected = keras_reference.auto(model, batch, kind)
    close(adapted.predict_on_batch(batch), expected)
    assert abs(expected - model.predict_on_batch(batch)).max() > 1e-4
