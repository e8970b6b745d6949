"""What is computed, against plain loops in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from reliable_rules import make_rule, statistics_of_small_network
from small_network import EPSILONS, images, run_rows

import sita_adapters as sita
from sita_adapters.errors import OutputError

PRIORS = (0.5, 0.75, 1.0)
NAMES = tuple(EPSILONS)
IDENTITY = lambda x: x  # noqa: E731
TURNS = [lambda x, k=k: np.rot90(x, k, axes=(0, 1)) for k in (0, 1, 3)]
FLIPS = [IDENTITY, lambda x: x[::-1], lambda x: x[:, ::-1]]
MIRRORED = [IDENTITY, lambda x: x[:, ::-1]]


def settings_of(recipe: str) -> dict[str, Any]:
    return {"augbn": {"priors": 0.5}, "bn": {}, "ptn": {}}.get(recipe, {"priors": PRIORS, "top_k": 2})


def expected(batch: np.ndarray, recipe: str, views: Any = TURNS, **options: Any) -> np.ndarray:
    """The answers of the small network, computed without any of the library's code."""
    rows, candidates = reference.rows_of(recipe, len(views) - 1, PRIORS)
    answers = []
    for image in batch:
        scores = run_rows([view(image) for view in views], rows, **options)[candidates]
        answers.append(reference.vote(scores, 2) if len(candidates) > 1 else scores[0])
    return np.stack(answers)


def close(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5)


def test_the_plain_model_is_the_reference(backend: Any) -> None:
    """What the other comparisons rest on."""
    batch = images(3)
    plain = np.concatenate([run_rows([image], [reference.Row(0, 1.0, {})]) for image in batch])
    close(backend.run(backend.model(), batch), plain)
    assert np.ptp(plain, axis=0).max() > 1


@pytest.mark.parametrize("recipe", ["bn", "ptn", "augbn", "ops", "ops_shared"])
def test_answers_equal_the_reference(backend: Any, recipe: str) -> None:
    batch = images(3)
    answer = backend.run(sita.adapt(backend.model(), recipe, **settings_of(recipe)), batch)
    assert answer.dtype == np.float32
    close(answer, expected(batch, recipe))


@pytest.mark.parametrize(
    ("layers", "adapted"),
    [("bn1", NAMES[:1]), (["bn1", "bn3"], ("bn1", "bn3")), ("bn[12]", NAMES[:2]), ("bn*", NAMES), (None, NAMES)],
    ids=str,
)
def test_layers_are_chosen_by_name_and_by_glob(backend: Any, layers: Any, adapted: tuple[str, ...]) -> None:
    """Exactly the chosen ones are adapted, and the others keep the source's statistics."""
    batch = images(2)
    model = sita.adapt(backend.model(), "augbn", priors=0.5, layers=layers)
    assert sita.describe(model).adapted == adapted
    assert sita.describe(model).skipped == tuple(name for name in NAMES if name not in adapted)
    close(backend.run(model, batch), expected(batch, "augbn", adapted=adapted))


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize("recipe", ["ops", "ops_shared"])
def test_the_candidates_of_some_layers_equal_the_reference(backend: Any, recipe: str) -> None:
    batch = images(2)
    model = sita.adapt(backend.model(), recipe, layers=["bn1", "bn2"], **settings_of(recipe))
    close(backend.run(model, batch), expected(batch, recipe, adapted=("bn1", "bn2")))


def test_layers_are_chosen_by_a_predicate(backend: Any) -> None:
    model = sita.adapt(backend.model(), "ops", layers=lambda name, layer: backend.epsilon_of(layer) > 5e-4)
    assert sita.describe(model).adapted == ("bn2", "bn3")


