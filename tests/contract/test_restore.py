"""`restore`: a mix whose candidates are views, each with statistics of its own, against loops in float64 and scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
import scipy.ndimage
from small_network import images, run_rows

import sita_adapters as sita
from sita_adapters.combining import SELECTION_SHIFT
from sita_adapters.errors import OutputError, RecipeError
from sita_adapters.plan import make_plan, split_source
from sita_adapters.recipe import resolve_recipe

BOLD = sita.ByShift(strength=1.0)


def restored(image: np.ndarray) -> list[np.ndarray]:
    """The views of one image (12, 12, 3) whose encoding is unknown, in float64."""
    image = image.astype(np.float64)
    blurred = scipy.ndimage.gaussian_filter(image, (1, 1, 0), mode="mirror", radius=(4, 4, 0))
    low, high = image.min((0, 1)), image.max((0, 1))
    median = scipy.ndimage.median_filter(image, size=(3, 3, 1), mode="mirror")
    return [image, median, np.clip(image + 0.7 * (image - blurred), low, high)]


class Rows:
    """The rows of one image, the source's first, and s of each, whose square counts in the mix."""

    def __init__(self, inputs: list[np.ndarray], source_shift: float = reference.SOURCE_SHIFT, **options: Any) -> None:
        rows = [reference.Row(0, 1.0, {})]
        rows += [reference.Row(view, reference.BOLD, {view + 1: 1.0}) for view in range(len(inputs))]
        calls: list[list[reference.LayerCall]] = []
        self.scores = run_rows(inputs, rows, calls=calls, **options)
        self.features = run_rows(inputs, rows, **{**options, "part": "features"})
        self.shifts = [reference.image_shift(each) for each in calls[1:]]
        own = self.shifts[0]
        self.s = np.array([source_shift, own, *(own * own / view for view in self.shifts[1:])])

    def weights(self, scores: np.ndarray, kind: str) -> np.ndarray:
        u = self.s**2 * [reference.confidence(each, kind) for each in scores]
        return np.asarray(u / u.sum())

    def answer(self, activation: str | None = None) -> np.ndarray:
        if activation is None:
            return np.tensordot(self.weights(self.scores, "logits"), self.scores, 1)
        p = reference.softmax(self.scores)
        return reference.softmax(np.tensordot(self.weights(p, "probabilities"), np.log(p), 1))


def batch_of(count: int) -> np.ndarray:
    """Images at shifts from 0.03 to 0.2, one of them with noise that a median removes."""
    batch = images(400, seed=3)[[133, 221, 152, 337]][:count]
    batch[0, ::3, ::2] += 2
    return batch


def close(found: np.ndarray, wanted: Any) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", [{}, {"max_rows": 1}], ids=str)
@pytest.mark.parametrize("dense", [False, True], ids=["one label", "a label per pixel"])
@pytest.mark.parametrize("activation", [None, "softmax"])
def test_views_count_by_how_much_they_reduce_the_shift(
    backend: Any, activation: str | None, dense: bool, settings: dict[str, Any]
) -> None:
    batch, task = batch_of(4), "segmentation" if dense else "classification"
    adapted = sita.adapt(backend.model(activation=activation, dense=dense), "restore", task=task, **settings)
    rows = [Rows(restored(image), dense=dense) for image in batch]
    close(backend.run(adapted, batch), [each.answer(activation) for each in rows])
    assert sita.describe(adapted).rows == 4
    ratios = np.array([np.divide(each.shifts[1:], each.shifts[0]) for each in rows])
    assert ratios.min() < 0.75
    assert ratios.max() > 1.1
    by_own_shift = [(each.s[:1].tolist() + each.shifts) for each in rows]
    assert np.abs(np.array(by_own_shift) - [each.s for each in rows]).max() > 0.05


@pytest.mark.slow_on("jax")
def test_a_mirrored_view_may_be_mixed_if_pixels_have_no_labels(backend: Any) -> None:
    batch, recipe = batch_of(3), {"augment": "hflip"}
    found = backend.run(sita.adapt(backend.model(), "restore", **recipe), batch)
    close(found, [Rows([image, image[:, ::-1]]).answer() for image in batch])
    dense = sita.adapt(backend.model(dense=True), "restore", **recipe)
    with pytest.raises(OutputError, match="move pixels"):
        backend.run(dense, batch)


