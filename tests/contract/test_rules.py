"""Priors that are rules: λ by the shift that a layer sees, against loops in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from small_network import EPSILONS, images, run_rows

import sita_adapters as sita

RULE = sita.ByShift(strength=0.9, half_shift=0.3, half_area=50)
WEAK = sita.ByShift(strength=0.2, half_shift=0.1)
BOLD = sita.ByShift(strength=1.0)
SAME = {rule: reference.Rule(rule.strength, rule.half_shift, rule.half_area) for rule in (RULE, WEAK, BOLD)}
TURNS = [lambda x, k=k: np.rot90(x, k, axes=(0, 1)) for k in (0, 1, 3)]
NAMES = tuple(EPSILONS)

CASES: dict[str, tuple[Any, int]] = {
    "a rule": (RULE, 0),
    "with views": (RULE, 2),
    "beside the source": ((1.0, RULE), 0),
    "beside the source, with views": ((1.0, RULE), 2),
    "two rules": ((RULE, WEAK), 0),
}


def expected(image: np.ndarray, priors: Any, n: int, **options: Any) -> tuple[np.ndarray, list[int]]:
    """The candidates of the small network, and which rows they are, without any of the library's code."""
    listed = priors if isinstance(priors, tuple) else (priors,)
    rows, candidates = reference.ops_rows([SAME.get(prior, prior) for prior in listed], n)
    return run_rows([turn(image) for turn in TURNS[: 1 + n]], rows, **options)[candidates], candidates


def answer(candidates: np.ndarray) -> np.ndarray:
    return reference.vote(candidates, len(candidates)) if len(candidates) > 1 else candidates[0]


@pytest.mark.parametrize("settings", [{}, {"max_rows": 3}, {"layers": ["bn1", "bn3"]}], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_rules_equal_the_reference(backend: Any, case: str, settings: dict[str, Any]) -> None:
    priors, n = CASES[case]
    batch = images(3)
    recipe = sita.Recipe(priors=priors, n_views=n)
    found = backend.run(sita.adapt(backend.model(), recipe, **settings), batch)
    adapted = tuple(settings.get("layers", NAMES))
    wanted = np.stack([answer(expected(image, priors, n, adapted=adapted)[0]) for image in batch])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5)


def test_weights_make_a_weighted_mean_of_probabilities(backend: Any) -> None:
    batch = images(3)
    recipe = sita.Recipe(priors=(1.0, RULE), n_views=0, combine=(1, 3))
    for activation, scores in ((None, "logits"), ("softmax", "probabilities")):
        adapted = sita.adapt(backend.model(activation=activation), recipe, scores=scores)
        found = backend.run(adapted, batch)
        for image, said in zip(batch, found, strict=True):
            source, shifted = map(softmax, expected(image, (1.0, RULE), 0)[0])
            wanted = 0.25 * source + 0.75 * shifted
            np.testing.assert_allclose(said, wanted if activation else np.log(wanted), rtol=1e-4, atol=2e-5)
    assert "mean, weighted 1, 3" in str(recipe)


def test_the_default_is_the_mean_of_the_source_and_a_bold_row(backend: Any) -> None:
    batch = images(3)
    found = backend.run(sita.adapt(backend.model()), batch)
    for image, said in zip(batch, found, strict=True):
        source, shifted = map(softmax, expected(image, (1.0, BOLD), 0)[0])
        np.testing.assert_allclose(said, np.log(0.4 * source + 0.6 * shifted), rtol=1e-4, atol=2e-5)


def softmax(scores: np.ndarray) -> np.ndarray:
    raised = np.exp(scores - scores.max())
    return raised / raised.sum()


@pytest.mark.parametrize("settings", [{}, {"max_rows": 1}], ids=str)
def test_what_the_layers_set_is_observed(backend: Any, settings: dict[str, Any]) -> None:
    batch = images(4)
    adapted = sita.adapt(backend.model(), sita.Recipe(priors=(1.0, RULE), n_views=0), **settings)
    with sita.observe(adapted) as seen:
        backend.run(adapted, batch)
    assert seen.candidates == (1.0, RULE)
    assert seen.layers == NAMES
    wanted = np.ones((4, 2, len(NAMES)))
    for place, image in enumerate(batch):
        set_by_rule: dict[tuple[int, str], float] = {}
        expected(image, (1.0, RULE), 0, found=set_by_rule)
        wanted[place, 1] = [set_by_rule[1, name] for name in NAMES]
    np.testing.assert_allclose(seen.layer_priors, wanted, rtol=1e-5)
    assert np.ptp(seen.layer_priors[:, 1]) > 0.05
    chosen = seen.entropies.argmin(axis=1)
    np.testing.assert_allclose(seen.priors, wanted.mean(2)[np.arange(4), chosen], rtol=1e-5)
    summary = seen.summary()
    assert summary.changed is not None
    assert summary.chosen == {RULE: (chosen == 1).mean(), 1.0: (chosen == 0).mean()}
    assert "by shift" in str(summary)


@pytest.mark.parametrize("max_rows", [None, 3])
def test_of_the_source_no_shift_is_said(backend: Any, max_rows: int | None) -> None:
    """Not with views either, nor by how many rows run at once."""
    adapted = sita.adapt(backend.model(), sita.Recipe(priors=(1.0, RULE), n_views=2), max_rows=max_rows)
    with sita.observe(adapted) as seen:
        backend.run(adapted, images(2))
    assert np.isnan(seen.layer_shifts[:, 0]).all()
    assert (seen.layer_shifts[:, 1] > 0).all()
    assert (seen.layer_priors[:, 0] == 1).all()


