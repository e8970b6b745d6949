"""Rows that only serve statistics end after the last adapted layers, and nobody sees it but the clock."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path

import keras
import keras_nets as nets
import numpy as np
import pytest
from keras import layers

import sita_adapters as sita

RECIPES = {"augbn": (3, 1), "ops": (22, 8), "ops_shared": (10, 8)}
"""How many rows an image costs, and how many of them answer."""

SEEN: list[int] = []


@keras.saving.register_keras_serializable(package="tests")
class Noting(layers.Layer):
    """Notes how many rows come by."""

    def call(self, x: object) -> object:
        SEEN.append(x.shape[0])
        return x


@pytest.fixture
def to_the_end(monkeypatch: pytest.MonkeyPatch) -> Callable[..., keras.Model]:
    """`sita.adapt`, with all rows running to the end."""
    room = importlib.import_module("sita_keras.layers")

    def adapt(*args: object, **kwargs: object) -> keras.Model:
        with monkeypatch.context() as patch:
            patch.setattr(room, "end_views", lambda *_: None)
            return sita.adapt(*args, **kwargs)

    return adapt


def run(adapted: keras.Model, batch: np.ndarray) -> tuple[object, list[int]]:
    """Return the answer, and the rows that `Noting` layers saw."""
    SEEN.clear()
    answer = keras.tree.map_structure(keras.ops.convert_to_numpy, adapted(batch))
    return answer, list(SEEN)


def same(answer: object, expected: object) -> None:
    keras.tree.assert_same_structure(answer, expected)
    for one, other in zip(keras.tree.flatten(answer), keras.tree.flatten(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def stage(x: object, name: str, width: int = 6) -> object:
    """Two BatchNorms and a shortcut."""
    short = layers.Conv2D(width, 1)(x)
    x = layers.BatchNormalization(name=f"{name}_bn1")(layers.Conv2D(width, 3, padding="same")(x))
    x = layers.BatchNormalization(name=f"{name}_bn2")(layers.Conv2D(width, 3, padding="same")(layers.ReLU()(x)))
    return layers.ReLU()(layers.Add()([short, x]) * 1.5)


def head(x: object) -> object:
    return layers.Dense(nets.CLASSES)(layers.GlobalAveragePooling2D()(Noting()(x)))


def flat() -> keras.Model:
    inputs = keras.Input((16, 16, 3))
    return keras.Model(inputs, head(stage(stage(inputs, "a"), "b")))


def several_outputs() -> keras.Model:
    inputs = keras.Input((16, 16, 3))
    x = stage(inputs, "a")
    return keras.Model(inputs, {"logits": head(stage(x, "b")), "early": layers.Conv2D(2, 1)(inputs), "middle": x})


def in_a_base() -> keras.Model:
    """As transfer learning has it: the network is a layer."""
    inner = keras.Input((16, 16, 3))
    base = keras.Model(inner, stage(stage(inner, "a"), "b"), name="base")
    inputs = keras.Input((16, 16, 3))
    scaled = inputs * 0.5
    x = layers.Concatenate()([base(scaled, training=False), scaled])
    return keras.Model(inputs, head(layers.BatchNormalization(name="late")(x)))


def in_a_sequential() -> keras.Model:
    inner = keras.Input((16, 16, 3))
    base = keras.Model(inner, stage(stage(inner, "a"), "b"), name="base")
    return keras.Sequential([keras.Input((16, 16, 3)), base, Noting(), *flat().layers[-2:]])


def used_twice() -> keras.Model:
    conv, norm = layers.Conv2D(3, 3, padding="same"), layers.BatchNormalization(name="a_bn")
    inputs = keras.Input((16, 16, 3))
    x = norm(conv(layers.ReLU()(norm(conv(inputs)))))
    return keras.Model(inputs, head(stage(x, "b")))


def composite() -> keras.Model:
    inputs = keras.Input((16, 16, 3))
    return keras.Model(inputs, head(stage(nets.Composite(6, name="a")(inputs), "b")))


def any_size() -> keras.Model:
    inputs = keras.Input((None, None, 3))
    return keras.Model(inputs, head(stage(stage(inputs, "a"), "b")))


SAFE = {
    flat: "a_bn2",
    several_outputs: "a_bn2",
    in_a_base: "base/a_bn2",
    in_a_sequential: "base/a_bn2",
    used_twice: "a_bn",
    composite: "a",
    any_size: "a_bn2",
}


CASES = [*((flat, recipe) for recipe in RECIPES), *((make, "augbn") for make in SAFE if make is not flat)]
if keras.backend.backend() != "tensorflow":  # where the graph is cut is Keras' own matter, whatever computes it
    CASES = CASES[:1]


@pytest.mark.parametrize(("make", "recipe"), CASES)
def test_the_answer_is_the_same_and_fewer_rows_run(
    make: Callable[[], keras.Model], recipe: str, to_the_end: Callable[..., keras.Model]
) -> None:
    model = nets.settle(make())
    chosen = "base/a*" if "base" in SAFE[make] else "a*"
    cut, whole = (adapt(model, recipe, layers=chosen) for adapt in (sita.adapt, to_the_end))
    assert sita.describe(cut).views_end_after == SAFE[make]
    assert f"views end after {SAFE[make]}" in str(sita.describe(cut))
    assert sita.describe(whole).views_end_after is None
    rows, answers = RECIPES[recipe]
    for count in (1, 5) if (make, recipe) == (flat, "augbn") else (2,):
        (answer, seen), (expected, all_seen) = (run(adapted, nets.images(count)) for adapted in (cut, whole))
        same(answer, expected)
        assert (seen, all_seen) == ([count * answers], [count * rows])


def folded() -> keras.Model:
    """Halves of an image are folded into the batch, and unfolded after the adapted layer."""
    inputs = keras.Input((16, 16, 3))
    x = keras.ops.reshape(inputs, (-1, 8, 16, 3))
    x = layers.BatchNormalization(name="a_bn")(layers.Conv2D(3, 3, padding="same")(x))
    x = keras.ops.reshape(x, (-1, 16, 16, 3))
    return keras.Model(inputs, head(stage(x, "b")))


class Subclassed(nets.Subclassed):
    def __init__(self, **kwargs: object) -> None:
        super().__init__(**kwargs)
        self.late = layers.BatchNormalization(name="late")

    def call(self, x: object, training: bool | None = None) -> object:
        return self.heads["main"](self.pool(self.late(self.bn(self.conv(x), training=training), training=training)))


def subclassed() -> keras.Model:
    model = Subclassed()
    model(nets.images(1))
    return model


@pytest.mark.parametrize(("make", "chosen"), [(folded, "a_bn"), (subclassed, lambda name, _: "late" not in name)])
def test_where_it_is_not_safe_all_rows_run_on(
    make: Callable[[], keras.Model], chosen: object, to_the_end: Callable[..., keras.Model]
) -> None:
    model, batch = nets.settle(make()), nets.images(2)
    adapted = sita.adapt(model, "augbn", layers=chosen)
    assert sita.describe(adapted).views_end_after is None
    same(run(adapted, batch)[0], run(to_the_end(model, "augbn", layers=chosen), batch)[0])


@pytest.mark.parametrize(("recipe", "chosen"), [("ensemble", "a*"), ("bn", "a*"), ("augbn", None)])
def test_where_all_rows_answer_or_all_layers_adapt_nothing_ends(recipe: str, chosen: str | None) -> None:
    assert sita.describe(sita.adapt(nets.settle(flat()), recipe, layers=chosen)).views_end_after is None


FEW = {"priors": (0.5, 0.75, 1.0), "top_k": 1}


def test_parts_end_too(to_the_end: Callable[..., keras.Model]) -> None:
    model, batch = nets.settle(flat()), nets.images(2)
    parts = sita.adapt(model, "ops", layers="a*", max_rows=4, **FEW)
    assert sita.describe(parts).views_end_after == "a_bn2"
    whole = to_the_end(model, "ops", layers="a*", **FEW)
    same(parts.predict(batch, verbose=0), whole.predict(batch, verbose=0))


@pytest.mark.parametrize("max_rows", [None, 7])
def test_what_is_loaded_ends_as_what_was_saved(max_rows: int | None, tmp_path: Path) -> None:
    model, batch = nets.settle(in_a_base()), nets.images(1)
    adapted = sita.adapt(model, "ops", layers="base/a*", max_rows=max_rows, **FEW)
    adapted.save(tmp_path / "adapted.keras")
    loaded = keras.models.load_model(tmp_path / "adapted.keras")
    assert sita.describe(loaded).views_end_after == "base/a_bn2"
    (answer, seen), (expected, _) = run(loaded, batch), run(adapted, batch)
    same(answer, expected)
    assert seen == [3]
    same(run(sita.unwrap(loaded), batch)[0], run(model, batch)[0])


def test_lambda_one_is_the_source_model() -> None:
    model, batch = nets.settle(flat()), nets.images(3)
    adapted = sita.adapt(model, "augbn", priors=1 - 1e-12, layers="a*")
    assert sita.describe(adapted).views_end_after == "a_bn2"
    same(run(adapted, batch)[0], run(model, batch)[0])


def test_votes_are_told_of_as_ever(to_the_end: Callable[..., keras.Model]) -> None:
    model, batch, told = nets.settle(flat()), nets.images(3), []
    for adapt in (sita.adapt, to_the_end):
        adapted = adapt(model, layers="a*", **FEW)
        with sita.observe(adapted) as seen:
            adapted.predict(batch, verbose=0)
        told.append(seen.entropies)
    same(*told)
