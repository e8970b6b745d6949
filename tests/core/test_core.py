"""The core's arithmetic against loops in float64, on numpy arrays and on those of the process's framework."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import fields
from inspect import signature
from typing import Any, get_args

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from namespaces import Namespace

import sita_adapters as sita
from sita_adapters.errors import RecipeError
from sita_adapters.filters import blur
from sita_adapters.ops import NUMPY
from sita_adapters.plan import make_plan, split_source
from sita_adapters.recipe import RECIPES, Recipe, RecipeName, resolve_recipe
from sita_adapters.reliability import ChannelSpread
from sita_adapters.shift import ByShift, LayerStatistics, Rule, scaled_divergence
from sita_adapters.statistics import blend_with_source, input_affine, output_affine, pool, target
from sita_adapters.views import content_seed, rotate, spatial_kind

RECTANGLE = spatial_kind((4, 5))
priors = st.lists(st.floats(0, 1), min_size=1, max_size=6, unique=True)


@given(prior_values=priors, n=st.integers(0, 7), shared=st.booleans(), frame=st.sampled_from(["square", RECTANGLE]))
def test_every_plan_is_sound(prior_values: list[float], n: int, shared: bool, frame: str) -> None:
    plan = make_plan(Recipe(priors=prior_values, n_views=n, shared_views=shared and n > 0), frame)
    rows, weights = plan.rows, np.array(plan.weights)
    assert weights.shape == (rows, rows)
    assert len(plan.priors) == rows
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-15)
    assert (weights >= 0).all()
    assert [plan.priors[row] for row in plan.candidates] == prior_values
    assert all(plan.view_of_row[row] == 0 for row in plan.candidates)
    assert set(plan.view_of_row) <= set(range(len(plan.views)))
    # A row's statistics come from its own image's rows under its own prior, or from shared views.
    for row, drawn in zip(*np.nonzero(weights), strict=True):
        assert plan.priors[drawn] == plan.priors[row] or (shared and plan.view_of_row[drawn] > 0)
    first = plan.first_blended
    blended = np.array(plan.blended_weights).reshape(rows - first, rows - first)
    np.testing.assert_array_equal(blended, weights[first:, first:])
    # Split into source and blended rows, it has the same candidates in the same order.
    parts = split_source(plan)
    assert sum(part.rows for part in parts) == rows
    assert [part.priors[row] for part in parts for row in part.candidates] == prior_values
    if len(prior_values) > 1 and prior_values[0] == 1:
        assert [part.blends for part in parts] == [False, True]
    # Rows that draw from each other share their reference, one of the rows that they draw from.
    for row, line in enumerate(plan.blended_weights):
        assert line[plan.references[row].index(1.0)] > 0
        assert all(plan.references[drawn] == plan.references[row] for drawn in np.flatnonzero(line))


@given(prior_values=priors, n=st.integers(1, 3))
def test_plans_equal_the_definition(prior_values: list[float], n: int) -> None:
    for recipe, expected in (
        (Recipe(priors=prior_values, n_views=n), reference.ops_rows(prior_values, n)),
        (Recipe(priors=prior_values, n_views=n, shared_views=True), reference.shared_rows(prior_values, n)),
    ):
        plan = make_plan(recipe)
        rows, answers = expected
        found = list(zip(plan.view_of_row, plan.priors, strict=True))
        order = [found.index((row.view, row.prior)) for row in rows]  # the source's row comes first in a plan
        assert sorted(order) == list(range(plan.rows))
        assert list(plan.candidates) == [order[row] for row in answers]
        for row, place in zip(rows, order, strict=True):
            if row.prior < 1:
                line = [plan.weights[place][q] for q in order]
                np.testing.assert_allclose(line, [row.weights.get(q, 0.0) for q in range(plan.rows)], rtol=1e-15)
        assert all(prior == 1 for prior in plan.priors[: plan.first_blended])
        assert all(prior < 1 for prior in plan.priors[plan.first_blended :])


moments = st.tuples(st.sampled_from([(1, 1, 1), (1, 3, 4), (3, 5, 2)]), st.integers(0, 2**32 - 1))


@given(shape=moments, magnitude=st.sampled_from([0.0, 1.0, 100.0]))
def test_blend_equals_a_float64_loop(
    namespace: Namespace, shape: tuple[tuple[int, int, int], int], magnitude: float
) -> None:
    (images, rows, channels), seed = shape
    random = np.random.default_rng(seed)
    means = (random.normal(size=(images, rows, channels)) + magnitude).astype(np.float32)
    variances = random.uniform(0.1, 3, size=means.shape).astype(np.float32)
    weights = random.dirichlet(np.ones(rows), size=rows).astype(np.float32)
    prior_values = random.uniform(size=(2, rows, channels)).astype(np.float32)
    m_s = random.normal(size=channels).astype(np.float32)
    v_s = random.uniform(0.1, 3, size=channels).astype(np.float32)
    ops, mean_of_rows, row = namespace.ops, namespace.own(means), int(random.integers(rows))
    mean, variance = blend_with_source(
        *target(
            mean_of_rows,
            namespace.own(variances),
            weights=namespace.own(weights),
            references=namespace.own(np.eye(rows, dtype=np.float32)[[row] * rows]),
            ops=ops,
        ),
        priors=(namespace.own(prior_values[0]), namespace.own(prior_values[1])),
        source_mean=namespace.own(m_s),
        source_variance=namespace.own(v_s),
        ops=ops,
    )
    mean, variance = namespace.numpy(mean), namespace.numpy(variance)
    for b in range(images):
        for r in range(rows):
            m_t, v_t = reference.target_statistics(
                means[b].astype(np.float64), variances[b].astype(np.float64), weights[r] / weights[r].sum(dtype=float)
            )
            of_mean, of_variance = prior_values[:, r].astype(np.float64)
            np.testing.assert_allclose(mean[b, r], of_mean * m_s + (1 - of_mean) * m_t, rtol=2e-6, atol=2e-6)
            np.testing.assert_allclose(variance[b, r], of_variance * v_s + (1 - of_variance) * v_t, rtol=4e-6)


@pytest.mark.parametrize("recipe", ["ops", "ops_shared"])
def test_a_prior_far_from_the_others_costs_them_no_digits(namespace: Namespace, recipe: str) -> None:
    plan = make_plan(RECIPES[recipe])
    random, weights = np.random.default_rng(0), np.float32(plan.blended_weights)
    priors = plan.priors[plan.first_blended :]
    means = random.normal(size=(2, len(priors), 4)).astype(np.float32)
    far = [row for row, prior in enumerate(priors) if prior == max(priors)]
    means[:, far] += 1e4
    variances = random.uniform(0.1, 3, size=means.shape).astype(np.float32)
    _, variance = target(
        namespace.own(means),
        namespace.own(variances),
        weights=namespace.own(weights),
        references=namespace.own(np.float32(plan.references)),
        ops=namespace.ops,
    )
    for b, r in itertools.product(range(2), set(range(len(priors))) - set(far)):
        _, expected = reference.target_statistics(
            means[b].astype(np.float64), variances[b].astype(np.float64), weights[r]
        )
        np.testing.assert_allclose(namespace.numpy(variance)[b, r], expected, rtol=4e-6)


def test_pooling_parts_gives_the_moments_of_the_whole(namespace: Namespace) -> None:
    values = np.random.default_rng(0).normal(30, 1, size=(2, 3, 5, 4, 100))
    mean, variance = pool(namespace.own(values.mean(-1)), namespace.own(values.var(-1)), axis=2, ops=namespace.ops)
    whole = np.moveaxis(values, 2, 3).reshape(2, 3, 4, 500)
    np.testing.assert_allclose(namespace.numpy(mean), whole.mean(-1), rtol=namespace.rounding)
    np.testing.assert_allclose(namespace.numpy(variance), whole.var(-1), rtol=1e3 * namespace.rounding)


@given(seed=st.integers(0, 2**32 - 1), epsilon=st.sampled_from([1e-5, 1e-3]))
def test_both_ways_to_apply_a_blend_are_the_normalization(seed: int, epsilon: float) -> None:
    random = np.random.default_rng(seed)
    m, m_s, gamma, beta, x = random.normal(size=(5, 4))
    v, v_s = random.uniform(0, 3, size=(2, 4))
    expected = gamma * (x - m) / np.sqrt(v + epsilon) + beta
    scale, shift = input_affine(m, v, source_mean=m_s, source_variance=v_s, epsilon=epsilon, ops=NUMPY)
    layer = gamma * (x * scale + shift - m_s) / np.sqrt(v_s + epsilon) + beta
    np.testing.assert_allclose(layer, expected, rtol=1e-9, atol=1e-9)
    scale, shift = output_affine(m, v, gamma=gamma, beta=beta, epsilon=epsilon, ops=NUMPY)
    np.testing.assert_allclose(x * scale + shift, expected, rtol=1e-9, atol=1e-9)


T, E = np.float32([0.0, 0.25, 1e-3, 4.0]), np.float32([2.0, 0.0, 0.0625, 0.5])
"""How much the mean and the variance of each channel vary between clean images; half precision has these numbers."""


def reliability(**fields: float) -> sita.ByReliability:
    return sita.ByReliability(layers={"layer": ChannelSpread((0.0, 0.0, 0.0, 0.0), T, E)}, **fields)


RULES = {
    ByShift(strength=0.8, half_area=0.25): reference.Rule(0.8, 0.5, 0.25),
    ByShift(strength=0.8, half_shift=0.3): reference.Rule(0.8, 0.3),
    reliability(): reference.Reliability(T, E, 1.0),
    reliability(caution=7.5, strength=0.8, half_shift=0.3): reference.Reliability(T, E, 7.5, 0.8, 0.3),
}


def priors_of(rule: Rule, moments: Sequence[np.ndarray], divergence: Any, namespace: Namespace) -> list[np.ndarray]:
    """λ of the mean and of the variance, (B, R, C), in a layer of 49 positions after one of 196."""
    layer = LayerStatistics("layer", *map(namespace.own, moments), 1e-3, divergence, 49, 196)
    shape = np.shape(moments[0])
    return [np.broadcast_to(namespace.numpy(each), shape) for each in rule.priors(layer, namespace.ops)]


@given(seed=st.integers(0, 2**32 - 1), rule=st.sampled_from(list(RULES)))
def test_shift_and_priors_equal_a_float64_loop(namespace: Namespace, seed: int, rule: Rule) -> None:
    random = np.random.default_rng(seed)
    mean, m_s = random.normal(size=(2, 3, 4)).astype(np.float32), random.normal(size=4).astype(np.float32)
    variance, v_s = (random.uniform(0.1, 3, each.shape).astype(np.float32) for each in (mean, m_s))
    moments = mean, variance, m_s, v_s
    divergence = scaled_divergence(*map(namespace.own, moments), epsilon=1e-3, ops=namespace.ops)
    d, priors = namespace.numpy(0.5 * divergence - 0.5), priors_of(rule, moments, divergence, namespace)
    for b, r in np.ndindex(2, 3):
        expected = reference.shift(*(each.astype(np.float64) for each in (mean[b, r], variance[b, r], m_s, v_s)), 1e-3)
        np.testing.assert_allclose(d[b, r], expected, rtol=1e-5, atol=1e-6)
        for found, wanted in zip(priors, RULES[rule].priors(expected, (49, 196)), strict=True):
            np.testing.assert_allclose(found[b, r], np.broadcast_to(wanted, 4), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rule", list(RULES)[2:], ids=str)
def test_no_shift_is_the_source_exactly_and_an_infinite_one_no_number(namespace: Namespace, rule: Rule) -> None:
    """Even in a channel that never varies (t = 0), and if rounding leaves less than no shift."""
    moments = [np.full((3, 1, 4), value, np.float32) for value in (1e3, 7)] + [-T, E]
    divergence = np.float32([1, 1 - 2e-7, np.inf]).reshape(3, 1, 1)
    with np.errstate(invalid="ignore"):
        priors = priors_of(rule, moments, namespace.own(divergence), namespace)
    pair = namespace.own(priors[0].copy()), namespace.own(priors[1].copy())
    blended = blend_with_source(*map(namespace.own, moments), priors=pair, ops=namespace.ops)
    for prior, found, source in zip(priors, map(namespace.numpy, blended), moments[2:], strict=True):
        assert (prior[:1] == 1).all()
        np.testing.assert_allclose(prior[1], 1, rtol=3e-7)
        np.testing.assert_array_equal(found[0, 0], source)
        assert np.isnan(prior[2]).all()
        assert np.isnan(found[2]).all()


def test_lambda_one_rewrites_nothing() -> None:
    source = np.float32([0.3, -2.0]), np.float32([1.7, 0.4])
    scale, shift = input_affine(*source, source_mean=source[0], source_variance=source[1], epsilon=1e-5, ops=NUMPY)
    assert (scale == 1).all()
    assert (shift == 0).all()


def test_another_image_or_seed_draws_other_views() -> None:
    image = np.zeros((4, 4, 3), np.float32)
    other = image.copy()
    other[0, 0, 0] = 1e-6
    seeds = {content_seed(image, 0), content_seed(image, 1), content_seed(other, 0), content_seed(image[:2], 0)}
    assert len(seeds) == 4
    assert content_seed(image.astype(np.float64), 0) == content_seed(image, 0)


def test_the_views_of_segmentation() -> None:
    """One mirrored view, unless others are asked for; "paper" is its blur and rotation of at most 10°."""

    def views(changes: dict[str, object], recipe: object = "augbn") -> list[str]:
        return [v.name for v in make_plan(resolve_recipe(recipe, changes, "segmentation")).views[1:]]

    assert views({}) == ["hflip"]
    assert views({"n_views": 3}) == ["hflip", "vflip", "rot180"]
    assert views({"augment": "lossless"}) == ["rot90", "rot270"]
    assert views({"augment": "transpose"}) == ["transpose"]
    assert views({}, Recipe(augment=["rot90", "hflip"])) == ["rot90", "hflip"]
    assert resolve_recipe("bn", {}, "segmentation") == RECIPES["bn"]
    (_, drawn) = make_plan(resolve_recipe("augbn", {"augment": "paper"}, "segmentation")).views
    assert dict(drawn.steps).keys() == {blur, rotate}
    assert -10 <= dict(drawn.steps)[rotate] <= 10
    assert views({}, "ensemble") == ["blur", "blur"]
    for changes, voters in (({}, 3), ({"priors": (0.5, 0.9)}, 2), ({"top_k": 4}, 4)):
        assert resolve_recipe("ops_shared", changes, "segmentation").effective_top_k == voters


def test_the_weight_of_adapted_rows() -> None:
    """Of a mix, unless the caller sets it; another recipe has none."""

    def weight(recipe: object, changes: dict[str, object] | None = None, task: str = "classification") -> float:
        return resolve_recipe(recipe, changes or {}, task).adapted_weight

    for name, usual in reference.ADAPTED_WEIGHTS.items():
        assert weight(name) == usual
        assert weight(name, {"adapted_weight": 3}) == 3.0
        assert weight(name, {}, "segmentation") == reference.SEGMENTATION_WEIGHT
        assert weight(name, {"adapted_weight": 3}, "segmentation") == 3.0
        assert weight(RECIPES[name], {}, "segmentation") == usual
    for task in ("classification", "segmentation"):
        assert weight("restore", {"combine": "vote"}, task) == weight("ops", {}, task) == 2.0


def test_every_recipe_and_every_field_is_an_argument_of_adapt() -> None:
    """So a type checker finds a typo, and an editor completes names."""
    assert set(get_args(RecipeName)) == set(RECIPES)
    described = {"name", "notes"}  # these change nothing
    assert {field.name for field in fields(Recipe)} - described <= set(signature(sita.adapt).parameters)
    settings = set(signature(sita.adapt).parameters) - {field.name for field in fields(Recipe)} - {"recipe", "example"}
    assert settings <= set(signature(sita.calibrate).parameters)


def test_a_bracket_with_an_unknown_field() -> None:
    with pytest.raises(RecipeError, match=r"prior: not a field of a recipe.*Did you mean 'priors'"):
        resolve_recipe("ops", {"prior": 0.5})
