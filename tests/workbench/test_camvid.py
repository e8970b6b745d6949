"""CamVid: the network, and the script that trains it."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sklearn.metrics import jaccard_score

from sita_workbench.data.segmentation import CAMVID_CLASSES, CAMVID_VOID
from sita_workbench.models.loading import load_model
from sita_workbench.networks.roadnet import RoadNet

WIDTHS = (4, 6, 8, 12)
COLORS = np.random.default_rng(0).integers(0, 256, (CAMVID_VOID + 1, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "train_camvid.py"))


@pytest.fixture(scope="module")
def pictures() -> tuple[np.ndarray, np.ndarray]:
    """Sky above, road below, void between, and noise everywhere."""
    random = np.random.default_rng(0)
    labels = np.zeros((3, 48, 64), np.uint8)
    for label_map, horizon in zip(labels, (14, 18, 22), strict=True):
        label_map[horizon:] = CAMVID_VOID
        label_map[horizon + 4 :] = CAMVID_CLASSES.index("road")
    images = np.clip(COLORS[labels] + random.normal(0, 20, (*labels.shape, 3)), 0, 255).astype(np.uint8)
    return images, labels


@pytest.mark.parametrize("size", [(48, 64), (37, 51), (1, 1)])
def test_logits_have_the_size_of_the_image(size: tuple[int, int]) -> None:
    network = RoadNet(WIDTHS)
    with torch.inference_mode():
        assert network.eval()(torch.randn(2, 3, *size)).shape == (2, len(CAMVID_CLASSES), *size)


def test_trained_weights_are_loaded_by_name(tmp_path: Path, script: dict[str, Any]) -> None:
    network = RoadNet()
    save_file(network.state_dict(), tmp_path / "net.safetensors")
    loaded = load_model("camvid-roadnet", str(tmp_path / "net.safetensors"))
    assert (loaded.size, loaded.crop, loaded.task, loaded.names) == ((180, 240), 1.0, "segmentation", CAMVID_CLASSES)
    assert torch.equal(loaded.model.head.weight, network.head.weight)
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 3), dtype=np.uint8)
    encoded = script["encode"](images).permute(0, 2, 3, 1).numpy()
    np.testing.assert_allclose(encoded, loaded.encode(images), rtol=0, atol=1e-6)


def test_training_learns(script: dict[str, Any], pictures: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = pictures
    training = script["Training"](widths=WIDTHS, epochs=40, batch_size=2, crop=(32, 48), learning_rate=0.02)
    network = script["train"](images, labels, training, lambda: None)
    with torch.inference_mode():
        predicted = network(script["encode"](images)).argmax(1).numpy()
    known = labels != CAMVID_VOID
    assert jaccard_score(labels[known], predicted[known], average="macro") > 0.8


def test_windows_of_photograph_and_labels_are_the_same(script: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, len(CAMVID_CLASSES), (16, 6, 8)).astype(np.uint8).repeat(16, 1).repeat(16, 2)
    x, y = script["draw_windows"](COLORS[labels], labels, script["Training"](crop=(32, 48)), random)
    assert x.shape == (16, 3, 32, 48)
    assert y.shape == (16, 32, 48)
    colors = script["encode"](COLORS[None, None])[0, :, 0].T
    distances = torch.stack([(x - color.view(3, 1, 1)).norm(dim=1) for color in colors])
    # Where blocks meet, colors mix.
    assert (distances.argmin(0) == y).float().mean() > 0.75
    assert (distances.argmin(0).roll(1, 0) == y).float().mean() < 0.25
