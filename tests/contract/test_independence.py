"""An image's answer depends on that image alone."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from small_network import images

import sita_adapters as sita
from sita_adapters.errors import RecipeError
from sita_adapters.views import content_seed

SLOW = {
    "ensemble": ("tensorflow", "jax"),
    "ops": ("jax",),
    "bn": ("jax",),
    "ptn": ("jax",),
}


@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=pytest.mark.slow_on(*SLOW.get(name, ()))) for name in sita.RECIPES]
)
def test_an_images_answer_does_not_depend_on_its_batch(backend: Any, recipe: str) -> None:
    adapted, batch = sita.adapt(backend.model(), recipe), images(4)
    together = backend.run(adapted, batch)
    alone = np.concatenate([backend.run(adapted, batch[i : i + 1]) for i in range(4)])
    reversed_ = backend.run(adapted, batch[::-1].copy())[::-1]
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(reversed_, together, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(backend.run(adapted, batch), together)


@pytest.mark.parametrize("recipe", ["augbn", "ops", "ops_shared", "ensemble"])
def test_nan_in_one_image_reaches_no_other(backend: Any, recipe: str) -> None:
    adapted, batch = sita.adapt(backend.model(), recipe), images(3)
    with_nan = batch.copy()
    with_nan[1] = np.nan
    clean, dirty = backend.run(adapted, batch), backend.run(adapted, with_nan)
    if backend.keeps_nan:
        assert np.isnan(dirty[1]).all()
    np.testing.assert_allclose(dirty[[0, 2]], clean[[0, 2]], rtol=1e-5, atol=1e-6)


@pytest.mark.slow_on("jax")
def test_threads_with_different_batch_sizes_get_the_single_threaded_answers(backend: Any) -> None:
    adapted = sita.adapt(backend.model(), "ops_shared")
    batches = [images(1 + i % 3, seed=i) for i in range(6)]
    expected = [backend.run(adapted, batch, eager=True) for batch in batches]
    ready = threading.Barrier(6)

    def work(i: int) -> bool:
        ready.wait()
        return all(np.array_equal(backend.run(adapted, batches[i], eager=True), expected[i]) for _ in range(3))

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(6))) == [True] * 6


@pytest.mark.slow_on("jax")
def test_views_are_drawn_by_seed_and_content(backend: Any) -> None:
    """Every image equals a plain adaptation with the views that its own seed draws, in a batch and alone."""
    model, batch = backend.model(), images(2)
    settings = {"augment": ["rotate"], "n_views": 1}
    adapted = sita.adapt(model, "augbn", resample=True, seed=3, **settings)
    together = backend.run(adapted, batch, eager=True)
    for place, image in enumerate(batch):
        own = sita.adapt(model, "augbn", seed=content_seed(image, 3), **settings)
        expected = backend.run(own, image[None])
        np.testing.assert_allclose(together[place : place + 1], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(backend.run(adapted, image[None], eager=True), expected, rtol=1e-5, atol=1e-5)
    once = backend.run(sita.adapt(model, "augbn", seed=3, **settings), batch)
    assert np.abs(once - together).max() > 1e-3
    assert "drawn for every image" in str(sita.describe(adapted))


def test_what_is_not_random_is_not_resampled(backend: Any) -> None:
    with pytest.raises(RecipeError, match=r"resample: expected random views.*lossless"):
        sita.adapt(backend.model(), "ops", resample=True)
    with pytest.raises(RecipeError, match="resample need"):
        sita.adapt(backend.model(), "bn", resample=True)
