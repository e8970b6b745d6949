"""What counts as class scores in a Keras model's output, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import keras_nets as nets
import keras_odd_nets as odd
import keras_reference
import numpy as np
import pytest
from keras import layers, ops
from keras_heads import batch_of, check_auto, close, head

import sita_adapters as sita
from sita_adapters.errors import OutputError

BACKEND = keras.backend.backend()


SOFTMAX = {
    "Lambda": lambda x: layers.Lambda(lambda z: ops.softmax(z, axis=-1))(layers.Dense(5)(x)),
    "average of two heads": lambda x: layers.Average()([layers.Dense(5, activation="softmax")(x) for _ in range(2)]),
    "clip": lambda x: ops.clip(layers.Dense(5, activation="softmax")(x), 1e-7, 1.0),
}


@pytest.mark.parametrize("step", SOFTMAX.values(), ids=SOFTMAX)
def test_probabilities_however_they_are_made(step: Callable[[Any], Any]) -> None:
    check_auto(head(step), "probabilities")


def test_a_mean_over_pixels() -> None:
    def pixels(x: Any) -> Any:
        return ops.mean(layers.Conv2D(5, 1, activation="softmax")(layers.BatchNormalization()(x)), axis=(1, 2))

    check_auto(odd.graph(pixels, classes=None), "probabilities")


def test_values_that_are_no_distribution_have_no_confidence() -> None:
    model = head(layers.Dense(5, activation="hard_sigmoid"))
    check_auto(model, None)
    with pytest.raises(OutputError, match="Try: scores='sigmoid' or 'sigmoid_probabilities'"):
        sita.adapt(model, "ops")
    check_auto(model, "sigmoid", scores="sigmoid")


class Logits(keras.Model):
    """Returns logits; its softmax layer, made last, is for those who ask."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = layers.Conv2D(6, 3), layers.BatchNormalization()
        self.pool, self.head, self.soft = layers.GlobalAveragePooling2D(), layers.Dense(5), layers.Softmax()

    def call(self, x: Any, probabilities: bool = False) -> Any:
        z = self.head(self.pool(ops.relu(self.norm(self.conv(x)))))
        return self.soft(z) if probabilities else z


class Gated(keras.Model):
    """Its head is made before a gate with a sigmoid."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.conv, self.norm = layers.Dense(5), layers.Conv2D(6, 3), layers.BatchNormalization()
        self.pool, self.gate = layers.GlobalAveragePooling2D(), layers.Dense(6, activation="sigmoid")

    def call(self, x: Any) -> Any:
        y = self.pool(ops.relu(self.norm(self.conv(x))))
        return self.head(y * self.gate(y))


@pytest.mark.parametrize("kind", [Logits, Gated])
def test_logits_whatever_layer_was_made_last(kind: type[keras.Model]) -> None:
    check_auto(odd.built(kind()), "logits")


if BACKEND != "tensorflow":  # whose convolutions have their channels first on a GPU only

    @pytest.mark.parametrize("last", ["softmax", "logits", "permuted"])
    def test_channels_first(last: str) -> None:
        inputs, first = keras.Input((3, 16, 16)), {"data_format": "channels_first"}
        x = layers.ReLU()(layers.BatchNormalization(axis=1)(layers.Conv2D(6, 3, **first)(inputs)))
        output = layers.Conv2D(4, 1, **first)(x)
        if last == "softmax":
            output = layers.Softmax(axis=1)(output)
        elif last == "permuted":
            output = layers.Conv2D(4, 1, activation="softmax")(layers.Permute((2, 3, 1))(x))
            output = layers.Permute((3, 1, 2))(output)
        model, batch = nets.settle(keras.Model(inputs, output)), np.moveaxis(batch_of(), -1, 1).copy()
        kind = "logits" if last == "logits" else "probabilities"
        adapted = sita.adapt(model)
        assert sita.describe(adapted).scores == kind
        outer = keras.Model(inputs, layers.Permute((2, 3, 1))(model.output))  # the reference has classes last
        expected = np.moveaxis(keras_reference.auto(outer, batch, kind), -1, 1)
        close(adapted.predict_on_batch(batch), expected)
