"""`calibrate`: a rule from clean images. What it measures and how far it moves outputs, against loops in float64."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import reference
from small_network import CLASSES, EPSILONS, images, make_weights, moments, run_rows

import sita_adapters as sita
from sita_adapters.corrupted import corrupt
from sita_adapters.errors import InputError

pytestmark = pytest.mark.slow_on("tensorflow", "jax")

BATCH = images(24, seed=5)
HALF = 2.0**-11
"""The rounding of half precision, in which a rule keeps its arrays."""


def labels_of(backend: Any, model: Any, batch: np.ndarray) -> np.ndarray:
    return np.concatenate([backend.run(model, batch[i : i + 8]).argmax(-1) for i in range(0, len(batch), 8)])


def movement_of(recipe: sita.Recipe, batch: np.ndarray, centered: bool = True) -> float:
    """How far the recipe moves outputs, relative to the distance between those of two images; medians."""
    rule = recipe.rule
    layers = {
        name: reference.Reliability(each.means, each.variances, rule.caution) for name, each in rule.layers.items()
    }
    rows = [reference.Row(0, 1.0, {}), reference.Row(0, layers, {1: 1.0})]
    outputs = np.stack([run_rows([image], rows) for image in batch])
    if centered:
        outputs -= outputs.mean(-1, keepdims=True)
    source, adapted = outputs[:, 0], outputs[:, 1]
    between = [np.linalg.norm(source[i] - source[i - 1]) for i in range(len(batch))]
    return float(np.median(np.linalg.norm(source - adapted, axis=1)) / np.median(between))


def percentages(recipe: sita.Recipe) -> dict[str, tuple[float, float]]:
    """Of every recipe in the notes, the predictions as wanted on clean and on corrupted images."""
    lines = [line.split() for line in recipe.notes.splitlines()[2:]]
    return {name: (float(clean.rstrip("%")), float(corrupted.rstrip("%"))) for clean, corrupted, name in lines}


def test_the_rule_has_the_spread_of_every_channel(backend: Any) -> None:
    recipe = sita.calibrate(backend.model(), backend.to_images(BATCH))
    assert (recipe.name, recipe.prior_values, recipe.view_count) == ("calibrated", (recipe.rule,), 0)
    assert recipe.rule.layers.keys() == EPSILONS.keys()
    weights = {name: value.astype(np.float64) for name, value in make_weights().items()}
    for name, (means, variances) in moments(BATCH).items():
        m_s, v_s = weights[f"{name}/mean"], weights[f"{name}/variance"] + EPSILONS[name]
        t = ((means - m_s) / np.sqrt(v_s)).var(0)
        e = np.log((variances + EPSILONS[name]) / v_s).var(0)
        np.testing.assert_allclose(recipe.rule.layers[name].means.astype(float), t, rtol=HALF + 1e-5)
        np.testing.assert_allclose(recipe.rule.layers[name].variances.astype(float), e, rtol=HALF + 1e-5)


def test_outputs_on_clean_images_move_as_far_as_wanted(backend: Any) -> None:
    model, cautions = backend.model(), []
    for movement in (0.3, 0.15, 0.08):
        recipe = sita.calibrate(model, backend.to_images(BATCH), movement=movement)
        found = movement_of(recipe, BATCH)
        assert found == pytest.approx(movement, rel=0.1)
        assert f"by {found:.1%}" in recipe.notes
        cautions.append(recipe.rule.caution)
    assert cautions == sorted(cautions)
    assert cautions[0] < 0.8 * cautions[1]


def test_models_with_and_without_a_softmax_get_the_same_recipe(backend: Any) -> None:
    one, other = (sita.calibrate(backend.model(activation=a), backend.to_images(BATCH)) for a in (None, "softmax"))
    assert one.rule.caution == pytest.approx(other.rule.caution, rel=1e-3)
    assert percentages(one) == percentages(other)


@pytest.mark.parametrize("output", ["scores", "dict"])
def test_without_class_scores_all_numbers_count(backend: Any, output: str) -> None:
    model, given = backend.model(output), backend.to_images(BATCH)
    recipe = sita.calibrate(model, given, scores="none")
    assert len(recipe.notes.splitlines()) == 1
    if output == "scores":
        assert movement_of(recipe, BATCH, centered=False) == pytest.approx(0.15, rel=0.1)
    with pytest.raises(InputError, match="labels"):
        sita.calibrate(model, given, np.zeros(len(BATCH), int), scores="none")


def test_the_notes_tell_what_is_predicted_as_by_the_source_or_as_labeled(backend: Any) -> None:
    model = backend.model()
    recipe = sita.calibrate(model, backend.to_images(BATCH))
    source, adapted = labels_of(backend, model, BATCH), labels_of(backend, sita.adapt(model, recipe), BATCH)
    given = np.asarray(backend.to_images(BATCH))
    channel = given.shape.index(3)
    space = [axis for axis in (1, 2, 3) if axis != channel]
    copies, indices = (np.concatenate(each) for each in zip(*corrupt(given, space), strict=True))
    copies = np.moveaxis(copies, channel, -1)
    corrupted = [labels_of(backend, each, copies) for each in (model, sita.adapt(model, recipe))]
    truth = np.where(np.arange(24) % 3, adapted, (source + 1) % CLASSES)
    for wanted in (source, truth):
        labeled = sita.calibrate(model, backend.to_images(BATCH), None if wanted is source else truth)
        assert labeled == recipe
        for place, name in enumerate(("source", "calibrated")):
            shares = [((source, adapted)[place] == wanted).mean(), (corrupted[place] == wanted[indices]).mean()]
            assert percentages(labeled)[name] == pytest.approx([100 * share for share in shares], abs=0.051)


def test_of_many_images_some_are_compared(backend: Any) -> None:
    """Of 70 every other one, with its own label."""
    batch, model = images(70, seed=6), backend.model()
    truth = (labels_of(backend, model, batch) + np.arange(70) % 2) % CLASSES
    recipe = sita.calibrate(model, backend.to_images(batch), truth, movement=0.2)
    assert "35 clean images" in recipe.notes
    assert percentages(recipe)["source"][0] == 100.0
    assert movement_of(recipe, batch[::2]) == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize("movement", [0.15, 0.05, 1.0], ids=["usual", "after many steps", "out of reach"])
def test_progress_grows_to_one(backend: Any, movement: float) -> None:
    seen: list[float] = []
    sita.calibrate(backend.model(), backend.to_images(BATCH), movement=movement, progress=seen.append)
    assert seen[0] > 0
    assert all(one <= other for one, other in pairwise(seen))
    assert seen[-1] == 1.0


def test_a_calibrated_recipe_is_stored_and_adapts_the_layers_that_it_was_measured_on(backend: Any) -> None:
    model = backend.model()
    before = backend.fingerprint(model)
    recipe = sita.calibrate(model, backend.to_images(BATCH), layers=["bn1", "bn3"], max_rows=1)
    assert backend.fingerprint(model) == before
    again = sita.Recipe.from_json(recipe.to_json())
    assert (again, again.notes) == (recipe, recipe.notes)
    assert again.rule.layers.keys() == {"bn1", "bn3"}
    found, wanted = (backend.run(sita.adapt(model, each, layers="bn[13]"), BATCH[:3]) for each in (again, recipe))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("made", "settings"),
    [({"dense": True}, {"task": "segmentation"}), ({"classes": 4}, {"scores": "sigmoid"}), ({"output": "labels"}, {})],
    ids=["label maps", "independent labels", "labels alone"],
)
def test_other_outputs_are_calibrated_too(backend: Any, made: dict[str, Any], settings: dict[str, Any]) -> None:
    recipe = sita.calibrate(backend.model(**made), backend.to_images(BATCH), **settings)
    assert np.isfinite(recipe.rule.caution)
    if made != {"output": "labels"}:
        assert percentages(recipe)["source"][0] == 100.0 >= percentages(recipe)["calibrated"][0] > 60.0


@pytest.mark.parametrize("strength", [0.3, 0.8])
def test_corrupted_copies_are_as_described(strength: float) -> None:
    batch = images(20, seed=1)
    copies = list(corrupt(batch, [1, 2]))
    assert len(copies) == 10
    assert sorted(np.concatenate([which for _, which in copies])) == list(range(20))
    for copy, which in copies:
        assert copy.shape == batch[which].shape
        assert copy.dtype == batch.dtype
        assert batch.min() <= copy.min() <= copy.max() <= batch.max()
        assert np.abs(copy - batch[which]).mean() > 0.02 * batch.std()
    blurred, which = copies[4 if strength == 0.3 else 9]
    reach = max(1, round(0.05 * strength * batch.shape[1]))
    window = batch[which[0], 5 - reach : 6 + reach, 6 - reach : 7 + reach, 1]
    assert blurred[0, 5, 6, 1] == pytest.approx(window.mean(), rel=1e-4)


def test_what_cannot_be_calibrated(backend: Any) -> None:
    model, broken = backend.model(), BATCH.copy()
    broken[3, 0, 0, 0] = np.nan
    for given in (BATCH[:15], broken, "images"):
        with pytest.raises(InputError, match="images"):
            sita.calibrate(model, given)
    with pytest.raises(sita.SitaError, match="finite"):
        sita.calibrate(model, backend.to_images(np.where(np.arange(24) % 3, 1e25, 1)[:, None, None, None] * BATCH))
    for labels in (np.zeros(3, int), np.zeros(24)):
        with pytest.raises(InputError, match="labels"):
            sita.calibrate(model, backend.to_images(BATCH), labels)
    for movement in (0, 1.5, float("nan"), True, "0.1"):
        with pytest.raises(InputError, match="movement"):
            sita.calibrate(model, backend.to_images(BATCH), movement=movement)
