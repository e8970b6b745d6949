"""The source model is not touched; the adapted one shares its weights, and writes to none of them."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from reliable_rules import make_rule, statistics_of_small_network
from small_network import images

import sita_adapters as sita
from sita_adapters.errors import ModelError, SharedWeightsError

RELIABLE, _ = make_rule(statistics_of_small_network())


def test_the_source_model_is_not_touched(backend: Any) -> None:
    """By adapt, by a call, by a call that fails, and by unwrap."""
    model, batch = backend.model(), images(2)
    plain = backend.run(model, batch)
    before, values = backend.fingerprint(model), backend.values(model)
    adapted = sita.adapt(model, "ops")
    backend.run(adapted, batch)
    with pytest.raises((RuntimeError, ValueError), match=r"channels|shape"):
        backend.run(adapted, batch[..., :2])
    sita.unwrap(adapted)
    assert backend.fingerprint(model) == before
    for value, was in zip(backend.values(model), values, strict=True):
        np.testing.assert_array_equal(value, was)
    np.testing.assert_array_equal(backend.run(model, batch), plain)


def test_a_call_that_fails_leaves_the_adapted_model_usable(backend: Any) -> None:
    adapted, batch = sita.adapt(backend.model(), "augbn"), images(2)
    answer = backend.run(adapted, batch)
    with pytest.raises((RuntimeError, ValueError), match=r"channels|shape"):
        backend.run(adapted, batch[..., :2])
    np.testing.assert_array_equal(backend.run(adapted, batch), answer)


def test_an_adapt_that_fails_leaves_nothing_behind(backend: Any) -> None:
    model = backend.model()
    before = backend.fingerprint(model)
    for wrong in ({"layers": "bn9"}, {"recipe": "opps"}, {"recipe": "ops", "max_rows": 1}, {"output": "logits"}):
        with pytest.raises(sita.SitaError):
            backend.run(sita.adapt(model, **wrong), images(1))
    assert backend.fingerprint(model) == before


def test_no_parameter_is_held_twice(backend: Any) -> None:
    model = backend.model()
    assert backend.memory(sita.adapt(model, "ops")) == backend.memory(model)


def test_later_changes_to_the_source_are_seen(backend: Any) -> None:
    model, batch = backend.model(), images(2)
    adapted = {recipe: sita.adapt(model, recipe) for recipe in ("source", "augbn")}
    before = {recipe: backend.run(each, batch) for recipe, each in adapted.items()}
    backend.change_weights(model)
    for recipe, each in adapted.items():
        wanted = backend.run(sita.adapt(model, recipe), batch)
        np.testing.assert_allclose(backend.run(each, batch), wanted, rtol=1e-6, atol=1e-7)
        assert np.abs(wanted - before[recipe]).max() > 1e-3
    np.testing.assert_allclose(backend.run(adapted["source"], batch), backend.run(model, batch), rtol=1e-6, atol=1e-7)


def test_unwrap_gives_a_plain_model_that_shares_memory(backend: Any) -> None:
    model, batch = backend.model(), images(2)
    adapted = sita.adapt(model, "augbn")
    answer = backend.run(adapted, batch)
    plain = sita.unwrap(adapted)
    np.testing.assert_allclose(backend.run(plain, batch), backend.run(model, batch), rtol=1e-6, atol=1e-7)
    assert backend.memory(plain) == backend.memory(model)
    assert type(plain) is type(model)
    with pytest.raises(ModelError):
        sita.describe(plain)
    # It can be adapted in turn, and the first one still answers as it did.
    np.testing.assert_allclose(backend.run(sita.adapt(plain, "augbn"), batch), answer, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(backend.run(adapted, batch), answer)


@pytest.mark.slow_on("tensorflow", "jax")
def test_cycles_of_adapt_and_unwrap_leave_nothing_behind(backend: Any) -> None:
    model, batch = backend.model(), images(1)
    before = backend.fingerprint(model)

    def held(cycles: int) -> int:
        for cycle in range(cycles):
            adapted = sita.adapt(model, "augbn")
            if cycle == 0:
                backend.run(adapted, batch)
            sita.unwrap(adapted)
        del adapted
        backend.forget()
        gc.collect()
        return sum(backend.is_model(item) for item in gc.get_objects())

    first = held(2)
    assert held(4) <= first
    assert backend.fingerprint(model) == before


def test_what_would_write_through_to_the_source_is_refused(backend: Any, tmp_path: Path) -> None:
    model, batch = backend.model(), images(2)
    values = backend.values(model)
    for settings in ({}, {"max_rows": 3}):
        adapted = sita.adapt(model, "augbn", **settings)
        for words, write in backend.writes(adapted, batch, tmp_path).items():
            with pytest.raises(SharedWeightsError, match=words):
                write()
        backend.run(adapted, batch)
    for value, was in zip(backend.values(model), values, strict=True):
        np.testing.assert_array_equal(value, was)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, marks=pytest.mark.slow_on("tensorflow", "jax")),
        pytest.param({"max_rows": 6}, marks=pytest.mark.slow_on("tensorflow", "jax")),
        pytest.param({"layers": "bn1", "priors": (0.5, RELIABLE, 1.0)}, marks=pytest.mark.slow_on("jax")),
    ],
    ids=["a recipe", "in parts", "by reliability, some layers"],
)
def test_a_stored_model_comes_back_adapted(backend: Any, settings: dict[str, Any], tmp_path: Path) -> None:
    model, batch = backend.model("dict"), images(3)
    adapted = sita.adapt(model, "ops", inputs="imagenet", **{"priors": (0.5, 0.8, 1.0), **settings})
    answer, again = backend.run(adapted, batch), backend.reload(adapted, tmp_path)
    for key, value in backend.run(again, batch).items():
        np.testing.assert_allclose(value, answer[key], rtol=1e-5, atol=1e-6)
    assert np.abs(answer["logits"] - backend.run(model, batch)["logits"]).max() > 1e-3
    assert sita.describe(again) == sita.describe(adapted)
    assert not set(backend.memory(again)) & set(backend.memory(model))


def test_adapting_twice_is_refused(backend: Any) -> None:
    adapted = sita.adapt(backend.model(), "ops")
    with pytest.raises(ModelError, match=r"already adapted.*unwrap"):
        sita.adapt(adapted, "ops")
    with pytest.raises(ModelError, match=r"already adapted.*unwrap"):
        sita.adapt(backend.around(adapted), "ops")


def test_plain_models_are_not_adapted(backend: Any) -> None:
    model = backend.model()
    for function in (sita.unwrap, sita.describe):
        with pytest.raises(ModelError, match=f"plain {type(model).__name__}"):
            function(model)
    with pytest.raises(ModelError), sita.observe(model):
        pass
