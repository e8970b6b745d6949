"""`compare`: labels and probabilities of several models, side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from small_network import images

import sita_adapters as sita
from sita_adapters.errors import InputError, ModelError, OutputError, RecipeError

pytestmark = pytest.mark.slow_on("tensorflow", "jax")


@pytest.fixture(scope="module")
def model(backend: Any) -> Any:
    return backend.model()


def test_answers_are_those_of_the_model_called_by_hand(backend: Any, model: Any) -> None:
    batch, adapted = images(5), sita.adapt(model, "augbn")
    logits = {"plain": backend.run(model, batch), "adapted": backend.run(adapted, batch)}
    compared = sita.compare({"plain": model, "adapted": adapted}, batch, batch_size=2)
    for name, z in logits.items():
        answers = compared[name]
        np.testing.assert_allclose(answers.probabilities, reference.softmax(z), atol=1e-6)
        np.testing.assert_array_equal(answers.labels, z.argmax(1))
        np.testing.assert_allclose(answers.entropies, [reference.entropy(each.tolist()) for each in z], atol=1e-5)
    difference = np.abs(reference.softmax(logits["plain"]) - reference.softmax(logits["adapted"])).max()
    agreement = compared.models[1]
    assert agreement.name == "adapted"
    assert agreement.largest_difference == pytest.approx(difference, abs=1e-6)
    assert difference > 1e-3


@pytest.mark.slow_on
@pytest.mark.parametrize("output", ["dict", "list"])
def test_scores_beside_other_outputs_are_found_in_compiled_calls_too(backend: Any, output: str) -> None:
    """JAX returns a dict with its keys sorted."""
    model, batch = backend.model(output), images(3)
    settings = {"output": 1} if output == "list" else {}
    answers = sita.compare({"m": model}, batch, "augbn", **settings)["m"]
    wanted = backend.run(sita.adapt(model, "augbn", **settings), batch)["logits" if output == "dict" else 1]
    np.testing.assert_allclose(answers.probabilities, reference.softmax(wanted), atol=1e-6)


def test_models_with_and_without_a_softmax_agree(backend: Any, model: Any) -> None:
    batch = images(4)
    models = {
        "logits": sita.adapt(model, "augbn"),
        "probabilities": sita.adapt(backend.model(activation="softmax"), "augbn", scores="probabilities"),
    }
    agreement = sita.compare(models, batch).models[1]
    assert agreement.same_labels == 1.0
    assert agreement.largest_difference < 1e-5


def test_the_prior_is_that_of_the_most_confident_candidate(model: Any) -> None:
    """Every prior on its own is what OPS runs side by side."""
    batch, priors = images(4), (0.2, 0.6, 0.9)
    single = [sita.compare({"m": model}, batch, "augbn", priors=prior)["m"] for prior in priors]
    adapted = sita.adapt(model, "ops", priors=priors)
    with sita.observe(adapted) as observation:
        sita.compare({"m": adapted}, batch)
    wanted = np.array(priors)[np.argmin([each.entropies for each in single], axis=0)]
    np.testing.assert_allclose(observation.priors, wanted, rtol=1e-6)


def test_adapted_answers_do_not_depend_on_the_batch_size(model: Any) -> None:
    one, all_ = (sita.compare({"m": model}, images(4), "ops_shared", batch_size=size)["m"] for size in (2, 64))
    np.testing.assert_allclose(one.probabilities, all_.probabilities, atol=1e-6)


def test_it_prints_as_a_table(backend: Any, model: Any) -> None:
    compared = sita.compare({"here": model, "there": sita.adapt(model, "augbn", priors=0.8)}, images(5), batch_size=4)
    heading, _, names, _, first, second = str(compared).splitlines()
    assert heading == "5 images; labels and probabilities against 'here'"
    assert names.split("  ")[0] == "model"
    assert first.split()[:2] == ["here", backend.name.partition("-")[0]]
    assert "source" in first
    assert "augbn" in second
    assert f"{100 * compared.models[1].same_labels:.1f} %" in second


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda m, x: ({}, x), InputError, "models: expected a dict of models by name"),
        (lambda m, x: (m, x), InputError, "by name.*received"),
        (lambda m, x: ({"m": m}, x[0]), InputError, r"images: expected.*received.*\(12, 12, 3\)"),
        (lambda m, x: ({"m": m}, x[:0]), InputError, r"received.*\(0, 12, 12, 3\)"),
        (lambda m, x: ({"m": m}, x.tolist()), InputError, "received list"),
        (lambda m, x: ({"m": m}, x.astype(str)), InputError, "array of numbers"),
        (lambda m, x: ({"m": m}, x.transpose(0, 3, 1, 2)), sita.SitaError, r"channels|shape"),
        (lambda m, x: ({"m": m, "n": m}, {"m": x}), InputError, "for each of m, n"),
        (
            lambda m, x: ({"m": m, "n": m}, {"m": x, "n": x[:1]}),
            InputError,
            "the same number of images for each of m, n",
        ),
        (lambda m, x: ({"m": m, "n": object()}, x), ModelError, "received an object"),
    ],
)
def test_what_cannot_be_compared_is_refused(model: Any, change: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        sita.compare(*change(model, images(2)))


def test_models_of_other_classes_are_refused(backend: Any, model: Any) -> None:
    with pytest.raises(OutputError, match=r"'c': \(4,\), the first: \(5,\)"):
        sita.compare({"m": model, "c": backend.model(classes=4)}, images(2))
    with pytest.raises(OutputError, match="single class"):
        sita.compare({"c": backend.model(classes=1)}, images(2))


@pytest.mark.parametrize("given", [{"recipe": "ops"}, {"priors": 0.5}, {"scores": "logits"}])
def test_an_adapted_model_takes_no_recipe(model: Any, given: dict[str, Any]) -> None:
    with pytest.raises(RecipeError, match=r"'m' is already adapted.*sita\.unwrap"):
        sita.compare({"m": sita.adapt(model, "bn")}, images(2), **given)


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "2"])
def test_a_batch_has_a_size(model: Any, size: Any) -> None:
    with pytest.raises(InputError, match="batch_size"):
        sita.compare({"m": model}, images(2), batch_size=size)
