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
    assert [point.agreement for point in found.points] == list(agreements.values())[: len(found.points)]
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
    assert found.points[0].accuracy == 1.0
    assert found.source_accuracy == (labels_of(backend, model, batch) == truth).mean() < 1


def test_one_number_is_calibrated_too(backend: Any) -> None:
    batch = backend.to_images(images(COUNT))
    recipe = sita.calibrate(backend.model(), batch, min_agreement=0.9, recipe="augbn", n_views=1, priors=0.8).recipe
    assert recipe.name == "augbn"
    assert recipe.n_views == 1
    assert recipe.prior_values[0] in [1 - strength / 2 for strength in STRENGTHS]


def test_progress_is_told(backend: Any) -> None:
    told: list[tuple[int, int]] = []
    sita.calibrate(
        backend.model(),
        backend.to_images(images(COUNT)),
        min_agreement=0.01,
        batch_size=8,
        progress=lambda *n: told.append(n),
    )
    assert told[:3] == [(1, 27), (2, 27), (3, 27)]
    assert told[-1] == (27, 27)


def test_where_nothing_keeps_the_predictions_it_warns(backend: Any) -> None:
    batch = images(COUNT)
    batch[: COUNT // 2] *= 40  # far from anything the network knows
    with pytest.warns(sita.SitaWarning, match=r"keeps.*'source' was chosen"):
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
    for recipe in ("ops", "source", "ensemble"):
        with pytest.raises(RecipeError, match=r"no number to calibrate.*'auto'"):
            sita.calibrate(model, batch, recipe=recipe)
    broken = batch.copy()
    broken[3, 0, 0, 0] = np.nan
    for given, message in (
        (batch[:15], "at least 16.*received 15"),
        (broken, "received 24 with NaN or infinity"),
        ([batch[0], batch[1][:4]], "to one size"),
        ("images", "expected numbers"),
    ):
        with pytest.raises(InputError, match=message):
            sita.calibrate(model, given)
    for labels in (np.zeros(3, int), np.zeros(COUNT)):
        with pytest.raises(InputError, match="labels: expected integers, one entry for each image"):
            sita.calibrate(model, backend.to_images(batch), labels)
    for least in (0, 1.5, "all", True):
        with pytest.raises(InputError, match="min_agreement"):
            sita.calibrate(model, backend.to_images(batch), min_agreement=least)
