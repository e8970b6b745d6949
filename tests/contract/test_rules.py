"""Priors that are rules: λ by the shift and the reliability that a layer sees, against loops in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from reliable_rules import make_rule, statistics_of_small_network
from small_network import EPSILONS, images, make_weights, run_rows

import sita_adapters as sita
from sita_adapters.errors import RecipeError

pytestmark = pytest.mark.slow_on("tensorflow", "jax")

RULE = sita.ByShift(strength=0.9, half_shift=0.3, half_area=0.3)
WEAK = sita.ByShift(strength=0.2, half_shift=0.1)
RELIABLE, SAME_RELIABLE = make_rule(statistics_of_small_network(), caution=0.5)
CAUTIOUS, SAME_CAUTIOUS = make_rule(statistics_of_small_network(), caution=3.0, strength=0.7, half_shift=0.2)
SAME: dict[Any, Any] = {rule: reference.Rule(rule.strength, rule.half_shift, rule.half_area) for rule in (RULE, WEAK)}
SAME |= {RELIABLE: SAME_RELIABLE, CAUTIOUS: SAME_CAUTIOUS}
TURNS = [lambda x, k=k: np.rot90(x, k, axes=(0, 1)) for k in (0, 1, 3)]
NAMES = tuple(EPSILONS)

CASES: dict[str, tuple[Any, int]] = {
    "a rule": (RULE, 0),
    "with views": (RULE, 2),
    "beside the source": ((1.0, RULE), 0),
    "beside the source, with views": ((1.0, RULE), 2),
    "two rules": ((RULE, WEAK), 0),
    "beside numbers, with views": ((0.7, RULE, 1.0, 0.4), 2),
    "by reliability": (RELIABLE, 0),
    "by reliability, with views": (CAUTIOUS, 2),
    "by reliability, beside the source": ((1.0, RELIABLE), 0),
    "by reliability, beside all else": ((1.0, RELIABLE, 0.5, RULE, CAUTIOUS), 1),
}


EVERYWHERE = "by reliability, beside the source"
"""The case that is quick enough for every backend."""


def expected(image: np.ndarray, priors: Any, n: int, **options: Any) -> tuple[np.ndarray, list[int]]:
    """The candidates of the small network, and which rows they are, without any of the library's code."""
    listed = priors if isinstance(priors, tuple) else (priors,)
    rows, candidates = reference.ops_rows([SAME.get(prior, prior) for prior in listed], n)
    return run_rows([turn(image) for turn in TURNS[: 1 + n]], rows, **options)[candidates], candidates


def answer(candidates: np.ndarray) -> np.ndarray:
    return reference.vote(candidates, len(candidates)) if len(candidates) > 1 else candidates[0]


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        *((case, {}) for case in CASES if case != EVERYWHERE),
        pytest.param(EVERYWHERE, {}, marks=pytest.mark.slow_on),
        ("beside the source", {"layers": ["bn1", "bn3"]}),
        ("beside the source, with views", {"max_rows": 3}),
        ("with views", {"layers": ["bn1", "bn3"]}),
        ("by reliability", {"layers": ["bn1", "bn3"]}),
        ("by reliability, beside all else", {"max_rows": 2}),
    ],
    ids=str,
)
def test_rules_equal_the_reference(backend: Any, case: str, settings: dict[str, Any]) -> None:
    priors, n = CASES[case]
    batch = images(3)
    recipe = sita.Recipe(priors=priors, n_views=n, top_k=len(priors) if isinstance(priors, tuple) else None)
    found = backend.run(sita.adapt(backend.model(), recipe, **settings), batch)
    adapted = tuple(settings.get("layers", NAMES))
    wanted = np.stack([answer(expected(image, priors, n, adapted=adapted)[0]) for image in batch])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("settings", [{}, {"max_rows": 1}], ids=str)