@pytest.mark.parametrize("max_rows", [None, 1])
def test_the_shift_that_the_layers_see_is_observed(backend: Any, max_rows: int | None) -> None:
    """A reference's λ says by which shift it was set. Of the row with λ = 1 none is measured."""
    batch = images(3)
    rule = sita.ByShift(strength=0.9, half_shift=0.5, half_area=0)
    adapted = sita.adapt(backend.model(), sita.Recipe(priors=(1.0, rule), n_views=0), max_rows=max_rows)
    with sita.observe(adapted) as seen:
        backend.run(adapted, batch)
    wanted = np.full((3, 2, len(NAMES)), np.nan)
    for place, image in enumerate(batch):
        set_by_rule: dict[tuple[int, str], float] = {}
        run_rows([image], reference.augbn_rows(reference.Rule(0.9, 0.5, 0), 0), found=set_by_rule)
        taken = (1 - np.array([set_by_rule[0, name] for name in NAMES])) / 0.9
        wanted[place, 1] = 0.5 * taken / (1 - taken)
    np.testing.assert_allclose(seen.layer_shifts, wanted, rtol=1e-4)
    assert np.nanmin(wanted) > 0.01


def test_numbers_have_no_layers(backend: Any) -> None:
    adapted = sita.adapt(backend.model(), "augbn", priors=0.8)
    with sita.observe(adapted) as seen:
        backend.run(adapted, images(1))
    assert seen.layers == ()
    with pytest.raises(sita.NotObservedError, match="ByShift"):
        _ = seen.layer_priors


def test_no_shift_is_the_source_model(backend: Any) -> None:
    """A rule without strength to speak of, and one that no shift reaches."""
    model, batch = backend.model(), images(3)
    plain = backend.run(model, batch)
    for rule in (sita.ByShift(strength=1e-7), sita.ByShift(half_shift=1e9), sita.ByShift(half_area=1e9)):
        found = backend.run(sita.adapt(model, "shift", priors=rule), batch)
        np.testing.assert_allclose(found, plain, rtol=1e-4, atol=1e-4)


def test_every_pixel_and_compare_know_a_rule(backend: Any) -> None:
    model, batch = backend.model(dense=True), images(2)
    compared = sita.compare({"m": model}, batch, sita.Recipe(priors=(1.0, RULE), n_views=0))["m"]
    assert compared.priors is not None
    assert compared.priors.shape == (2, 12, 12)
    single = sita.compare({"m": model}, batch, "shift")["m"]
    assert single.priors is not None
    assert single.priors.shape == (2, 12, 12)
    assert (single.priors < 1).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"priors": (RULE, 0.5)}, "beside a rule.*no number but 1"),
        ({"priors": RULE, "shared_views": True}, "shared_views.*numbers"),
        ({"priors": (RULE, RULE)}, "each.*once"),
        ({"priors": (1.0, RULE), "combine": (1, 2, 3)}, "combine: expected a weight for each of the 2"),
        ({"priors": (1.0, RULE), "combine": (1, 0)}, "combine: expected 'vote'"),
        ({"priors": (1.0, RULE), "combine": "most"}, "combine: expected 'vote'"),
        ({"priors": (1.0, RULE), "combine": (1, 2), "top_k": 1}, "top_k: weights are for all 2"),
    ],
)
def test_what_a_rule_cannot_stand_beside(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(sita.RecipeError, match=message):
        sita.Recipe(**settings)


@pytest.mark.parametrize("field", ["strength", "half_shift", "half_area"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), "1", True, float("inf")])
def test_rules_are_checked(field: str, value: Any) -> None:
    with pytest.raises(sita.RecipeError, match=f"{field}.*received"):
        sita.ByShift(**{field: value})


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_moments_of_some_places_equal_the_reference(backend: Any, case: str, eager: bool) -> None:
    """Of 12 lines of 12 places, every third: 48 places."""
    priors, n = CASES[case]
    batch = images(3)
    adapted = sita.adapt(backend.model(), sita.Recipe(priors=priors, n_views=n, places=48))
    found = backend.run(adapted, batch, eager=eager)
    wanted = np.stack([answer(expected(image, priors, n, lines=slice(1, None, 3))[0]) for image in batch])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5)


def test_as_many_places_as_there_are_is_all_of_them(backend: Any) -> None:
    model, batch = backend.model(), images(2)
    all_places = backend.run(sita.adapt(model, "augbn"), batch)
    as_many = backend.run(sita.adapt(model, "augbn", places=144), batch)
    np.testing.assert_allclose(as_many, all_places, rtol=1e-5, atol=1e-6)  # by other sums
    assert np.abs(backend.run(sita.adapt(model, "augbn", places=48), batch) - all_places).max() > 1e-3
    assert "about 48 places" in str(sita.describe(sita.adapt(model, "augbn", places=48)))


@pytest.mark.parametrize("sizes", [(12, 12), (16, 20)], ids=str)
def test_open_sizes_are_sampled_as_fixed_ones_are(backend: Any, sizes: tuple[int, int]) -> None:
    """A graph that leaves height or width open takes the same lines as one that knows them, at every size."""
    batch = images(2, sizes)
    recipe = sita.Recipe(priors=(1.0, RULE), n_views=0, places=48)
    fixed = backend.run(sita.adapt(backend.model(size=sizes), recipe), batch)
    for size, eager in (((None, None), False), ((None, None), True), ((sizes[0], None), False)):
        open_sizes = sita.adapt(backend.model(size=size), recipe)
        np.testing.assert_allclose(backend.run(open_sizes, batch, eager=eager), fixed, rtol=1e-5, atol=1e-6)
    everywhere = sita.adapt(backend.model(size=sizes), recipe, places=None)
    assert np.abs(backend.run(everywhere, batch) - fixed).max() > 1e-3
