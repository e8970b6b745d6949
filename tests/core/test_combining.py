"""Mixing and voting against loops in float64, on numpy arrays and on those of the process's framework."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from namespaces import Namespace

from sita_adapters.combining import CandidateMeasurement, confidence, mix_scores, mix_weights
from sita_adapters.voting import decide, select_lowest

KINDS = ("logits", "probabilities", "log_probabilities", "sigmoid", "sigmoid_probabilities")


@pytest.mark.parametrize("adapted_count", [1, 2])
@pytest.mark.parametrize("pixels", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_mixed_scores_equal_a_float64_loop(namespace: Namespace, kind: str, pixels: bool, adapted_count: int) -> None:
    """Candidates of four images, of which the last is the source's; classes last, or before the pixels."""
    random, axis, count = np.random.default_rng(0), -3 if pixels else -1, adapted_count + 1
    z = random.normal(size=(4, count, 3, 6, 5) if pixels else (4, count, 5))
    z *= random.uniform(0.5, 6, (4, count, *[1] * (z.ndim - 2)))
    values = {
        "probabilities": reference.softmax(z),
        "log_probabilities": np.log(reference.softmax(z)),
        "sigmoid_probabilities": 1 / (1 + np.exp(-z)),
    }.get(kind, z)
    shifts = np.float32([[0.01, 1e-12], [0.05, 0.04], [0.3, 0.5], [4.0, 7.0]])[:, :adapted_count]
    measured = [CandidateMeasurement((), namespace.own(each), None, None) for each in shifts.T.copy()]
    given = namespace.own(np.moveaxis(values, -1, axis).astype(np.float32))
    confidences = confidence(given, kind, axis, namespace.ops)
    weights = mix_weights([*measured, None], confidences, 1.5, namespace.ops)
    mixed = namespace.numpy(mix_scores(given, weights, kind, axis, namespace.ops))
    chosen = namespace.numpy(select_lowest(given, -weights, range(count), namespace.ops))
    for image, candidates in enumerate(values):
        known = [float(d) + 1e-6 for d in shifts[image]]  # about what rounding leaves of no shift
        wanted = reference.mix_weights(candidates, [*known, None], kind, 1.5)
        np.testing.assert_allclose(namespace.numpy(weights)[image], wanted, rtol=1e-4, atol=1e-9)
        place = 0 if pixels else -1
        answer = np.moveaxis(reference.mix(candidates, wanted, kind), -1, place)
        np.testing.assert_allclose(mixed[image], answer, rtol=1e-4, atol=1e-5)
        largest = np.moveaxis(candidates[np.argmax(wanted)], -1, place)
        np.testing.assert_array_equal(chosen[image], largest.astype(np.float32))
    assert np.ptp(namespace.numpy(weights), axis=0).min() > 0.05


# A framework that compiles does so for every shape. TensorFlow takes subnormal numbers for 0.
shapes = st.sampled_from([(1, 1, 2), (3, 3, 3), (2, 8, 5)])
score = st.floats(-20, 20, width=32, allow_subnormal=False)
logits = shapes.flatmap(lambda shape: arrays(np.float32, shape, elements=score))


def clear_cut(candidates: np.ndarray) -> bool:
    """Whether no two entropies, nor the two largest scores of a candidate, are so close that rounding decides."""
    for image in candidates.astype(np.float64):
        entropies = sorted(reference.entropy(list(z)) for z in image)
        if any(b - a < 1e-5 for a, b in itertools.pairwise(entropies)):
            return False
        if any(np.diff(np.sort(z)[-2:])[0] == 0 for z in image):
            return False
    return True


def run_vote(namespace: Namespace, candidates: np.ndarray, top_k: int, axis: int = -1, **options: str) -> np.ndarray:
    how = {"combine": "vote", "kind": "logits", **options}
    settings = {"top_k": top_k, "class_axis": axis, "ops": namespace.ops}
    return namespace.numpy(decide(namespace.own(candidates), **settings, **how).scores)