@pytest.mark.slow_on("jax")
def test_views_of_several_priors_count_against_the_image_under_the_same_prior(backend: Any) -> None:
    batch, third = batch_of(2), sita.ByShift(strength=1.0, half_shift=0.05, half_area=0.4)
    adapted = sita.adapt(backend.model(), "restore", priors=(BOLD, 1.0, third), augment="median")
    for image, answer in zip(batch, backend.run(adapted, batch), strict=True):
        rules = [reference.BOLD, reference.Rule(1.0, 0.05, 0.4)]
        rows = [reference.Row(0, 1.0, {})]
        rows += [reference.Row(view, rule, {1 + 2 * i + view: 1.0}) for i, rule in enumerate(rules) for view in (0, 1)]
        calls: list[list[reference.LayerCall]] = []
        scores = run_rows(restored(image)[:2], rows, calls=calls)
        a, a_view, b, b_view = (reference.image_shift(each) for each in calls[1:])
        s = np.array([reference.SOURCE_SHIFT * 2**0.5, a, a * a / a_view, b, b * b / b_view])
        u = s**2 * [reference.confidence(each, "logits") for each in scores]
        close(answer, np.tensordot(u / u.sum(), scores, 1))


@pytest.mark.parametrize(("output", "moved"), [("two", ""), ("dict", ""), ("dict", "hflip")])
def test_outputs_that_cannot_be_averaged_come_from_one_row(backend: Any, output: str, moved: str) -> None:
    """Never from a view that moves pixels: boxes and feature maps would be mirrored."""
    batch, without_scores = batch_of(4), output == "two"
    batch[1] *= 4
    views: dict[str, Any] = {"augment": ("median", moved)} if moved else {}
    adapted = sita.adapt(backend.model(output), "restore", example=backend.to_images(batch), **views)
    found = backend.run(adapted, batch)
    chosen = []
    for place, image in enumerate(batch):
        inputs = [*restored(image)[:2], image[:, ::-1]] if moved else restored(image)
        rows = Rows(inputs, SELECTION_SHIFT if without_scores else reference.SOURCE_SHIFT)
        weights = rows.s if without_scores else rows.weights(rows.scores, "logits")
        chosen.append(int(np.argmax(weights[:3] if moved else weights)))
        close(found["a" if without_scores else "logits"][place], rows.scores[chosen[-1]])
        if not without_scores:
            close(found["features"][place], rows.features[chosen[-1]])
    assert len(set(chosen)) > 1


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
    rows = [Rows(restored(image)) for image in batch]
    assert seen.candidates == (1.0, BOLD, BOLD, BOLD)
    np.testing.assert_allclose(seen.shifts[:, 1:], [each.shifts for each in rows], rtol=1e-4)
    np.testing.assert_array_equal(seen.labels, [each.scores.argmax(-1) for each in rows])


def test_an_overflow_shows_in_the_answer(backend: Any) -> None:
    batch = batch_of(2)
    batch[0] = 1e25
    found = backend.run(sita.adapt(backend.model(), "restore"), batch)
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1]).all()


@pytest.mark.parametrize("order", [(1.0, BOLD), (BOLD, 1.0)], ids=["source first", "source last"])
def test_every_row_of_the_plan_has_its_own_statistics(order: tuple[Any, ...]) -> None:
    plan = make_plan(resolve_recipe("restore", {"priors": order}))
    assert [plan.views[view].name for view in plan.view_of_row] == ["image", "image", "median", "sharpen"]
    assert plan.independent
    np.testing.assert_array_equal(plan.weights, np.eye(4))
    image = order.index(BOLD)
    assert plan.candidates == ((0, 1, 2, 3) if image else (1, 2, 3, 0))
    assert plan.image_candidates == ((0, 1, 1, 1) if image else (0, 0, 0, 3))
    assert sorted(part.rows for part in split_source(plan)) == [1, 3]
    segmenting = resolve_recipe("restore", {}, "segmentation")
    assert segmenting == sita.RECIPES["restore"]
    assert not any(map(make_plan(segmenting).moves_pixels, range(4)))


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
