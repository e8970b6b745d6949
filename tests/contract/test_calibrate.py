"""`calibrate`: a recipe from clean images, chosen by what is measured on them and on corrupted copies."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
import reference
from small_network import EPSILONS, images, run_rows

import sita_adapters as sita
from sita_adapters.errors import InputError

pytestmark = pytest.mark.slow_on("tensorflow", "jax")

calibration = importlib.import_module("sita_adapters.calibrate")  # the name is the function's, too
COUNT = 24


def labels_of(backend: Any, model: Any, batch: np.ndarray) -> np.ndarray:
    return np.concatenate([backend.run(model, batch[i : i + 8]).argmax(-1) for i in range(0, len(batch), 8)])


def lines_of(recipe: sita.Recipe) -> list[tuple[int, float, float, str]]:
    """Rows, percentages on clean and on corrupted images, and the recipe, of every recipe that was tried."""
    found = []
    for line in recipe.notes.splitlines()[2:]:
        rows, clean, corrupted, text = line.split(maxsplit=3)
        found.append((int(rows), float(clean.rstrip("%")), float(corrupted.rstrip("%")), text))
    return found


def test_the_rule_has_the_mean_shift_of_every_layer(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "ROW_VALUE", 100.0)  # one row wins
    batch = images(COUNT, seed=5)
    recipe = sita.calibrate(backend.model(), backend.to_images(batch), min_agreement=0.01)
    assert recipe.name == "auto-calibrated"
    shifts = []
    for image in batch:
        calls: list[list[reference.LayerCall]] = []
        run_rows([image], [reference.Row(0, reference.Rule(1e-12, 0.5), {0: 1.0})], calls=calls)
        shifts.append([call.shift for call in calls[0]])
    wanted = dict(zip(EPSILONS, np.mean(shifts, axis=0), strict=True))
    assert recipe.rule.clean_shifts == pytest.approx(wanted, rel=1e-4)


def test_every_recipe_is_tried_and_the_best_is_chosen(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The percentages on clean images against each recipe by itself; the choice against the table."""
    monkeypatch.setattr(calibration, "MIRROR_AGREEMENT", 0.0)
    monkeypatch.setattr(calibration, "ROW_VALUE", 200.0)  # the cheapest is best
    model, batch, seen = backend.model(), images(COUNT, seed=5), []
    chosen = sita.calibrate(model, backend.to_images(batch), min_agreement=0.6, progress=seen.append)
    lines = lines_of(chosen)
    rule = next(prior for prior in (chosen.rule, *chosen.prior_values) if isinstance(prior, sita.ByExcessShift))
    made = {"name": "auto-calibrated", "priors": rule, "n_views": 0}
    recipes = [
        sita.RECIPES["source"],
        sita.Recipe(**made),
        sita.Recipe(**{**made, "priors": (1.0, rule)}, combine="mix"),
        sita.Recipe(**{**made, "n_views": 1}, augment="hflip", candidates="views", combine="mean"),
        sita.RECIPES["auto"],
    ]
    assert [text for *_, text in lines] == [str(recipe) for recipe in recipes]
    source = labels_of(backend, model, batch)
    for (rows, clean, _, _), recipe in zip(lines, recipes, strict=True):
        adapted = sita.adapt(model, recipe)
        assert rows == sita.describe(adapted).rows
        assert clean == pytest.approx(100 * (labels_of(backend, adapted, batch) == source).mean(), abs=0.051)
    assert lines[1][2] > lines[0][2]
    assert chosen == recipes[1]
    assert seen == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    again = sita.Recipe.from_json(chosen.to_json())
    assert (again, again.notes) == (chosen, chosen.notes)


