"""Answers have the structure of the model's own output, however few rows run at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_network import images

import sita_adapters as sita
from sita_adapters.errors import OutputError, RecipeError

pytestmark = pytest.mark.slow_on("tensorflow", "jax")

FEW = {"priors": (0.5, 0.7, 1.0), "top_k": 2}


def close(one: Any, other: Any) -> None:
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("recipe", ["augbn", "ops", "ensemble"])
def test_outputs_keep_their_structure(backend: Any, recipe: str) -> None:
    batch = images(3)
    expected = backend.run(sita.adapt(backend.model(), recipe), batch)
    named = backend.run(sita.adapt(backend.model("dict"), recipe), batch)
    assert set(named) == {"logits", "features"}
    close(named["logits"], expected)
    assert named["features"].shape == (3, 12, 12, 8)
    listed = backend.run(sita.adapt(backend.model("list"), recipe, output=1), batch)
    assert isinstance(listed, list)
    close(listed[1], expected)
    close(listed[0], named["features"])
    two = backend.run(sita.adapt(backend.model("two"), recipe, output="a"), batch)
    close(two["a"], expected)
    chosen = backend.run(sita.adapt(backend.model("two"), recipe, output=lambda out: out["a"]), batch)
    close(chosen["a"], expected)


def test_what_is_not_voted_on_is_the_most_confident_candidates(backend: Any) -> None:
    model, batch = backend.model("dict"), images(4)
    adapted = sita.adapt(model, "ops", **FEW)
    with sita.observe(adapted) as seen:
        answer = backend.run(adapted, batch)
    assert len(set(seen.priors.tolist())) > 1
    for image, prior in enumerate(seen.priors):
        alone = backend.run(sita.adapt(model, "augbn", priors=float(prior)), batch[image : image + 1])
        close(answer["features"][image], alone["features"][0])


def test_an_ensembles_other_outputs_stay_in_place(backend: Any) -> None:
    model, batch = backend.model("dict"), images(3)
    close(backend.run(sita.adapt(model, "ensemble"), batch)["features"], backend.run(model, batch)["features"])


def test_labels_are_not_voted_on_as_scores(backend: Any) -> None:
    batch = images(2)
    with pytest.raises(OutputError, match="no class scores"):
        backend.run(sita.adapt(backend.model("labels", dense=True), "ops"), batch)
    both = backend.run(sita.adapt(backend.model("labels and scores"), "ops"), batch)
    close(both["scores"], backend.run(sita.adapt(backend.model(), "ops"), batch))


@pytest.mark.parametrize(
    ("output", "options", "settings", "words"),
    [
        ("two", {}, {}, r"Several.*: a, b.*output="),
        ("two", {}, {"output": "c"}, r"output='c' gives nothing.*a, b"),
        ("scores", {"classes": 1}, {}, "single class.*scores='sigmoid|scores=.*'sigmoid'"),
        ("one number", {}, {}, "whole batch"),
        ("scores", {"activation": "sigmoid"}, {}, "scores="),
        ("scores", {}, {"scores": "probabilities"}, "scores='probabilities'.*expected"),
        ("scores", {"activation": "softmax"}, {"scores": "logits"}, "scores='logits'.*expected"),
    ],
    ids=["several", "no such part", "one class", "one number", "sigmoids", "no probabilities", "no logits"],
)
def test_outputs_that_cannot_be_voted_on(
    backend: Any, output: str, options: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(OutputError, match=words):
        backend.run(sita.adapt(backend.model(output, **options), "ops", **settings), images(2))


@pytest.mark.parametrize("selector", [True, 1.5, ["a"]])
def test_a_selector_is_a_key_a_position_or_a_function(backend: Any, selector: Any) -> None:
    with pytest.raises(OutputError, match="output: expected a key"):
        sita.adapt(backend.model(), "ops", output=selector)


@pytest.mark.parametrize(
    ("recipe", "max_rows"),
    [
        pytest.param("augbn", 3, marks=pytest.mark.slow_on()),
        ("augbn", 7),
        ("ops_shared", 4),
        ("ops", 3),
        ("ensemble", 1),
    ],
)
def test_fewer_rows_at_once_give_the_same_answers(backend: Any, recipe: str, max_rows: int) -> None:
    model, batch = backend.model("dict"), images(3)
    changes = FEW if recipe.startswith("ops") else {}
    whole = sita.adapt(model, recipe, **changes)
    bounded = sita.adapt(model, recipe, max_rows=max_rows, **changes)
    expected, answer = backend.run(whole, batch), backend.run(bounded, batch)
    for key, value in expected.items():
        close(answer[key], value)
    assert sita.describe(bounded).recipe == sita.describe(whole).recipe
    assert f"at most {max_rows} at once" in str(sita.describe(bounded))


@pytest.mark.parametrize(("recipe", "least"), [("augbn", 3), ("ops", 3), ("ops_shared", 4)])
def test_too_few_rows_are_refused(backend: Any, recipe: str, least: int) -> None:
    with pytest.raises(RecipeError, match=f"max_rows: expected at least {least}.*received {least - 1}"):
        sita.adapt(backend.model(), recipe, max_rows=least - 1)


def test_a_shared_batch_does_not_run_in_rounds(backend: Any) -> None:
    with pytest.raises(RecipeError, match=r"max_rows: with share='batch'.*Try: smaller batches"):
        sita.adapt(backend.model(), "augbn", share="batch", max_rows=8)
