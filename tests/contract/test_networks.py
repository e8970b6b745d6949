"""The covered networks: ResNet, DenseNet and Inception, as each framework has them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from small_network import images

import sita_adapters as sita

pytestmark = pytest.mark.slow_on("tensorflow", "jax")

NORMS = {"resnet50": 53, "densenet121": 121, "inceptionv3": 94}


def pictures(network: str, count: int) -> np.ndarray:
    """Sizes at which all end in features of 2×2: a single position would have no statistics of its own."""
    return images(count, (128, 128) if "nception" in network else (64, 64), seed=4)


def test_lambda_one_is_the_source_model(backend: Any, network: str) -> None:
    model, batch = backend.network(network), pictures(network, 2)
    plain = backend.run(model, batch)
    before = backend.fingerprint(model)  # on JAX, Keras' own predict leaves attributes behind
    np.testing.assert_allclose(backend.run(sita.adapt(model, "source"), batch), plain, rtol=1e-5, atol=1e-5)
    blended = sita.adapt(model, "augbn", n_views=1, priors=float(np.nextafter(1.0, 0.0)))
    assert len(sita.describe(blended).adapted) == NORMS[network.lower().replace("_", "")]
    # Rounding, through a hundred layers and more: what is left of it in the probabilities.
    np.testing.assert_allclose(
        reference.softmax(backend.run(blended, batch)), reference.softmax(plain), rtol=0, atol=1e-4
    )
    assert backend.memory(blended) == backend.memory(model)
    assert backend.fingerprint(model) == before


def test_an_images_answer_does_not_depend_on_its_batch(backend: Any, network: str) -> None:
    model, batch = backend.network(network), pictures(network, 2)
    adapted = sita.adapt(model, "augbn", priors=0.5, n_views=1)
    together = backend.run(adapted, batch)
    alone = np.concatenate([backend.run(adapted, batch[i : i + 1]) for i in range(2)])
    largest = float(np.abs(together).max())
    np.testing.assert_allclose(alone, together, rtol=1e-4, atol=backend.network_rounding * largest)
    # What an image would get of another's statistics is far above that.
    assert np.abs(together - backend.run(model, batch)).max() > 1e-2 * largest