@pytest.mark.parametrize("rule", [RULE, RELIABLE], ids=["by shift", "by reliability"])
def test_what_the_layers_measure_is_observed(backend: Any, rule: Any, settings: dict[str, Any]) -> None:
    """λ and the shift in every layer, and the shift of the image; of the row with λ = 1 nothing is measured."""
    batch = images(4)
    adapted = sita.adapt(backend.model(), sita.Recipe(priors=(1.0, rule), n_views=0), **settings)
    with sita.observe(adapted) as seen:
        backend.run(adapted, batch)
    assert seen.candidates == (1.0, rule)
    assert seen.layers == NAMES
    priors, shifts, totals = np.ones((4, 2, 3)), np.full((4, 2, 3), np.nan), np.full((4, 2), np.nan)
    for place, image in enumerate(batch):
        calls: list[list[reference.LayerCall]] = []
        expected(image, (1.0, rule), 0, calls=calls)
        priors[place, 1] = [call.prior for call in calls[1]]
        shifts[place, 1] = [call.shift for call in calls[1]]
        totals[place, 1] = reference.image_shift(calls[1])
    np.testing.assert_allclose(seen.layer_priors, priors, rtol=1e-5)
    np.testing.assert_allclose(seen.layer_shifts, shifts, rtol=1e-4)
    np.testing.assert_allclose(seen.shifts, totals, rtol=1e-4)
    assert np.ptp(seen.layer_priors[:, 1]) > 0.05
    assert np.nanmin(shifts) > 0.01
    np.testing.assert_allclose(seen.candidate_priors, priors.mean(2), rtol=1e-5)
    chosen = seen.entropies.argmin(axis=1)
    np.testing.assert_allclose(seen.priors, priors.mean(2)[np.arange(4), chosen], rtol=1e-5)
    assert f"{rule}: {100 * (chosen == 1).mean():.0f}%" in seen.summary()


@pytest.mark.parametrize("max_rows", [None, 3])
def test_the_source_row_has_no_shift_with_views_either(backend: Any, max_rows: int | None) -> None:
    adapted = sita.adapt(backend.model(), sita.Recipe(priors=(1.0, RULE), n_views=2), max_rows=max_rows)
    with sita.observe(adapted) as seen:
        backend.run(adapted, images(2))
    assert np.isnan(seen.layer_shifts[:, 0]).all()
    assert (seen.layer_shifts[:, 1] > 0).all()
    assert (seen.layer_priors[:, 0] == 1).all()


def test_numbers_measure_a_shift_too(backend: Any) -> None:
    batch, adapted = images(2), sita.adapt(backend.model(), "augbn", priors=0.8)
    with sita.observe(adapted) as seen:
        backend.run(adapted, batch)
    assert seen.layers == NAMES
    for place, image in enumerate(batch):
        calls: list[list[reference.LayerCall]] = []
        run_rows([turn(image) for turn in TURNS], reference.augbn_rows(0.8, 2), calls=calls)
        assert seen.shifts[place, 0] == pytest.approx(reference.image_shift(calls[0]), rel=1e-4)
    np.testing.assert_allclose(seen.candidate_priors, np.full((2, 1), 0.8), rtol=1e-6)
    with pytest.raises(sita.SitaError, match="layer_priors"):
        _ = seen.layer_priors


def test_no_shift_is_the_source_model(backend: Any) -> None:
    """A rule without strength to speak of, and one that no shift reaches."""
    model, batch = backend.model(), images(3)
    plain = backend.run(model, batch)
    for rule in (sita.ByShift(strength=1e-7), sita.ByShift(half_shift=1e9), sita.ByShift(strength=1e-6, half_area=1)):
        found = backend.run(sita.adapt(model, "shift", priors=rule), batch)
        np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-4)


