"""Models whose `call` leaves something behind: nothing of it reaches the source, or the next answer."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import keras
import keras_nets as nets
import keras_odd_nets as odd
import numpy as np
import pytest
from keras import layers, ops

import sita_adapters as sita


@keras.saving.register_keras_serializable(package="tests")
class Counting(layers.Layer):
    """Adds the number of its calls, in a variable."""

    def build(self, shape: Any) -> None:
        self.counter = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        self.counter.assign_add(1.0)
        return x + self.counter


@keras.saving.register_keras_serializable(package="tests")
class Centring(layers.Layer):
    """Subtracts a running centre, which each batch moves afterwards."""

    def build(self, shape: Any) -> None:
        self.centre = self.add_weight(shape=(shape[-1],), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        centred = x - self.centre
        self.centre.assign(0.5 * self.centre + 0.5 * ops.mean(x, (0, 1, 2)))
        return centred


class Tally:
    def __init__(self) -> None:
        self.calls, self.seen = 0, np.zeros(1)


class Attributes(layers.Layer):
    """Counts in an attribute, in a list, in a plain object, in an array and in a closure."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.history, self.notes, self.tally = 0, [], {}, Tally()
        calls = 0

        def count() -> int:
            nonlocal calls
            calls += 1
            return calls

        self.count = count

    def call(self, x: Any) -> Any:
        self.calls += 1
        self.history.append(x)
        self.notes[len(self.notes)] = x
        self.last = x
        self.tally.calls += 1
        self.tally.seen += 1
        total = self.calls + len(self.history) + len(self.notes) + self.tally.calls + float(self.tally.seen[0])
        return x + float(total + self.count())

    def state(self) -> list[Any]:
        counts = [self.calls, len(self.history), len(self.notes), hasattr(self, "last"), self.tally.calls]
        return [*counts, *self.tally.seen, self.count.__closure__[0].cell_contents]


def between(layer: layers.Layer) -> keras.Model:
    return odd.graph(lambda x: layers.BatchNormalization()(layer(layers.Conv2D(6, 3)(x))))


@pytest.mark.parametrize("kind", [Counting, Centring])
@pytest.mark.parametrize("settings", [{"recipe": "augbn"}, {"recipe": "ops", "max_rows": 8}], ids=["augbn", "ops"])
def test_variables_that_are_assigned(
    kind: Callable[[], layers.Layer], settings: dict[str, Any], tmp_path: Path
) -> None:
    model, batch = between(kind()), nets.images(3)
    before = model.get_weights()
    adapted = sita.adapt(model, **settings)
    adapted.save(tmp_path / "it.keras")
    again = keras.models.load_model(tmp_path / "it.keras")
    expected = adapted.predict_on_batch(batch)
    for use in 2 * odd.ways(adapted, again):
        np.testing.assert_allclose(use(batch), expected, rtol=1e-5, atol=1e-5)
    for was, now in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(was, now)


def test_a_stateful_source_answers_as_its_next_call_would() -> None:
    model, batch = between(Counting()), nets.images(2)
    adapted = sita.adapt(model, "source")
    for _ in range(2):  # the source's own call moves its state, and that is seen
        answer = adapted.predict_on_batch(batch)
        np.testing.assert_allclose(answer, ops.convert_to_numpy(model(batch)), rtol=1e-5, atol=1e-5)


def in_sequence(layer: layers.Layer) -> keras.Model:
    norm, head = layers.BatchNormalization(), layers.Dense(nets.CLASSES)
    return nets.settle(keras.Sequential([keras.Input((16, 16, 3)), layer, norm, layers.GlobalAveragePooling2D(), head]))


@pytest.mark.parametrize("around", [between, in_sequence])
def test_attributes_lists_and_objects_that_are_changed(around: Callable[[layers.Layer], keras.Model]) -> None:
    layer, batch = Attributes(), nets.images(3)
    model = around(layer)
    state = layer.state()
    adapted = sita.adapt(model, "augbn")
    assert layer.state() == state
    expected = adapted.predict_on_batch(batch)
    for use in 2 * odd.ways(adapted):
        np.testing.assert_allclose(use(batch), expected, rtol=1e-5, atol=1e-5)
        assert layer.state() == state
    near = sita.adapt(model, "bn", priors=1 - 1e-7).predict_on_batch(batch)
    np.testing.assert_allclose(near, ops.convert_to_numpy(model(batch)), rtol=1e-4, atol=1e-4)


def test_threads_do_not_see_what_the_others_leave_behind() -> None:
    layer, batch = Attributes(), nets.images(1)
    adapted = sita.adapt(between(layer), "augbn")
    state, expected = layer.state(), ops.convert_to_numpy(adapted(batch))
    with ThreadPoolExecutor(4) as pool:
        for answer in pool.map(lambda _: ops.convert_to_numpy(adapted(batch)), range(40)):
            np.testing.assert_array_equal(answer, expected)
    assert layer.state() == state


def test_a_layer_that_was_changed_is_seen() -> None:
    """Values that are assigned to the source's variables, in a compiled model, too."""
    model, batch = nets.sequential(), nets.images(2)
    adapted = sita.adapt(model, "source")
    for scale in (1, 3):
        kernel = model.layers[0].kernel
        kernel.assign(np.full(kernel.shape, scale, "float32"))
        for use in odd.ways(adapted):
            np.testing.assert_allclose(use(batch), odd.run(model, batch), rtol=1e-5, atol=1e-5)
