"""Models that the library was not designed for: the reference's answers, or a SitaError that says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import keras_nets as nets
import keras_odd_nets as odd
import keras_reference
import numpy as np
import pytest
from keras import layers, ops

import sita_adapters as sita
from sita_adapters.errors import ModelError, SitaWarning

BACKEND = keras.backend.backend()


def batch_of(count: int = 3) -> np.ndarray:
    return nets.images(count, seed=7)


def close(found: Any, expected: Any, tolerance: float = 2e-4) -> None:
    keras.tree.map_structure(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance / 10), found, expected
    )


def features(x: Any) -> Any:
    return layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(6, 3, padding="same")(x)))


# The default recipe, against the reference


def test_nested_graphs() -> None:
    model, batch = nets.nested(), batch_of()
    expected = keras_reference.auto(model, batch, "logits")
    for use in odd.ways(sita.adapt(model)):
        close(use(batch), expected)


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_few_rows_at_once(rows: int) -> None:
    model, batch = nets.functional(), batch_of()
    expected = keras_reference.auto(model, batch, "probabilities")
    for use in odd.ways(sita.adapt(model, max_rows=rows)):
        close(use(batch), expected)


def several(**parts: Callable[[Any], Any]) -> keras.Model:
    """A model that returns scores and functions of them by name."""
    inputs = keras.Input((16, 16, 3))
    scores = layers.Dense(5, name="scores_of")(layers.GlobalAveragePooling2D()(features(inputs)))
    return nets.settle(keras.Model(inputs, {name: part(scores) for name, part in parts.items()}))


def test_names_keep_their_order_and_meaning(tmp_path: Path) -> None:
    """Eagerly, compiled, and after saving."""
    model = several(z=lambda s: s, a=lambda s: 3 * s, m=ops.exp)
    adapted, batch = sita.adapt(model, output="z"), batch_of()
    adapted.save(tmp_path / "it.keras")
    again = keras.saving.load_model(tmp_path / "it.keras")
    expected = keras_reference.auto(model, batch, "logits", scores=lambda output: output["z"], selects=True)
    plain = odd.run(model, batch)
    for use in odd.ways(adapted, again):
        found = use(batch)
        assert sorted(found) == sorted(plain)
        close(dict(sorted(found.items())), dict(sorted(expected.items())))
    assert list(adapted(batch)) == list(again(batch)) == list(model(batch))


def test_mixed_precision() -> None:
    model, batch = nets.mixed(), batch_of()
    adapted = sita.adapt(model)
    assert sita.describe(adapted).scores == "probabilities"
    expected = keras_reference.auto(model, batch, "probabilities")
    for use in odd.ways(adapted):
        np.testing.assert_allclose(use(batch), expected, atol=0.05)


# Parts that are compiled already


class Compiling(keras.Model):
    """Runs one BatchNorm itself, and one inside a function that may be compiled."""

    def __init__(self, hold: Callable[[Compiling], Any] | None = None) -> None:
        super().__init__()
        self.seen, self.norm = layers.BatchNormalization(), layers.BatchNormalization(name="inner")
        self.pool, self.head = layers.GlobalAveragePooling2D(), layers.Dense(4)
        self.norm.build((None, 16, 16, 3))  # what a tf.function builds keeps its initial values there
        self.fast = hold(self) if hold else self.slow

    def slow(self, x: Any) -> Any:
        return ops.relu(self.norm(x))

    def call(self, x: Any) -> Any:
        return self.head(self.pool(self.fast(self.seen(x))))


def check_refused(model: keras.Model) -> None:
    """Refused, also after the compiled part has seen every batch size; without the compilation it works."""
    for size in (1, 2, 3, 4):
        model(batch_of(size))
    nets.settle(model)
    with pytest.raises(ModelError, match=r"compil|closure.*Try: "):
        sita.adapt(model)
    plain = odd.built(Compiling())
    plain.set_weights(model.get_weights())
    close(sita.adapt(plain).predict_on_batch(batch_of()), keras_reference.auto(plain, batch_of(), "logits"))


if BACKEND == "tensorflow":
    import tensorflow as tf

    class Decorated(Compiling):
        """Compiles a method."""

        def __init__(self) -> None:
            super().__init__(lambda model: None)

        @tf.function
        def fast_method(self, x: Any) -> Any:
            return ops.relu(self.norm(x))

        def call(self, x: Any) -> Any:
            return self.head(self.pool(self.fast_method(self.seen(x))))

    @tf.function
    def apply_norm(norm: layers.Layer, x: Any) -> Any:
        return ops.relu(norm(x))

    INNER = {
        "a decorated method": Decorated,
        "a compiled closure": lambda: Compiling(lambda model: tf.function(lambda x: ops.relu(model.norm(x)))),
    }

    @pytest.mark.parametrize("name", INNER)
    def test_parts_that_are_compiled_already_are_refused(name: str) -> None:
        check_refused(INNER[name]())

    def test_a_global_function_that_is_compiled_already_is_reported() -> None:
        model = odd.built(Compiling(lambda model: lambda x: apply_norm(model.norm, x)))
        for size in (1, 2, 3):
            model(batch_of(size))
        with pytest.warns(SitaWarning, match="does not call 1 of its 2 adapted layers, so these have no effect: inner"):
            sita.adapt(model)

    def test_a_compiled_part_without_batchnorm_is_fine() -> None:
        class Harmless(Compiling):
            @tf.function
            def double(self, x: Any) -> Any:
                return 2 * x

            def call(self, x: Any) -> Any:
                return super().call(self.double(x))

        model = odd.built(Harmless())
        expected = keras_reference.auto(model, batch_of(), "logits")
        for use in odd.ways(sita.adapt(model)):
            close(use(batch_of()), expected)


if BACKEND == "jax":
    import jax

    def test_parts_that_are_compiled_already_are_refused() -> None:
        check_refused(Compiling(lambda model: jax.jit(model.slow)))


if BACKEND == "torch":

    def test_modules_of_torch_inside_are_named() -> None:
        import torch

        inner = torch.nn.Sequential(torch.nn.BatchNorm2d(16), torch.nn.ReLU()).eval()
        inputs = keras.Input((16, 16, 3))
        x = keras.layers.TorchModuleWrapper(inner, name="theirs", output_shape=(None, 16, 16, 3))(inputs)
        x = layers.GlobalAveragePooling2D()(layers.BatchNormalization(name="ours")(x))
        model = keras.Model(inputs, layers.Dense(4)(x))
        with pytest.warns(SitaWarning, match="theirs run another framework's layers"):
            adapted = sita.adapt(model)
        assert "theirs" in str(sita.describe(adapted))
        assert sita.describe(adapted).adapted == ("ours",)
        close(adapted.predict_on_batch(batch_of()), keras_reference.auto(model, batch_of(), "logits"))
