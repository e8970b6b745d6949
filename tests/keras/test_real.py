"""A trained network in Keras on real images: ResNet50 of keras.applications."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import sita_adapters as sita
from examples.imagenet_images import CONDITIONS, corrupt, encode, load_images, load_resnet50

pytestmark = pytest.mark.real

SIZE = 160
ENGINE = keras.backend.backend()


@pytest.fixture(scope="module")
def model(data: Path) -> keras.Model:
    return load_resnet50(data, SIZE)


@pytest.mark.slow
def test_source_is_the_plain_model(model: keras.Model, data: Path) -> None:
    images, _ = load_images(data, 4, SIZE)
    batch = encode(images)
    np.testing.assert_allclose(
        sita.adapt(model, "source").predict_on_batch(batch), model.predict_on_batch(batch), rtol=1e-6, atol=1e-7
    )


if ENGINE == "tensorflow":  # the others compute the same, more slowly

    @pytest.mark.slow
    def test_ops_shared_helps_on_corrupted_images(model: keras.Model, data: Path) -> None:
        """A sample: contrast, haze, noise and blur, each about as strong as severity 5."""
        images, labels = load_images(data, 8, SIZE)
        adapted = sita.adapt(model, "ops_shared")
        right: dict[str, list[bool]] = {"source": [], "ops_shared": []}
        for condition in CONDITIONS[1:]:
            batch = encode(corrupt(images, condition))
            right["source"].extend(model.predict_on_batch(batch).argmax(1) == labels)
            for image, label in zip(batch, labels, strict=True):
                right["ops_shared"].append(adapted.predict_on_batch(image[None])[0].argmax() == label)
        print({name: sum(said) for name, said in right.items()}, "of", len(right["ops_shared"]))
        assert sum(right["ops_shared"]) > sum(right["source"])
