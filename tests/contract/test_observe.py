"""`observe`: what the candidates decided."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import reference
from small_network import images

import sita_adapters as sita
from sita_adapters.errors import InputError

pytestmark = pytest.mark.slow_on("tensorflow", "jax")

PRIORS = (0.5, 0.7, 0.85, 1.0)


@pytest.mark.parametrize("settings", [{}, {"max_rows": 4}], ids=str)
def test_votes_are_recorded(backend: Any, settings: dict[str, Any]) -> None:
    """Against candidates that models of one prior each give."""
    model, batch = backend.model(), images(5)
    adapted = sita.adapt(model, "ops", priors=PRIORS, top_k=3, **settings)
    backend.run(adapted, batch)  # before anybody watches
    with sita.observe(adapted) as seen:
        answer = np.concatenate([backend.run(adapted, batch[:3]), backend.run(adapted, batch[3:])])
    backend.run(adapted, batch)
    candidates = np.stack([backend.run(sita.adapt(model, "augbn", priors=p), batch) for p in PRIORS], axis=1)
    assert len(seen) == 5
    assert seen.candidates == PRIORS
    expected = np.array([[reference.entropy(list(map(float, z))) for z in each] for each in candidates])
    np.testing.assert_allclose(seen.entropies, expected, atol=1e-5)
    np.testing.assert_array_equal(seen.labels, candidates.argmax(2))
    likely = np.exp(candidates) / np.exp(candidates).sum(axis=2, keepdims=True)
    np.testing.assert_allclose(seen.confidences, likely.max(axis=2), atol=1e-5)
    np.testing.assert_array_equal(seen.answers, answer.argmax(1))
    np.testing.assert_allclose(seen.priors, np.array(PRIORS)[expected.argmin(1)], rtol=1e-6)
    for image in range(5):
        kept = np.flatnonzero(seen.kept[image])
        assert set(kept) == set(np.argsort(expected[image])[:3])
        for p in range(len(PRIORS)):
            assert seen.votes[image, p] == sum(seen.labels[image, q] == seen.labels[image, p] for q in kept)


@pytest.mark.parametrize("recipe", ["source", "augbn"])
def test_one_candidate_has_an_entropy_too(backend: Any, recipe: str) -> None:
    adapted, batch = sita.adapt(backend.model(), recipe), images(3)
    with sita.observe(adapted) as seen:
        answer = backend.run(adapted, batch)
    assert seen.entropies.shape == (3, 1)
    np.testing.assert_allclose(seen.entropies[:, 0], [reference.entropy(z.tolist()) for z in answer], atol=1e-5)
    np.testing.assert_array_equal(seen.answers, answer.argmax(1))


def test_every_pixel_has_a_vote(backend: Any) -> None:
    adapted = sita.adapt(backend.model(dense=True), "ops_shared")
    with sita.observe(adapted) as seen:
        backend.run(adapted, images(1))
    assert seen.entropies.shape == seen.confidences.shape == (1, 8, 12, 12)
    assert seen.priors.shape == (1, 12, 12)
    assert len(set(seen.priors.ravel().tolist())) > 1


def test_only_the_observed_model_is_heard(backend: Any) -> None:
    model, batch = backend.model(), images(1)
    one, other = sita.adapt(model, "augbn"), sita.adapt(model, "augbn")
    with sita.observe(one) as seen:
        backend.run(other, batch)
        backend.run(one, batch)
    backend.run(one, batch)
    assert len(seen) == 1


def test_threads_see_their_own_calls(backend: Any) -> None:
    adapted, batch = sita.adapt(backend.model(), "ops_shared"), images(4)
    alone = [int(backend.run(adapted, batch[i : i + 1], eager=True).argmax(1)[0]) for i in range(4)]
    ready = threading.Barrier(4)

    def run(image: int) -> tuple[int, list[int]]:
        ready.wait()
        with sita.observe(adapted) as seen:
            for _ in range(3):
                backend.run(adapted, batch[image : image + 1], eager=True)
        return len(seen), seen.answers.tolist()

    with sita.observe(adapted) as mine:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(run, range(4)))
        backend.run(adapted, batch[:1], eager=True)
    assert found == [(3, [label] * 3) for label in alone]
    assert len(mine) == 1


def test_the_summary_counts(backend: Any) -> None:
    adapted = sita.adapt(backend.model(), "ops", priors=PRIORS)
    with sita.observe(adapted) as seen:
        backend.run(adapted, images(6))
    agree = [all(seen.labels[i, p] == seen.answers[i] for p in np.flatnonzero(seen.kept[i])) for i in range(6)]
    summary = seen.summary()
    assert "images          6" in summary
    first = [100 * (seen.priors == prior).mean() for prior in PRIORS]
    assert ", ".join(f"{prior:.3g}: {share:.0f}%" for prior, share in zip(PRIORS, first, strict=True)) in summary
    assert f"unanimous       {100 * np.mean(agree):.1f}%" in summary
    assert f"changed         {100 * (seen.labels[:, -1] != seen.answers).mean():.1f}%" in summary


def test_nothing_observed_is_an_error(backend: Any) -> None:
    adapted = sita.adapt(backend.model(), "augbn")
    with sita.observe(adapted) as seen:
        pass
    with pytest.raises(sita.SitaError, match="Nothing was observed"):
        _ = seen.priors


def test_images_of_different_sizes_are_counted_but_not_stacked(backend: Any) -> None:
    adapted = sita.adapt(backend.model(dense=True, size=(None, None)), "augbn")
    with sita.observe(adapted) as seen:
        backend.run(adapted, images(1))
        backend.run(adapted, images(1, (12, 16)))
    with pytest.raises(InputError, match="different sizes"):
        _ = seen.entropies
    assert len(seen) == 2
