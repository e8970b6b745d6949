"""What makes no sense is an error that says what was expected, what came, and the remedy (promise 6)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_network import images

import sita_adapters as sita

RECIPES = [
    ("opps", {}, ["'opps'", "Did you mean 'ops'"]),
    (3, {}, ["int"]),
    ("ops", {"prior": 0.5}, ["prior: not a field", "Did you mean 'priors'"]),
    ("augbn", {"priors": 1.5}, ["priors", "from 0", "1.5"]),
    ("augbn", {"priors": -0.1}, ["-0.1"]),
    ("augbn", {"priors": float("nan")}, ["nan"]),
    ("augbn", {"priors": "0.5"}, ["0.5"]),
    ("ops", {"priors": []}, ["one or more"]),
    ("ops", {"priors": [0.5, 0.5]}, ["each number once"]),
    ("augbn", {"n_views": 0}, ["'augbn'", "at least one", "'bn'"]),
    ("ops", {"n_views": 0}, ["'ops'", "at least one"]),
    ("ops_shared", {"n_views": 0}, ["'ops_shared'"]),
    ("ensemble", {"n_views": 0}, ["'ensemble'"]),
    ("bn", {"shared_views": True}, ["shared_views", "at least one view"]),
    ("bn", {"candidates": "views"}, ["candidates", "at least one view"]),
    ("bn", {"augment": "paper"}, ["'bn' takes no views", "'augbn'"]),
    ("ops", {"shared_views": True, "candidates": "views"}, ["shared_views", "Choose one"]),
    ("ops", {"priors": "10"}, ["'10'"]),
    ("ops", {"augment": [()]}, ["at least one step"]),
    ("ops", {"augment": ["lossless"]}, ["whole set of views"]),
    ("ops", {"augment": "hflip", "n_views": 2}, ["lists 1"]),
    ("ops", {"n_views": True}, ["n_views", "True"]),
    ("augbn", {"n_views": -1}, ["n_views", "-1"]),
    ("augbn", {"n_views": 8}, ["7 lossless", "8"]),
    ("augbn", {"n_views": 2.0}, ["n_views", "2.0"]),
    ("ops", {"top_k": 9}, ["top_k", "8", "9"]),
    ("augbn", {"top_k": 2}, ["top_k", "at most the number of candidates, 1"]),
    ("ops", {"top_k": 0}, ["top_k", "0"]),
    ("ops", {"combine": "median"}, ["combine", "'vote' or 'mean'", "median"]),
    ("ops", {"candidates": "all"}, ["candidates", "all"]),
    ("ops", {"share": "all"}, ["share: expected 'image' or 'batch'; received 'all'"]),
    ("ops", {"shared_views": 1}, ["shared_views", "True or False"]),
    ("ops", {"seed": -1}, ["seed"]),
    ("ops", {"augment": "losless"}, ["losless", "Did you mean 'lossless'"]),
    ("ops", {"augment": []}, ["at least one"]),
    ("ops", {"augment": ["hflip", "vflop"]}, ["vflop", "vflip"]),
    ("ops", {"augment": 3}, ["augment", "3"]),
    ("ops", {"augment": ["hflip"], "n_views": 2}, ["n_views=2", "lists 1"]),
    ("ops", {"augment": "paper"}, ["colour", "inputs='imagenet'"]),
    ("ops", {"task": "detection"}, ["task", "'segmentation'; received 'detection'"]),
    *(("ops", {"max_rows": value}, ["max_rows: expected a whole number"]) for value in (0, -1, True, 2.5, "8")),
]


@pytest.fixture(scope="module")
def model(backend: Any) -> Any:
    return backend.model()


@pytest.mark.parametrize(("recipe", "changes", "words"), RECIPES, ids=str)
def test_recipes_that_make_no_sense(model: Any, recipe: object, changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(sita.RecipeError) as caught:
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
    with pytest.raises(sita.LayersError) as caught:
        sita.adapt(model, "ops", layers=layers)
    for word in words:
        assert word in str(caught.value)


def test_unknown_scores_and_inputs(model: Any) -> None:
    with pytest.raises(sita.OutputError, match=r"'probabilities', 'sigmoid'.*received 'logit'. Did you mean 'logits'"):
        sita.adapt(model, "ops", scores="logit")
    with pytest.raises(sita.InputError, match="Did you mean 'imagenet'"):
        sita.adapt(model, "ops", inputs="imagnet")


def test_a_model_without_batchnorm_is_refused(backend: Any) -> None:
    with pytest.raises(sita.NoBatchNormError, match="no BatchNorm"):
        sita.adapt(backend.without_batchnorm(), "ops")


@pytest.mark.parametrize("thing", [dict, object, type("Estimator", (), {"__module__": "sklearn.svm"})])
def test_what_is_no_model_is_refused(backend: Any, thing: Any) -> None:
    with pytest.raises(sita.UnknownModelError, match=r"Expected a model of (torch|keras)"):
        sita.adapt(thing(), "ops")


def test_a_class_is_refused_for_its_instance(model: Any) -> None:
    with pytest.raises(sita.UnknownModelError, match=r"class.*instance"):
        sita.adapt(type(model), "ops")


def test_an_empty_batch_is_refused(backend: Any, model: Any) -> None:
    for settings in ({}, {"max_rows": 3}):
        with pytest.raises(sita.InputError, match=r"empty batch|at least one image"):
            backend.run(sita.adapt(model, "augbn", **settings), images(1)[:0])


def test_views_that_change_the_shape_are_refused(backend: Any) -> None:
    with pytest.raises(sita.InputError, match="square images"):
        backend.run(sita.adapt(backend.model(size=(12, 16)), "augbn", augment=["rot90"]), images(1, (12, 16)))
    with pytest.raises(sita.InputError, match="must return images of the shape"):
        backend.run(sita.adapt(backend.model(), "augbn", augment=lambda x: x[:, 1:]), images(1))


def test_scores_outside_the_class_axis_are_no_vote(backend: Any) -> None:
    """A recipe with one candidate needs no scores at all."""
    two = backend.run(sita.adapt(backend.model("two"), "augbn"), images(2))
    np.testing.assert_allclose(two["b"], 2 * two["a"], rtol=1e-6)
