"""The beginning of one network of the zoo, by the checks that `make zoo` runs on all of it."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from benchmarks.zoo.keras_checks import check
from benchmarks.zoo.members import Member


def first_blocks() -> Any:
    """A whole application takes ten seconds: most of it is TensorFlow's, for graphs that run once."""
    whole = keras.applications.MobileNet(input_shape=(32, 32, 3), alpha=0.25, weights=None, classes=4)
    features = whole.get_layer("conv_pw_2_relu").output
    return keras.Model(whole.input, keras.layers.GlobalAveragePooling2D()(features))


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="the other backends of Keras round float64 to float32"
)
def test_a_family_is_right() -> None:
    outcome = check(Member("ours", "mobilenet", "MobileNet, first blocks", first_blocks, ((32, 32, 3),)))

    assert outcome.verdict == "right"
    assert outcome.layers == 5
    assert outcome.errors["what adaptation changes"] > 1e-4