def test_lambda_one_is_the_source_model(backend: Any) -> None:
    """Through the recipe `source`, and through the blend, with a prior that only rounds to 1."""
    model, batch = backend.model(), images(3)
    plain = backend.run(model, batch)
    np.testing.assert_allclose(backend.run(sita.adapt(model, "source"), batch), plain, rtol=1e-6, atol=1e-7)
    almost = float(np.nextafter(1.0, 0.0))
    for recipe in ("augbn", "bn"):
        blended = backend.run(sita.adapt(model, recipe, priors=almost), batch)
        np.testing.assert_allclose(blended, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.slow_on("jax")
def test_ensemble_is_the_mean_softmax_over_the_views(backend: Any) -> None:
    model, batch = backend.model(), images(3)
    turned = [np.ascontiguousarray(np.rot90(batch, k, axes=(1, 2))) for k in (0, 1, 3)]
    wanted = np.mean([reference.softmax(backend.run(model, x)) for x in turned], axis=0)
    answer = backend.run(sita.adapt(model, "ensemble"), batch)
    np.testing.assert_allclose(answer, np.log(wanted), rtol=1e-5, atol=1e-5)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("recipe", ["ops", "ops_shared", "ensemble"])
def test_a_model_with_and_one_without_softmax_agree(backend: Any, recipe: str) -> None:
    batch = images(5)
    logits = backend.run(sita.adapt(backend.model(), recipe), batch)
    ending = sita.adapt(backend.model(activation="softmax"), recipe, scores="probabilities")
    np.testing.assert_allclose(backend.run(ending, batch), reference.softmax(logits), rtol=1e-4, atol=1e-6)


@pytest.mark.slow_on("jax")
@pytest.mark.parametrize("labels", [1, 4])
@pytest.mark.parametrize("combine", ["vote", "mean"])
def test_each_label_with_a_sigmoid_is_decided_as_two_classes(backend: Any, labels: int, combine: str) -> None:
    """Against the vote of (0, z), from candidates that a loop in float64 computes."""
    batch = images(3)
    model = backend.model(classes=labels)
    answer = backend.run(sita.adapt(model, "ops", scores="sigmoid", combine=combine, priors=PRIORS, top_k=2), batch)
    assert answer.shape == (3, labels)
    rows, candidates = reference.rows_of("ops", 2, PRIORS)
    for image, said in zip(batch, answer, strict=True):
        scores = run_rows([turn(image) for turn in TURNS], rows, classes=labels)[candidates]
        for label in range(labels):
            two = np.stack([np.zeros(len(candidates)), scores[:, label]], axis=1)
            if combine == "vote":
                wanted = reference.vote(two, 2)[1]
            else:
                p = reference.mean_probabilities(two, 2)
                wanted = np.log(p[1]) - np.log(p[0])
            np.testing.assert_allclose(said[label], wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.slow_on("tensorflow", "jax")
def test_sigmoids_and_their_logits_agree(backend: Any) -> None:
    batch = images(3)
    logits = backend.run(sita.adapt(backend.model(classes=4), "ops", scores="sigmoid"), batch).astype(np.float64)
    ending = sita.adapt(backend.model(classes=4, activation="sigmoid"), "ops", scores="sigmoid_probabilities")
    np.testing.assert_allclose(backend.run(ending, batch), 1 / (1 + np.exp(-logits)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("recipe", ["augbn", "ops", "ops_shared"])
def test_every_pixel_votes_for_itself(backend: Any, recipe: str) -> None:
    batch = images(2)
    answer = backend.run(sita.adapt(backend.model(dense=True), recipe, **settings_of(recipe)), batch)
    rows, candidates = reference.rows_of(recipe, 2, PRIORS)
    close_calls = 0
    for image, said in zip(batch, answer, strict=True):
        scores = run_rows([turn(image) for turn in TURNS], rows, dense=True)[candidates]
        for row, column in np.ndindex(12, 12):
            each = scores[:, row, column]
            if len(candidates) > 1 and is_close_call(each):
                close_calls += 1
                continue
            wanted = reference.vote(each, 2) if len(candidates) > 1 else each[0]
            close(said[row, column], wanted)
    assert close_calls < 0.02 * 2 * 144


def is_close_call(candidates: np.ndarray) -> bool:
    """Whether rounding may decide: which two of three candidates are kept, which of them leads, or what one says."""
    entropies = np.array([reference.entropy(list(z)) for z in candidates])
    order = np.argsort(entropies)
    gaps = np.diff(entropies[order])
    margins = np.diff(np.sort(candidates[order[:2]], axis=1)[:, -2:], axis=1)
    differ = len(set(candidates[order[:2]].argmax(1).tolist())) == 2
    return bool(gaps[1] < 1e-5 or margins.min() < 1e-4 or (differ and gaps[0] < 1e-5))


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize("recipe", sita.RECIPES)
def test_every_recipe_runs_on_segmentation(backend: Any, recipe: str) -> None:
    model, batch = backend.model(dense=True, activation="softmax"), images(2)
    adapted = sita.adapt(model, recipe, task="segmentation", scores="probabilities")
    answer = backend.run(adapted, batch)
    np.testing.assert_allclose(answer.sum(-1), np.ones((2, 12, 12)), rtol=1e-5)
    # By itself an image gets the same, but for pixels whose candidates are all but equally certain.
    alone = backend.run(adapted, batch[1:])[0]
    assert (np.abs(alone - answer[1]).max(-1) < 1e-5).mean() > 0.99


def test_segmentation_takes_a_mirrored_view(backend: Any) -> None:
    batch = images(2)
    adapted = sita.adapt(backend.model(dense=True), "augbn", task="segmentation", priors=0.5)
    close(backend.run(adapted, batch), expected(batch, "augbn", MIRRORED, dense=True))


def test_an_ensemble_of_pixels_takes_views_that_keep_them_in_place(backend: Any) -> None:
    model, batch = backend.model(dense=True), images(2)
    for settings in ({}, {"task": "segmentation", "augment": "lossless"}):
        with pytest.raises(OutputError, match=r"pixel by pixel.*task='segmentation'.*augment='blur'"):
            backend.run(sita.adapt(model, "ensemble", **settings), batch)


@pytest.mark.slow_on("jax")
def test_images_that_are_not_square_take_the_views_that_keep_their_shape(backend: Any) -> None:
    batch = images(2, (12, 16))
    adapted = sita.adapt(backend.model(size=(12, 16)), "augbn", priors=0.5)
    close(backend.run(adapted, batch), expected(batch, "augbn", FLIPS))


@pytest.mark.slow_on("jax")
def test_one_adapted_model_takes_images_of_several_sizes(backend: Any) -> None:
    """A model whose graph leaves the sizes open takes, of square images too, the views that suit any size."""
    adapted = sita.adapt(backend.model(size=(None, None)), "augbn", priors=0.5)
    square, oblong = images(2), images(2, (12, 16))
    close(backend.run(adapted, square), expected(square, "augbn", TURNS if backend.sees_sizes else FLIPS))
    close(backend.run(adapted, oblong), expected(oblong, "augbn", FLIPS))


def test_a_function_of_the_users_is_a_view(backend: Any) -> None:
    batch = images(2)
    adapted = sita.adapt(backend.model(), "augbn", priors=0.5, augment=[lambda x: 0.5 * x, "hflip"])
    views = [IDENTITY, lambda x: 0.5 * x, lambda x: x[:, ::-1]]
    close(backend.run(adapted, batch), expected(batch, "augbn", views))


def batch_rows(count: int, prior: Any) -> list[reference.Row]:
    """Every image weighs ½/B, every view ½/(nB), for all rows of the batch."""
    n, size = len(TURNS) - 1, len(TURNS)
    weights = {size * b + i: (0.5 if i == 0 else 0.5 / n) / count for b in range(count) for i in range(size)}
    return [reference.Row(row, prior, weights) for row in range(count * size)]


@pytest.mark.parametrize("prior", ["0.6", "by reliability"])
def test_a_batch_that_shares_its_statistics_equals_the_reference(backend: Any, prior: str) -> None:
    batch = images(4)
    given, same = (0.6, 0.6) if prior == "0.6" else make_rule(statistics_of_small_network())
    views = [turn(image) for image in batch for turn in TURNS]
    wanted = run_rows(views, batch_rows(4, same))[:: len(TURNS)]
    adapted = sita.adapt(backend.model(), "augbn", priors=given, share="batch")
    close(backend.run(adapted, batch), wanted)
    assert "statistics of the whole batch" in str(sita.describe(adapted))


def test_shared_statistics_without_prior_are_the_frameworks_own_training_mode(backend: Any) -> None:
    model, batch = backend.model(), images(6)
    wanted = backend.run_in_training_mode(model, batch)
    found = backend.run(sita.adapt(model, "ptn", share="batch"), batch)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow_on("tensorflow", "jax")
@pytest.mark.parametrize("recipe", ["augbn", "ops_shared"])
def test_one_image_shares_with_nobody(backend: Any, recipe: str) -> None:
    model, batch = backend.model(), images(1)
    shared = backend.run(sita.adapt(model, recipe, share="batch"), batch)
    np.testing.assert_allclose(shared, backend.run(sita.adapt(model, recipe), batch), rtol=1e-5, atol=1e-6)


@pytest.mark.slow_on("tensorflow", "jax")
def test_seed_decides_the_papers_views_and_nothing_else(backend: Any) -> None:
    model, batch = backend.model(), images(2)
    first, again, other = (
        backend.run(sita.adapt(model, "augbn", augment="paper", inputs="imagenet", seed=seed), batch)
        for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3
