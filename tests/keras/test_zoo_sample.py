"""The checks that `make zoo` runs on keras.applications, on one block of MobileNetV2."""

from __future__ import annotations

from typing import Any

import keras
import pytest
from keras import layers

from benchmarks.zoo.keras_checks import check
from benchmarks.zoo.members import Member


def inverted_residual() -> Any:
    """A whole application takes ten seconds: most of it is TensorFlow's, for operations that run once."""
    image = keras.Input((16, 16, 3))
    stem = layers.ReLU(6.0)(layers.BatchNormalization()(layers.Conv2D(4, 3, strides=2, use_bias=False)(image)))
    wide = layers.ReLU(6.0)(layers.BatchNormalization(scale=False)(layers.DepthwiseConv2D(3, padding="same")(stem)))
    block = layers.Add()([stem, layers.BatchNormalization(epsilon=1e-3)(layers.Conv2D(4, 1, use_bias=False)(wide))])
    head = layers.Dense(4, bias_initializer=keras.initializers.Constant(-2.0))  # all in [0, 1] could be probabilities
    return keras.Model(image, head(layers.GlobalAveragePooling2D()(block)))


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="the other backends of Keras round float64 to float32"
)
def test_a_block_is_right() -> None:
    outcome = check(Member("ours", "a block of MobileNetV2", inverted_residual, ((16, 16, 3),)))

    assert outcome.verdict == "right"
    assert outcome.layers == 3
    assert outcome.errors["what adaptation changes"] > 1e-4