@given(candidates=logits, k=st.integers(1, 8))
def test_vote_equals_a_float64_loop(namespace: Namespace, candidates: np.ndarray, k: int) -> None:
    k = min(k, candidates.shape[1])
    if not clear_cut(candidates):
        return
    answer = run_vote(namespace, candidates, k)
    mean = run_vote(namespace, candidates, k, combine="mean")
    for b, image in enumerate(candidates.astype(np.float64)):
        np.testing.assert_allclose(answer[b], reference.vote(image, k), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(np.exp(mean[b]), reference.mean_probabilities(image, k), rtol=1e-4, atol=1e-6)


def test_vote_equals_the_loop_on_many_random_images(namespace: Namespace) -> None:
    candidates = np.random.default_rng(0).normal(scale=3, size=(500, 8, 10)).astype(np.float32)
    answer = run_vote(namespace, candidates, 3)
    expected = [reference.vote(image, 3) for image in candidates.astype(np.float64)]
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-5)


def test_pixels_vote_each_for_themselves(namespace: Namespace) -> None:
    candidates = np.random.default_rng(0).normal(scale=3, size=(2, 5, 4, 3, 6)).astype(np.float32)
    answer = run_vote(namespace, candidates, 3, axis=-3)
    for b, y, x in np.ndindex(2, 3, 6):
        expected = reference.vote(candidates[b, :, :, y, x].astype(np.float64), 3)
        np.testing.assert_allclose(answer[b, :, y, x], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("combine", ["vote", "mean"])
def test_probabilities_and_logits_give_the_same_answer(namespace: Namespace, combine: str) -> None:
    z = np.random.default_rng(0).normal(scale=4, size=(64, 8, 10)).astype(np.float32)
    p = np.exp(z - z.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    from_logits = run_vote(namespace, z, 3, combine=combine)
    from_logits = np.exp(from_logits - from_logits.max(-1, keepdims=True))
    from_logits /= from_logits.sum(-1, keepdims=True)
    from_probabilities = run_vote(namespace, p, 3, combine=combine, kind="probabilities")
    np.testing.assert_allclose(from_probabilities, from_logits, rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(from_probabilities.sum(-1), 1, rtol=1e-5)


def test_a_tie_goes_to_the_most_confident_of_the_tied(namespace: Namespace) -> None:
    # Three labels, one vote each; the most confident candidate says 2.
    candidates = np.float32([[[3, 0, 0], [0, 2, 0], [0, 0, 9]]])
    assert run_vote(namespace, candidates, 3).argmax() == 2


def test_a_majority_beats_the_most_confident(namespace: Namespace) -> None:
    candidates = np.float32([[[3, 0, 0], [4, 0, 0], [0, 0, 9]]])
    np.testing.assert_allclose(run_vote(namespace, candidates, 3), [[3.5, 0, 0]])


def test_a_candidate_gone_nan_is_outvoted_and_all_nan_stays_nan(namespace: Namespace) -> None:
    candidates = np.float32([[[3, 0], [4, 0], [np.nan, np.nan]], [[np.nan, np.nan]] * 3])
    answer = run_vote(namespace, candidates, 3)
    np.testing.assert_allclose(answer[0], [3.5, 0])
    assert np.isnan(answer[1]).all()


def test_classes_masked_with_minus_infinity_are_never_chosen(namespace: Namespace) -> None:
    candidates = np.float32([[[3, 0, -np.inf], [4, 1, -np.inf], [0, 1, -np.inf]]])
    np.testing.assert_allclose(run_vote(namespace, candidates, 3), [[3.5, 0.5, -np.inf]])


def test_a_candidate_that_is_nan_is_the_least_confident(namespace: Namespace) -> None:
    candidates = np.array([[[1.0, 2.0], [np.nan, 0.0], [3.0, 0.0]]], np.float32)
    settings = {"top_k": 2, "class_axis": -1, "ops": namespace.ops}
    vote = decide(namespace.own(candidates), combine="vote", kind="logits", **settings)
    assert namespace.numpy(vote.entropies)[0, 1, 0] == np.inf
    np.testing.assert_array_equal(namespace.numpy(vote.kept)[0, :, 0], [True, False, True])
    np.testing.assert_array_equal(namespace.numpy(vote.scores), [[3.0, 0.0]])
