"""`cascade`: adapt only what the source model is unsure of."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import reference
from small_network import images

import sita_adapters as sita


def entropies(logits: np.ndarray) -> np.ndarray:
    return np.array([reference.entropy(z.astype(float).tolist()) for z in logits])


def test_unsure_images_go_on(backend: Any) -> None:
    model, batch = backend.model("dict"), images(9)
    adapted = sita.adapt(model, "augbn")
    plain, better = backend.run(model, batch), backend.run(adapted, batch)
    found = entropies(plain["logits"])
    threshold = float(np.sort(found)[4:6].mean())  # far from any image's, as rounding goes
    fast = sita.cascade(model, adapted, entropy=threshold)
    said, unsure = backend.run(fast, batch), found > threshold
    assert 0 < unsure.sum() < 9
    for key, value in said.items():
        chosen = unsure.reshape(-1, *[1] * (value.ndim - 1))
        np.testing.assert_allclose(value, np.where(chosen, better[key], plain[key]), rtol=1e-5, atol=1e-5)
    assert (fast.tally.images, fast.tally.adapted) == (9, unsure.sum())
    assert str(fast.tally) == f"{unsure.sum()} of 9 images adapted ({100 * unsure.sum() / 9:.1f} %)"
    assert "images adapted" in repr(fast)
    fast.tally.reset()
    assert fast.tally.share == 0


def test_the_ends_are_the_two_models(backend: Any) -> None:
    model, batch = backend.model(), images(3)
    adapted = sita.adapt(model, "augbn")
    for threshold, end in ((100, model), (0, adapted)):
        said = backend.run(sita.cascade(model, adapted, entropy=threshold), batch)
        np.testing.assert_allclose(said, backend.run(end, batch), rtol=1e-5, atol=1e-6)


def test_an_image_that_is_nan_is_unsure(backend: Any) -> None:
    if not backend.keeps_nan:
        pytest.skip("XLA's maximum on the CPU takes NaN for 0")
    model, batch = backend.model(), images(3)
    batch[1] = np.nan
    fast = sita.cascade(model, sita.adapt(model, "augbn"), entropy=100)
    assert np.isnan(backend.run(fast, batch)[1]).all()
    assert fast.tally.adapted == 1


def test_the_chosen_output_decides(backend: Any) -> None:
    model, batch = backend.model("list"), images(3)
    adapted = sita.adapt(model, "augbn", output=1)
    fast = sita.cascade(model, adapted, entropy=0.0)
    np.testing.assert_allclose(backend.run(fast, batch)[1], backend.run(adapted, batch)[1], rtol=1e-5, atol=1e-5)
    assert fast.tally.adapted == 3


def test_pixels_and_single_labels_have_an_entropy(backend: Any) -> None:
    dense, batch = backend.model(dense=True), images(2)
    fast = sita.cascade(dense, sita.adapt(dense, "ops", task="segmentation"), entropy=0.5)
    assert backend.run(fast, batch).shape == (2, 12, 12, 5)
    single = backend.model(classes=1)
    adapted = sita.adapt(single, "ops", scores="sigmoid")
    said = backend.run(sita.cascade(single, adapted, entropy=0.0), batch)
    np.testing.assert_allclose(said, backend.run(adapted, batch), rtol=1e-5, atol=1e-5)


def test_it_counts_in_threads(backend: Any) -> None:
    if backend.name == "keras-jax":
        pytest.skip("Keras on JAX cannot predict with a plain model in two threads")
    model, batch = backend.model(), images(2)
    fast = sita.cascade(model, sita.adapt(model, "augbn"), entropy=0.0)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: backend.run(fast, batch, eager=True), range(8)))
    assert fast.tally.images == fast.tally.adapted == 16


@pytest.mark.parametrize("entropy", [-1, float("nan"), "0.1", True])
def test_a_threshold_is_a_number(backend: Any, entropy: Any) -> None:
    model = backend.model()
    with pytest.raises(sita.RecipeError, match="entropy: expected a number"):
        sita.cascade(model, sita.adapt(model, "augbn"), entropy=entropy)


def test_a_cascade_is_of_a_plain_and_an_adapted_model(backend: Any) -> None:
    model = backend.model()
    adapted = sita.adapt(model, "augbn")
    with pytest.raises(sita.NotAdaptedError):
        sita.cascade(adapted, model, entropy=0.1)
    with pytest.raises(sita.AlreadyAdaptedError, match="plain source model"):
        sita.cascade(adapted, adapted, entropy=0.1)
    single = backend.model(classes=1)
    with pytest.raises(sita.OutputError, match="two classes or more"):
        backend.run(sita.cascade(single, sita.adapt(single, "augbn"), entropy=0.1), images(2))
