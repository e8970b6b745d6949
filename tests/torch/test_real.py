"""Trained networks on real images: what the whole library is for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import sita_adapters as sita
from sita_workbench.networks.cifar_resnet import encode, load_cifar_resnet

pytestmark = pytest.mark.real

SEVERITY = 5


@pytest.fixture(scope="module", params=[20, pytest.param(56, marks=pytest.mark.slow)], ids=["resnet20", "resnet56"])
def network(request: pytest.FixtureRequest, data: Path) -> tuple[int, nn.Module]:
    depth: int = request.param
    return depth, load_cifar_resnet(depth, data / "weights" / f"cifar10_resnet{depth}.safetensors")


def correct(model: nn.Module, images: torch.Tensor, labels: np.ndarray) -> np.ndarray:
    with torch.inference_mode():
        said = torch.cat([model(batch).argmax(1) for batch in images.split(20)])
    return said.numpy() == labels


def clean(data: Path) -> tuple[torch.Tensor, np.ndarray]:
    stored = np.load(data / "cifar10" / "test_1000.npz")
    return encode(stored["images"]), stored["labels"].astype(int)


def corrupted(data: Path, every: int) -> tuple[torch.Tensor, np.ndarray]:
    """Every n-th image of each corruption at severity 5."""
    labels = np.load(data / "cifar10c" / "labels.npy").astype(int)
    block = len(labels) // 5
    chosen = slice((SEVERITY - 1) * block, SEVERITY * block, every)
    files = sorted(path for path in (data / "cifar10c").glob("*.npy") if path.stem != "labels")
    assert len(files) == 15
    images = [encode(np.load(path, mmap_mode="r")[chosen].copy()) for path in files]
    return torch.cat(images), np.tile(labels[chosen], len(files))


def paired_interval(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """The bootstrap 95 % interval of the mean difference, over images."""
    difference = first.astype(float) - second.astype(float)
    random = np.random.default_rng(0)
    means = [random.choice(difference, len(difference)).mean() for _ in range(2000)]
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def test_clean_accuracy_is_pinned_for_the_plain_model_and_source(network: tuple[int, nn.Module], data: Path) -> None:
    """91.73 % and 93.39 % on all 10,000 clean images are these counts on the first 1,000."""
    depth, model = network
    images, labels = clean(data)
    plain = correct(model, images, labels)
    assert plain.sum() == {20: 915, 56: 926}[depth]
    np.testing.assert_array_equal(correct(sita.adapt(model, "source"), images, labels), plain)


def test_ops_helps_on_corrupted_images(network: tuple[int, nn.Module], data: Path) -> None:
    """A sample of CIFAR-10-C at severity 5: ops above source and above bn, beyond chance."""
    _, model = network
    images, labels = corrupted(data, every=24)
    scores = {recipe: correct(sita.adapt(model, recipe), images, labels) for recipe in ("source", "bn", "ops")}
    for other in ("source", "bn"):
        low, high = paired_interval(scores["ops"], scores[other])
        print(f"ops − {other}: {100 * low:.1f} … {100 * high:.1f} points")
        assert low > 0
