"""What makes no sense is an error that says what was expected, what came, and what to try."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_network import images

import sita_adapters as sita
from sita_adapters.errors import InputError, ModelError, OutputError, RecipeError

pytestmark = pytest.mark.slow_on("jax")

RECIPES = [
    ("opps", {}, ["'opps'", "Did you mean 'ops'"]),
    ("AUTO", {}, ["'AUTO'", "Did you mean 'auto'"]),
    (3, {}, ["int"]),
    ("augbn", {"priors": 1.5}, ["priors", "from 0", "1.5"]),
    ("augbn", {"priors": -0.1}, ["-0.1"]),
    ("augbn", {"priors": float("nan")}, ["nan"]),
    ("augbn", {"priors": "0.5"}, ["0.5"]),
    ("ops", {"priors": []}, ["one or more"]),
    ("ops", {"priors": [0.5, 0.5]}, ["each", "once"]),
    *((name, {"n_views": 0}, ["n_views", "0"]) for name in ("ops_shared", "ensemble")),
    ("bn", {"shared_views": True}, ["shared_views", "view"]),
    ("bn", {"candidates": "views"}, ["candidates", "view"]),
    ("bn", {"augment": "paper"}, ["augment", "'bn'", "'augbn'"]),
    ("ops", {"shared_views": True, "candidates": "views"}, ["shared_views"]),
    ("ops", {"augment": [()]}, ["augment"]),
    ("ops", {"augment": ["lossless"]}, ["augment", "lossless"]),
    ("ops", {"augment": "hflip", "n_views": 2}, ["n_views", "hflip"]),
    ("ops", {"n_views": True}, ["n_views", "True"]),
    ("augbn", {"n_views": -1}, ["n_views", "-1"]),
    ("augbn", {"n_views": 8}, ["7", "8"]),
    ("augbn", {"n_views": 2.0}, ["n_views", "2.0"]),
    ("ops", {"top_k": 9}, ["top_k", "8", "9"]),
    ("augbn", {"top_k": 2}, ["top_k", "2"]),
    ("ops", {"top_k": 0}, ["top_k", "0"]),
    ("auto", {"top_k": 1}, ["top_k"]),
    *(("auto", {"adapted_weight": value}, ["adapted_weight", repr(value)]) for value in (0, -1.0, True, "2")),
    *(("auto", {"adapted_weight": float(value)}, ["adapted_weight", value]) for value in ("nan", "inf")),
    ("ops", {"adapted_weight": 3.0}, ["adapted_weight", "combine='mix'"]),
    ("ops", {"combine": "median"}, ["combine", "'vote'", "'mean'", "'mix'", "median"]),
    ("augbn", {"combine": "mix"}, ["combine", "1 and another prior", "'mix'"]),
    ("ops", {"candidates": "all"}, ["candidates", "all"]),
    ("ops", {"share": "all"}, ["share", "'image'", "'batch'", "'all'"]),
    ("ops", {"shared_views": 1}, ["shared_views", "1"]),
    ("ops", {"seed": -1}, ["seed", "-1"]),
    ("ops", {"augment": "losless"}, ["losless", "lossless"]),
    ("ops", {"augment": []}, ["augment"]),
    ("ops", {"augment": ["hflip", "vflop"]}, ["vflop", "vflip"]),
    ("ops", {"augment": 3}, ["augment", "3"]),
    ("ops", {"augment": "paper"}, ["color", "inputs='imagenet'"]),
    ("ops", {"task": "detection"}, ["task", "'segmentation'", "'detection'"]),
    *(("ops", {"max_rows": value}, ["max_rows", repr(value)]) for value in (0, -1, True, 2.5, "8")),
]
"""What each message must contain: the field, what was received, and what helps."""


@pytest.fixture(scope="module")
def model(backend: Any) -> Any:
    return backend.model()


@pytest.mark.parametrize(("recipe", "changes", "words"), RECIPES, ids=str)
def test_recipes_that_make_no_sense(model: Any, recipe: object, changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        sita.adapt(model, recipe, **changes)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ("bn9", ["'bn9' matches none of the 3", "Did you mean 'bn"]),
        (["bn1", "layer4.*"], ["layer4.*"]),
        (lambda name, layer: False, ["predicate", "3 BatchNorm"]),
        ([], ["expected a name"]),
        ([3], ["expected a name"]),
        (3, ["expected a name"]),
    ],
)
def test_unknown_layers(model: Any, layers: object, words: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        sita.adapt(model, "ops", layers=layers)
    for word in words:
        assert word in str(caught.value)


def test_unknown_scores_and_inputs(model: Any) -> None:
    with pytest.raises(OutputError, match=r"'probabilities'.*received 'logit'. Did you mean 'logits'"):
        sita.adapt(model, "ops", scores="logit")
    with pytest.raises(InputError, match="Did you mean 'imagenet'"):
        sita.adapt(model, "ops", inputs="imagnet")
    for axis in (1.5, True, "last"):
        with pytest.raises(OutputError, match="class_axis"):
            sita.adapt(model, class_axis=axis)


def test_a_model_without_batchnorm_is_refused(backend: Any) -> None:
    with pytest.raises(ModelError, match="no BatchNorm"):
        sita.adapt(backend.without_batchnorm(), "ops")


@pytest.mark.parametrize("thing", [dict, object, type("Estimator", (), {"__module__": "sklearn.svm"})])
def test_what_is_no_model_is_refused(backend: Any, thing: Any) -> None:
    with pytest.raises(ModelError, match=r"Expected a (torch|keras)"):
        sita.adapt(thing(), "ops")


def test_a_class_is_refused_for_its_instance(model: Any) -> None:
    with pytest.raises(ModelError, match=r"class.*instance"):
        sita.adapt(type(model), "ops")


def test_an_empty_batch_is_refused(backend: Any, model: Any) -> None:
    for settings in ({}, {"max_rows": 3}):
        with pytest.raises(InputError, match=r"empty batch|at least one image"):
            backend.run(sita.adapt(model, "augbn", **settings), images(1)[:0])


def test_views_that_change_the_shape_are_refused(backend: Any) -> None:
    with pytest.raises(InputError, match="square images"):
        backend.run(sita.adapt(backend.model(size=(12, 16)), "augbn", augment=["rot90"]), images(1, (12, 16)))
    with pytest.raises(InputError, match="must return images of the shape"):
        backend.run(sita.adapt(backend.model(), "augbn", augment=lambda x: x[:, 1:]), images(1))


def test_scores_outside_the_class_axis_are_no_vote(backend: Any) -> None:
    """A recipe with one candidate needs no scores at all."""
    two = backend.run(sita.adapt(backend.model("two"), "augbn"), images(2))
    np.testing.assert_allclose(two["b"], 2 * two["a"], rtol=1e-6)
