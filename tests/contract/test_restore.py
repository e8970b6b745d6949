"""`restore`: a mix of the source's output and adapted views, each with its own statistics, against loops and scipy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import reference
import scipy.ndimage
from small_network import Mix, images

import sita_adapters as sita
from sita_adapters.errors import OutputError, RecipeError
from sita_adapters.plan import make_plan, split_source
from sita_adapters.recipe import resolve_recipe

BOLD = sita.ByShift(strength=1.0)
WEIGHT = reference.ADAPTED_WEIGHTS["restore"]


def restored(image: np.ndarray) -> list[np.ndarray]:
    """An image (12, 12, 3) and its views if its encoding is unknown, in float64."""
    image = image.astype(np.float64)
    blurred = scipy.ndimage.gaussian_filter(image, (1, 1, 0), mode="mirror", radius=(4, 4, 0))
    low, high = image.min((0, 1)), image.max((0, 1))
    median = scipy.ndimage.median_filter(image, size=(3, 3, 1), mode="mirror")
    return [image, median, np.clip(image + 0.7 * (image - blurred), low, high)]


def batch_of(count: int) -> np.ndarray:
    """Images at shifts from 0.03 to 0.2; the median is closest to the source of the first, sharpening of the last."""
    batch = images(400, seed=3)[[133, 221, 152, 207]][:count]
    batch[0, ::3, ::2] += 2
    return batch


def close(found: np.ndarray, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"max_rows": 1}], ids=str)
@pytest.mark.parametrize("dense", [False, True], ids=["one label", "a label per pixel"])
@pytest.mark.parametrize("activation", [None, "softmax"])
def test_views_count_by_how_close_they_are_to_the_source(
    backend: Any, activation: str | None, dense: bool, settings: dict[str, Any]
) -> None:
    batch, task = batch_of(4), "segmentation" if dense else "classification"
    adapted = sita.adapt(backend.model(activation=activation, dense=dense), "restore", task=task, **settings)
    rows = [Mix(restored(image), (1, 2), activation=activation, dense=dense) for image in batch]
    kind = "logits" if activation is None else "probabilities"
    weight = reference.SEGMENTATION_WEIGHT if dense else WEIGHT
    close(backend.run(adapted, batch), [each.answer(kind, weight) for each in rows])
    assert sita.describe(adapted).rows == 3
    shares = [each.weights(kind)[1] / sum(each.weights(kind)[1:]) for each in rows]
    assert min(shares) < 0.01
    assert max(shares) > 0.9


@pytest.mark.slow_on("jax")
def test_a_mirrored_view_may_be_mixed_if_pixels_have_no_labels(backend: Any) -> None:
    batch, recipe = batch_of(3), {"augment": "hflip"}
    found = backend.run(sita.adapt(backend.model(), "restore", **recipe), batch)
    close(found, [Mix([image, image[:, ::-1]], (1,)).answer("logits", WEIGHT) for image in batch])
    dense = sita.adapt(backend.model(dense=True), "restore", **recipe)
    with pytest.raises(OutputError, match="move pixels"):
        backend.run(dense, batch)


@pytest.mark.slow_on("jax")
def test_views_of_several_priors_share_the_weight(backend: Any) -> None:
    batch, third = batch_of(2), sita.ByShift(strength=0.4, half_shift=0.05, half_area=0.4)
    adapted = sita.adapt(backend.model(), "restore", priors=(BOLD, 1.0, third))
    rules = reference.BOLD, reference.Rule(0.4, 0.05, 0.4)
    rows = [Mix(restored(image), (1, 2), rules) for image in batch]
    close(backend.run(adapted, batch), [each.answer("logits", WEIGHT) for each in rows])


@pytest.mark.parametrize("output", ["two", "dict"])
@pytest.mark.parametrize("moved", [False, True])
def test_outputs_that_cannot_be_averaged_come_from_one_row(backend: Any, output: str, moved: bool) -> None:
    """Never from a view that moves pixels: boxes and feature maps would be mirrored."""
    batch, without_scores = batch_of(4), output == "two"
    batch[1] *= 4
    changes: dict[str, Any] = {"augment": ("hflip", "sharpen"), "adapted_weight": 2.0} if moved else {}
    adapted = sita.adapt(backend.model(output), "restore", example=backend.to_images(batch), **changes)
    found = backend.run(adapted, batch)
    eligible, chosen, best = [0, 2] if moved else [0, 1, 2], [], []
    for place, image in enumerate(batch):
        _, median, sharp = restored(image)
        rows = Mix([image, image[:, ::-1] if moved else median, sharp], (1, 2))
        if without_scores:
            weights = reference.selection_weights(rows.shifts, eligible)
            best.append(np.argmax(reference.selection_weights(rows.shifts)))
        else:
            weights = rows.weights("logits", changes.get("adapted_weight", WEIGHT))
            best.append(np.argmax(weights))
        chosen.append(max(eligible, key=lambda row, weights=weights: weights[row]))
        close(found["a" if without_scores else "logits"][place], rows.scores[chosen[-1]])
        if not without_scores:
            close(found["features"][place], rows.features[chosen[-1]])
    assert len(set(chosen)) > 1
    assert (chosen != best) == moved


@pytest.mark.slow_on("jax")
def test_a_batch_is_its_images_one_by_one(backend: Any) -> None:
    adapted, batch = sita.adapt(backend.model(), "restore"), batch_of(3)
    together = backend.run(adapted, batch)
    for place in range(3):
        np.testing.assert_allclose(
            together[place : place + 1], backend.run(adapted, batch[place : place + 1]), rtol=1e-5, atol=1e-5
        )


def test_every_row_is_observed(backend: Any) -> None:
    adapted, batch = sita.adapt(backend.model(), "restore"), batch_of(2)
    with sita.observe(adapted) as seen:
        backend.run(adapted, batch)
    rows = [Mix(restored(image), (1, 2)) for image in batch]
    assert seen.candidates == (1.0, BOLD, BOLD)
    assert np.isnan(seen.shifts[:, 0]).all()
    np.testing.assert_allclose(seen.shifts[:, 1:], [each.shifts[1:] for each in rows], rtol=1e-4)
    np.testing.assert_allclose(seen.weights, [each.weights("logits", WEIGHT) for each in rows], rtol=1e-3)
    np.testing.assert_array_equal(seen.labels, [each.scores.argmax(-1) for each in rows])


@pytest.mark.parametrize("output", ["scores", "two", "dict"])
def test_an_overflow_shows_in_the_answer(backend: Any, output: str) -> None:
    batch = batch_of(2)
    batch[0] = 1e25
    found = backend.run(sita.adapt(backend.model(output), "restore"), batch)
    for each in found.values() if isinstance(found, dict) else [found]:
        assert np.isnan(each).reshape(2, -1).all(1).tolist() == [True, False]


def test_an_overflow_of_one_view_shows_in_mixed_scores(backend: Any) -> None:
    adapted = sita.adapt(backend.model(), "restore", augment=["median", lambda x: 1e25 * x])
    assert np.isnan(backend.run(adapted, batch_of(1))).all()


@pytest.mark.parametrize("order", [(1.0, BOLD), (BOLD, 1.0)], ids=["source first", "source last"])
def test_every_row_of_the_plan_has_its_own_statistics(order: tuple[Any, ...]) -> None:
    plan = make_plan(resolve_recipe("restore", {"priors": order}))
    assert [plan.views[view].name for view in plan.view_of_row] == ["image", "median", "sharpen"]
    assert plan.independent
    np.testing.assert_array_equal(plan.weights, np.eye(3))
    assert plan.candidates == ((0, 1, 2) if order[0] == 1.0 else (1, 2, 0))
    assert sorted(part.rows for part in split_source(plan)) == [1, 2]
    segmenting = resolve_recipe("restore", {}, "segmentation")
    assert segmenting == replace(sita.RECIPES["restore"], adapted_weight=reference.SEGMENTATION_WEIGHT)
    assert not any(map(make_plan(segmenting).moves_pixels, range(3)))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"priors": 1.0}, "combine: expected 1 and another prior"),
        ({"priors": 0.5}, "combine: expected 1 and another prior"),
        ({"n_views": 0}, "n_views: expected at least one view"),
        ({"n_views": 3}, "has 2 views"),
    ],
)
def test_recipes_that_contradict_themselves(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        sita.Recipe(**{**vars(sita.RECIPES["restore"]), **fields})
