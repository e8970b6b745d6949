"""Trained networks in Keras on real images: ResNet50 of keras.applications, and one that PyTorch has, too."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

import sita_adapters as sita
from examples.imagenet_images import CONDITIONS, corrupt, encode, load_images, load_resnet50
from sita_adapters.errors import InputError

pytestmark = pytest.mark.real

SIZE = 160
ENGINE = keras.backend.backend()


@pytest.fixture(scope="module")
def model(data: Path) -> keras.Model:
    return load_resnet50(data, SIZE)


@pytest.mark.parametrize("recipe", ["ops", pytest.param("augbn", marks=pytest.mark.slow)])
def test_the_frameworks_answer_alike_on_every_corruption(recipe: str, data: Path) -> None:
    """The same trained weights in PyTorch and in Keras, on CIFAR-10-C at severity 5."""
    torch = pytest.importorskip("torch")
    from benchmarks.cifar_resnet_keras import load_cifar_resnet_keras
    from sita_workbench.networks.cifar_resnet import encode as encode_cifar
    from sita_workbench.networks.cifar_resnet import load_cifar_resnet

    weights = data / "weights" / "cifar10_resnet20.safetensors"
    files = sorted(path for path in (data / "cifar10c").glob("*.npy") if path.stem != "labels")
    assert len(files) == 15
    batch = encode_cifar(np.concatenate([np.load(path, mmap_mode="r")[-1:] for path in files]))
    with torch.inference_mode():
        expected = sita.adapt(load_cifar_resnet(20, weights), recipe)(batch).numpy()
    adapted = sita.adapt(load_cifar_resnet_keras(20, weights), recipe)
    answer = adapted.predict_on_batch(np.ascontiguousarray(batch.permute(0, 2, 3, 1).numpy()))
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=3e-5)
    assert (answer.argmax(1) == expected.argmax(1)).all()
    with pytest.raises(InputError, match="157 weights of cifar_resnet32"):
        load_cifar_resnet_keras(32, weights)


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