@pytest.mark.parametrize(
    ("rows", "won", "lost", "chosen"),
    [
        (1, 0, 0, "other"),  # as good as auto, in one row
        (1, 0, 8, "auto"),
        (2, 10, 7, "auto"),  # 3 points better, within chance
        (2, 12, 0, "other"),
        (3, 2, 0, "auto"),  # one more row must gain more
        (3, 12, 0, "other"),
    ],
)
def test_another_recipe_must_be_better_beyond_chance(backend: Any, rows: int, won: int, lost: int, chosen: str) -> None:
    """On a hundred images, of which `auto` predicts fifty as wanted."""

    def tried(name: str, row_count: int, right: slice) -> Any:
        values = np.zeros(100)
        values[right] = 100.0
        return calibration._Tried(sita.Recipe(name=name, priors=0.9), row_count, 95.0, values)

    source = calibration._Tried(sita.RECIPES["source"], 1, 100.0, np.zeros(100))
    other, auto = tried("other", rows, slice(lost, 50 + won)), tried("auto", 2, slice(50))
    assert calibration._choose([source, other, auto], 100, 0.9).name == chosen


def test_a_mirror_image_answers_only_if_it_means_the_same(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = backend.model(), images(COUNT, seed=5)
    agreement = (labels_of(backend, model, batch) == labels_of(backend, model, batch[:, :, ::-1].copy())).mean()
    for least, count in ((agreement, 5), (agreement + 0.01, 4)):
        monkeypatch.setattr(calibration, "MIRROR_AGREEMENT", least)
        assert len(lines_of(sita.calibrate(model, backend.to_images(batch), min_agreement=0.01))) == count


def test_labels_say_what_is_right(backend: Any) -> None:
    model, batch = backend.model(), images(COUNT, seed=5)
    truth = labels_of(backend, sita.adapt(model), batch)  # on these, the source is the one that errs
    lines = lines_of(sita.calibrate(model, backend.to_images(batch), truth, min_agreement=0.01))
    assert lines[0][1] == pytest.approx(100 * (labels_of(backend, model, batch) == truth).mean(), abs=0.051)
    assert lines[0][1] < lines[-1][1] == 100.0


def test_if_every_recipe_changes_predictions_it_warns(backend: Any) -> None:
    batch = images(COUNT)
    batch[: COUNT // 2] *= 40  # far from anything the network knows
    with pytest.warns(sita.SitaWarning, match=r"No recipe keeps 100%.*'source', which does not adapt, was chosen"):
        recipe = sita.calibrate(backend.model(), backend.to_images(batch), min_agreement=1.0)
    assert recipe == sita.RECIPES["source"]
    assert "+0.0 points on corrupted images" in recipe.notes


def test_label_maps_are_calibrated_without_mirror_images(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "MIRROR_AGREEMENT", 0.0)
    recipe = sita.calibrate(backend.model(dense=True), backend.to_images(images(16)), min_agreement=0.01)
    assert len(lines_of(recipe)) == 4


@pytest.mark.parametrize("strength", [0.3, 0.8])
def test_corrupted_copies_are_as_described(strength: float) -> None:
    batch = images(6, seed=1)
    copies = list(calibration._corrupt(batch, [1, 2]))
    assert len(copies) == 10
    for copy, which in copies:
        assert copy.shape == batch[which].shape
        assert copy.dtype == batch.dtype
        assert batch.min() <= copy.min() <= copy.max() <= batch.max()
        assert np.abs(copy - batch[which]).mean() > 0.02 * batch.std()
    blurred = calibration._blur(batch, [1, 2], strength)
    reach = max(1, round(0.05 * strength * batch.shape[1]))
    window = batch[0, 5 - reach : 6 + reach, 6 - reach : 7 + reach, 1]
    assert blurred[0, 5, 6, 1] == pytest.approx(window.mean(), rel=1e-4)


def test_what_cannot_be_calibrated(backend: Any) -> None:
    model, batch = backend.model(), images(COUNT)
    broken = batch.copy()
    broken[3, 0, 0, 0] = np.nan
    for given, message in (
        (batch[:15], r"16 or more.*received \(15, "),
        (broken, "finite numbers"),
        ("images", "of finite numbers"),
    ):
        with pytest.raises(InputError, match=message):
            sita.calibrate(model, given)
    for labels in (np.zeros(3, int), np.zeros(COUNT)):
        with pytest.raises(InputError, match=r"labels: expected integers, \(24,\)"):
            sita.calibrate(model, backend.to_images(batch), labels)
    for least in (0, 1.5, float("nan")):
        with pytest.raises(InputError, match="min_agreement"):
            sita.calibrate(model, backend.to_images(batch), min_agreement=least)