def test_a_layer_that_sees_no_shift_is_the_sources_exactly(backend: Any) -> None:
    """A checkerboard of 0 and 2, times powers of two: its statistics are exact in every precision."""
    gains = 2.0 ** np.arange(-2, 4).astype(np.float32)
    weights = {**make_weights(), "conv1/kernel": np.zeros((3, 3, 3, 6), np.float32)}
    weights |= {"bn1/mean": gains, "bn1/variance": gains**2}
    weights["conv1/kernel"][1, 1, [0, 1, 2, 0, 1, 2], range(6)] = gains
    board = 2.0 * (np.indices((12, 12)).sum(0) % 2)[None, :, :, None].repeat(3, axis=3).astype(np.float32)
    batch = np.concatenate([board, 1.25 * board])
    rule, _ = make_rule(statistics_of_small_network(weights), caution=1e-3)
    model = backend.model(weights=weights)
    adapted = sita.adapt(model, sita.Recipe(priors=rule, n_views=0), layers="bn1")
    with sita.observe(adapted) as seen:
        found = backend.run(adapted, batch)
    assert seen.layer_shifts[:, 0, 0].tolist()[0] == 0.0 < seen.layer_shifts[1, 0, 0]
    assert seen.layer_priors[:, 0, 0].tolist()[0] == 1.0 > seen.layer_priors[1, 0, 0]
    plain = backend.run(model, batch)
    np.testing.assert_allclose(found[0], plain[0], rtol=1e-5, atol=1e-5)
    assert np.abs(found[1] - plain[1]).max() > 1e-3


@pytest.mark.parametrize("priors", [RULE, RELIABLE, (1.0, RELIABLE)], ids=["by shift", "by reliability", "mixed"])
def test_an_overflow_shows_in_its_answer_and_in_no_other(backend: Any, priors: Any) -> None:
    batch = images(3)
    recipe = sita.Recipe(priors=priors, n_views=0, combine="mix" if isinstance(priors, tuple) else "vote")
    adapted = sita.adapt(backend.model(), recipe)
    clean = backend.run(adapted, batch)
    batch[1] = 1e25
    found = backend.run(adapted, batch)
    assert np.isnan(found[1]).all()
    np.testing.assert_allclose(found[[0, 2]], clean[[0, 2]], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "recipe", [sita.Recipe(priors=(1.0, RULE), n_views=0), sita.Recipe(priors=RELIABLE, n_views=0)]
)
def test_every_pixel_has_the_prior_of_a_rule(backend: Any, recipe: Any) -> None:
    adapted = sita.adapt(backend.model(dense=True), recipe)
    with sita.observe(adapted) as observation:
        assert sita.compare({"m": adapted}, images(2))["m"].labels.shape == (2, 12, 12)
    assert observation.priors.shape == (2, 12, 12)
    assert (observation.priors < 1).any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"priors": RULE, "shared_views": True}, "shared_views.*numbers"),
        ({"priors": (RULE, RULE)}, "each.*once"),
        (
            {"priors": (0.5, RULE), "combine": "mix", "candidates": "views", "n_views": 1},
            "combine: expected 1 and another",
        ),
        ({"priors": (0.5, 0.5)}, "each.*once"),
        ({"priors": (1.0, RULE), "combine": "most"}, "combine: expected 'vote'"),
        ({"priors": (1.0, RULE), "combine": (1, 2)}, "combine: expected 'vote'"),
        ({"priors": (1.0, RULE), "combine": "mix", "top_k": 1, "n_views": 0}, "top_k"),
        ({"priors": (0.8, 0.5), "combine": "mix", "n_views": 0}, "combine: expected 1 and another"),
        ({"priors": RULE, "combine": "mix", "n_views": 0}, "combine: expected 1 and another"),
        ({"priors": 1.0, "combine": "mix", "n_views": 0}, "combine: expected 1 and another"),
    ],
)
def test_what_a_rule_cannot_stand_beside(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        sita.Recipe(**settings)


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        *((sita.ByShift, field) for field in ("strength", "half_shift", "half_area")),
        *((sita.ByReliability, field) for field in ("strength", "half_shift", "caution")),
    ],
)
@pytest.mark.parametrize("value", [-0.1, 0, float("nan"), "1", True, float("inf")])
def test_rules_are_checked(rule: Any, field: str, value: Any) -> None:
    others = {"layers": RELIABLE.layers} if rule is sita.ByReliability else {}
    with pytest.raises(RecipeError, match=f"{field}.*received"):
        rule(**{field: value}, **others)
