"""The core's algebra against loops in float64, on numpy and on PyTorch arrays alike."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sita_adapters.arrays import NUMPY, Arrays
from sita_torch.arrays import TORCH

from sita_adapters.plan import make_plan
from sita_adapters.recipe import RECIPES, Recipe
from sita_adapters.statistics import blend, normalising, pool, rewriting, target, target_of_squares
from sita_adapters.voting import decide

BACKENDS = {"numpy": NUMPY, "torch": TORCH}
priors = st.lists(st.floats(0, 1), min_size=1, max_size=6, unique=True)
frames = st.sampled_from(["square", "oblong"])


def own(kind: str, values: object) -> object:
    array = np.asarray(values)
    return torch.from_numpy(array) if kind == "torch" else array


@given(lambdas=priors, n=st.integers(0, 7), shared=st.booleans(), frame=frames)
def test_every_plan_is_sound(lambdas: list[float], n: int, shared: bool, frame: str) -> None:
    recipe = Recipe(priors=lambdas, n_views=n, shared_views=shared and n > 0)
    plan = make_plan(recipe, frame)
    rows, weights = plan.rows, np.array(plan.weights)
    assert weights.shape == (rows, rows)
    assert len(plan.priors) == rows
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-15)
    assert (weights >= 0).all()
    assert plan.alike == (len({*zip(plan.weights, plan.priors, strict=True)}) == 1)
    assert [plan.priors[row] for row in plan.answers] == lambdas
    assert all(plan.view_of_row[row] == 0 for row in plan.answers)
    assert set(plan.view_of_row) <= set(range(len(plan.views)))
    # A row's statistics come from its own image's rows under its own prior, or from shared views.
    for row, line in enumerate(plan.weights):
        for drawn in np.flatnonzero(line):
            same_prior = plan.priors[drawn] == plan.priors[row]
            assert same_prior or (recipe.shared_views and plan.view_of_row[drawn] > 0)


@given(lambdas=priors, n=st.integers(1, 3))
def test_plans_equal_the_definition(lambdas: list[float], n: int) -> None:
    for recipe, expected in (
        (Recipe(priors=lambdas, n_views=n), reference.ops_rows(lambdas, n)),
        (Recipe(priors=lambdas, n_views=n, shared_views=True), reference.shared_rows(lambdas, n)),
    ):
        plan = make_plan(recipe)
        rows, answers = expected
        assert list(plan.answers) == answers
        assert list(plan.view_of_row) == [row.view for row in rows]
        assert list(plan.priors) == [row.prior for row in rows]
        for line, row in zip(plan.weights, rows, strict=True):
            if row.prior < 1:
                np.testing.assert_allclose(line, [row.weights.get(q, 0.0) for q in range(plan.rows)], rtol=1e-15)


@pytest.mark.parametrize(
    ("name", "rows"),
    [("source", 1), ("ensemble", 3), ("ptn", 1), ("bn", 1), ("augbn", 3), ("ops", 22), ("ops_shared", 10)],
)
def test_rows_of_the_named_recipes(name: str, rows: int) -> None:
    assert make_plan(RECIPES[name]).rows == rows


moments = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32 - 1))


@pytest.mark.parametrize("kind", BACKENDS)
@given(shape=moments, magnitude=st.sampled_from([0.0, 1.0, 100.0]))
def test_blend_equals_a_float64_loop(kind: str, shape: tuple[int, int, int, int], magnitude: float) -> None:
    images, rows, channels, seed = shape
    random = np.random.default_rng(seed)
    means = (random.normal(size=(images, rows, channels)) + magnitude).astype(np.float32)
    variances = random.uniform(0.1, 3, size=means.shape).astype(np.float32)
    weights = random.dirichlet(np.ones(rows), size=rows).astype(np.float32)
    lambdas = random.uniform(size=(rows, 1)).astype(np.float32)
    m_s = random.normal(size=channels).astype(np.float32)
    v_s = random.uniform(0.1, 3, size=channels).astype(np.float32)
    mean, variance = blend(
        own(kind, means),
        own(kind, variances),
        weights=own(kind, weights),
        priors=own(kind, lambdas),
        source_mean=own(kind, m_s),
        source_variance=own(kind, v_s),
        xp=BACKENDS[kind].xp,
    )
    for b in range(images):
        for r in range(rows):
            m_t, v_t = reference.target_statistics(
                means[b].astype(np.float64), variances[b].astype(np.float64), weights[r] / weights[r].sum(dtype=float)
            )
            lam = float(lambdas[r, 0])
            np.testing.assert_allclose(mean[b, r], lam * m_s + (1 - lam) * m_t, rtol=2e-6, atol=2e-6)
            np.testing.assert_allclose(variance[b, r], lam * v_s + (1 - lam) * v_t, rtol=4e-6)


@pytest.mark.parametrize("kind", BACKENDS)
@given(seed=st.integers(0, 2**32 - 1), lines=st.sampled_from([1, 3]), ratio=st.sampled_from([0.0, 1.0, 3.0]))
def test_squares_give_the_same_target(kind: str, seed: int, lines: int, ratio: float) -> None:
    """Where the mean is a few σ at most: with it the error of the squares grows, as 1 + mean² / σ²."""
    random = np.random.default_rng(seed)
    places = random.normal(size=(2, 3, 4, 50)) + ratio
    weights = random.dirichlet(np.ones(3), size=lines)
    given_, xp = (
        [own(kind, a.astype(np.float32)) for a in (places.mean(-1), (places**2).sum(-1), weights)],
        BACKENDS[kind].xp,
    )
    means, squares, w = given_
    mean, variance = target_of_squares(means, squares, weights=w, weights_over_area=w / 50, xp=xp)
    m_t, v_t = target(places.mean(-1), places.var(-1), weights=weights, xp=np)
    np.testing.assert_allclose(mean, m_t, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(variance, v_t, rtol=5e-6 * (1 + ratio**2))


@pytest.mark.parametrize("kind", BACKENDS)
def test_pooling_parts_gives_the_moments_of_the_whole(kind: str) -> None:
    values = np.random.default_rng(0).normal(30, 1, size=(2, 3, 5, 4, 100))
    mean, variance = pool(own(kind, values.mean(-1)), own(kind, values.var(-1)), axis=2, xp=BACKENDS[kind].xp)
    whole = np.moveaxis(values, 2, 3).reshape(2, 3, 4, 500)
    np.testing.assert_allclose(mean, whole.mean(-1), rtol=1e-13)
    np.testing.assert_allclose(variance, whole.var(-1), rtol=1e-10)


@given(seed=st.integers(0, 2**32 - 1), epsilon=st.sampled_from([1e-5, 1e-3]))
def test_both_ways_to_apply_a_blend_are_the_normalisation(seed: int, epsilon: float) -> None:
    random = np.random.default_rng(seed)
    m, m_s, gamma, beta, x = random.normal(size=(5, 4))
    v, v_s = random.uniform(0, 3, size=(2, 4))
    expected = gamma * (x - m) / np.sqrt(v + epsilon) + beta
    scale, shift = rewriting(m, v, source_mean=m_s, source_variance=v_s, epsilon=epsilon, xp=np)
    layer = gamma * (x * scale + shift - m_s) / np.sqrt(v_s + epsilon) + beta
    np.testing.assert_allclose(layer, expected, rtol=1e-9, atol=1e-9)
    scale, shift = normalising(m, v, gamma=gamma, beta=beta, epsilon=epsilon, xp=np)
    np.testing.assert_allclose(x * scale + shift, expected, rtol=1e-9, atol=1e-9)


def test_lambda_one_rewrites_nothing() -> None:
    source = np.float32([0.3, -2.0]), np.float32([1.7, 0.4])
    scale, shift = rewriting(*source, source_mean=source[0], source_variance=source[1], epsilon=1e-5, xp=np)
    assert (scale == 1).all()
    assert (shift == 0).all()


logits = arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 8), st.integers(2, 5)),
    elements=st.floats(-20, 20, width=32),
)


def clear_cut(candidates: np.ndarray) -> bool:
    """Whether no two entropies, nor the two largest scores of a candidate, are so close that rounding decides."""
    for image in candidates.astype(np.float64):
        entropies = sorted(reference.entropy(list(z)) for z in image)
        if any(b - a < 1e-5 for a, b in itertools.pairwise(entropies)):
            return False
        if any(np.diff(np.sort(z)[-2:])[0] == 0 for z in image):
            return False
    return True


def run_vote(kind: str, candidates: np.ndarray, top_k: int, axis: int = -1, **options: str) -> np.ndarray:
    how = {"combine": "vote", "scores": "logits", **options}
    backend: Arrays = BACKENDS[kind]
    return np.asarray(decide(own(kind, candidates), top_k=top_k, class_axis=axis, arrays=backend, **how).scores)


@pytest.mark.parametrize("kind", BACKENDS)
@given(candidates=logits, k=st.integers(1, 8))
@settings(max_examples=300)
def test_vote_equals_a_float64_loop(kind: str, candidates: np.ndarray, k: int) -> None:
    k = min(k, candidates.shape[1])
    if not clear_cut(candidates):
        return
    answer = run_vote(kind, candidates, k)
    mean = run_vote(kind, candidates, k, combine="mean")
    for b, image in enumerate(candidates.astype(np.float64)):
        np.testing.assert_allclose(answer[b], reference.vote(image, k), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(np.exp(mean[b]), reference.mean_probabilities(image, k), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", BACKENDS)
def test_vote_equals_the_loop_on_many_random_images(kind: str) -> None:
    candidates = np.random.default_rng(0).normal(scale=3, size=(500, 8, 10)).astype(np.float32)
    answer = run_vote(kind, candidates, 3)
    expected = [reference.vote(image, 3) for image in candidates.astype(np.float64)]
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", BACKENDS)
def test_pixels_vote_each_for_themselves(kind: str) -> None:
    candidates = np.random.default_rng(0).normal(scale=3, size=(2, 5, 4, 3, 6)).astype(np.float32)
    answer = run_vote(kind, candidates, 3, axis=-3)
    for b, y, x in np.ndindex(2, 3, 6):
        expected = reference.vote(candidates[b, :, :, y, x].astype(np.float64), 3)
        np.testing.assert_allclose(answer[b, :, y, x], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", BACKENDS)
@pytest.mark.parametrize("combine", ["vote", "mean"])
def test_probabilities_and_logits_give_the_same_answer(kind: str, combine: str) -> None:
    z = np.random.default_rng(0).normal(scale=4, size=(64, 8, 10)).astype(np.float32)
    p = np.exp(z - z.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    from_logits = run_vote(kind, z, 3, combine=combine)
    from_logits = np.exp(from_logits - from_logits.max(-1, keepdims=True))
    from_logits /= from_logits.sum(-1, keepdims=True)
    from_probabilities = run_vote(kind, p, 3, combine=combine, scores="probabilities")
    np.testing.assert_allclose(from_probabilities, from_logits, rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(from_probabilities.sum(-1), 1, rtol=1e-5)


def test_a_tie_goes_to_the_most_certain_of_the_tied() -> None:
    # Three labels, one vote each; the most certain candidate says 2.
    candidates = np.float32([[[3, 0, 0], [0, 2, 0], [0, 0, 9]]])
    assert run_vote("numpy", candidates, 3).argmax() == 2


def test_a_majority_beats_the_most_certain() -> None:
    candidates = np.float32([[[3, 0, 0], [4, 0, 0], [0, 0, 9]]])
    np.testing.assert_allclose(run_vote("numpy", candidates, 3), [[3.5, 0, 0]])


@pytest.mark.parametrize("kind", BACKENDS)
def test_a_candidate_gone_nan_is_outvoted_and_all_nan_stays_nan(kind: str) -> None:
    candidates = np.float32([[[3, 0], [4, 0], [np.nan, np.nan]], [[np.nan, np.nan]] * 3])
    answer = run_vote(kind, candidates, 3)
    np.testing.assert_allclose(answer[0], [3.5, 0])
    assert np.isnan(answer[1]).all()


@pytest.mark.parametrize("kind", BACKENDS)
def test_classes_masked_with_minus_infinity_are_never_chosen(kind: str) -> None:
    candidates = np.float32([[[3, 0, -np.inf], [4, 1, -np.inf], [0, 1, -np.inf]]])
    np.testing.assert_allclose(run_vote(kind, candidates, 3), [[3.5, 0.5, -np.inf]])
