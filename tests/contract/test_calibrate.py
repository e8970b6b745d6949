"""`calibrate`: the strongest recipe that keeps the predictions on clean images."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from small_network import images

import sita_adapters as sita
from sita_adapters.calibrate import STRENGTHS
from sita_adapters.errors import InputError, RecipeError

COUNT = 24


def labels_of(backend: Any, model: Any, batch: np.ndarray) -> np.ndarray:
    return np.concatenate([backend.run(model, batch[i : i + 8]).argmax(-1) for i in range(0, len(batch), 8)])


@pytest.mark.parametrize("least", [0.8, 1.0])
def test_the_strongest_that_keeps_the_predictions_is_chosen(backend: Any, least: float) -> None:
    """Against every strength by itself."""
    model, batch = backend.model(), images(COUNT, seed=5)
    rule = sita.ByShift(half_area=1)
    source = labels_of(backend, model, batch)
    agreements = {}
    for strength in STRENGTHS:
        adapted = sita.adapt(model, "shift", priors=sita.ByShift(strength=strength, half_area=1))
        agreements[strength] = (labels_of(backend, adapted, batch) == source).mean()
    wanted = next((strength for strength, share in agreements.items() if share >= least), None)
    warned = pytest.warns(sita.SitaWarning, match="No strength") if wanted is None else contextlib.nullcontext()
    with warned:
        found = sita.calibrate(model, backend.to_images(batch), min_agreement=least, recipe="shift", priors=rule)
    assert found.tried[0] == (sita.RECIPES["source"], 1.0)
    assert [share for _, share in found.tried[1:]] == list(agreements.values())[: len(found.tried) - 1]
    if wanted is None:
        assert found.recipe == sita.RECIPES["source"]
    else:
        assert found.recipe.rule == sita.ByShift(strength=wanted, half_area=1)
    assert len(set(agreements.values())) > 2


def test_labels_decide_by_accuracy(backend: Any) -> None:
    model, batch = backend.model(), images(COUNT, seed=5)
    bold = sita.adapt(model, "shift", priors=sita.ByShift(strength=1.0))
    truth = labels_of(backend, bold, batch)  # on these, the source is the one that errs
    found = sita.calibrate(
        model, backend.to_images(batch), truth, min_agreement=1.0, recipe="shift", priors=sita.ByShift()
    )
    assert found.recipe.rule.strength == 1.0
    assert [share for _, share in found.tried] == [(labels_of(backend, model, batch) == truth).mean(), 1.0]
    assert found.tried[0][1] < 1


def test_where_nothing_keeps_the_predictions_it_warns(backend: Any) -> None:
    batch = images(COUNT)
    batch[: COUNT // 2] *= 40  # far from anything the network knows
    with pytest.warns(sita.SitaWarning, match=r"No strength keeps.*'source' was chosen"):
        recipe = sita.calibrate(
            backend.model(),
            backend.to_images(batch),
            min_agreement=1.0,
            recipe="shift",
            priors=sita.ByShift(half_shift=1e-4, half_area=0),
        ).recipe
    assert recipe == sita.RECIPES["source"]


def test_what_cannot_be_calibrated(backend: Any) -> None:
    model, batch = backend.model(), images(COUNT)
    for recipe in ("ops", "source", "bn"):
        with pytest.raises(RecipeError, match=r"expected a rule.*'auto'"):
            sita.calibrate(model, batch, recipe=recipe)
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
