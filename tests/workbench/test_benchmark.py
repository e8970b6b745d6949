"""`sita_workbench.benchmark` against numpy, on models and images in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from nets import CLASSES, dense, images, small
from sklearn.metrics import jaccard_score
from torch.utils.data import DataLoader, TensorDataset

import sita_adapters as sita
from sita_adapters.errors import SitaError
from sita_workbench import benchmark

COUNT = 70


def predict(model: torch.nn.Module, recipe: str, batch: torch.Tensor, **settings: Any) -> np.ndarray:
    """The probabilities, from one image at a time; classes last."""
    adapted = sita.adapt(model, recipe, **settings)
    with torch.no_grad():
        logits = torch.cat([adapted(image[None]) for image in batch]).double()
    return logits.softmax(1).movedim(1, -1).numpy()


def labels_like(p: np.ndarray, seed: int = 0) -> np.ndarray:
    """Labels of which the model gets about half right."""
    random = np.random.default_rng(seed)
    drawn = random.integers(0, p.shape[-1], p.shape[:-1])
    return np.where(random.random(p.shape[:-1]) < 0.5, p.argmax(-1), drawn)


def test_classification_equals_numpy() -> None:
    model, batch = small(), images(COUNT, 3, 16, 16)
    p = {recipe: predict(model, recipe, batch) for recipe in ("source", "ptn", "ops")}
    labels = labels_like(p["source"])
    table = benchmark(model, (batch, labels), ["ptn", sita.RECIPES["ops"]])
    right = {recipe: 100.0 * (each.argmax(-1) == labels) for recipe, each in p.items()}
    assert [row["recipe"] for row in table] == ["source", "ptn", "ops"]
    for row in table:
        recipe = row["recipe"]
        assert row["accuracy"] == pytest.approx(right[recipe].mean(), abs=1e-4)
        assert row["nll"] == pytest.approx(-np.log(p[recipe][np.arange(COUNT), labels]).mean(), abs=1e-4)
        assert (row["images"], row["rows"]) == (COUNT, sita.describe(sita.adapt(model, recipe)).rows)
    source, ptn, _ = table
    differences = right["ptn"] - right["source"]
    resampled = np.random.default_rng(1).choice(differences, (20_000, COUNT)).mean(1)
    assert ptn["gain"] == pytest.approx(differences.mean(), abs=1e-4)
    assert (ptn["low"], ptn["high"]) == pytest.approx(np.percentile(resampled, [2.5, 97.5]), abs=1.5)
    assert ptn["low"] < ptn["gain"] < ptn["high"]
    assert source["gain"] is None
    assert str(table).splitlines()[0].split(" | ")[2].strip() == "accuracy"


def test_segmentation_equals_sklearn() -> None:
    model, batch = dense(), images(9, 3, 16, 16)
    p = {recipe: predict(model, recipe, batch, task="segmentation") for recipe in ("source", "auto")}
    labels = labels_like(p["source"])
    labels[:, :2] = 255
    table = benchmark(model, (batch.numpy(), labels.astype(np.uint8)), ignore=255)
    counted = labels != 255
    for row in table:
        expected = jaccard_score(labels[counted], p[row["recipe"]].argmax(-1)[counted], average="macro")
        assert row["mIoU"] == pytest.approx(100 * expected, abs=1e-4)
    with pytest.raises(SitaError, match=r"received 0 to 255.*ignore"):
        benchmark(model, (batch, labels))


def test_data_loaders_and_conditions() -> None:
    model, batch = small(), images(COUNT, 3, 16, 16)
    labels = labels_like(predict(model, "source", batch))
    loader = DataLoader(TensorDataset(batch, torch.from_numpy(labels)), batch_size=16)
    assert benchmark(model, loader) == benchmark(model, (batch, labels))
    noisy = (batch + torch.randn_like(batch))[:40], labels[:40]
    table = benchmark(model, {"clean": (one for one in loader), "noisy": noisy})
    rows = {(row["condition"], row["recipe"]): row for row in table}
    assert list(rows)[:2] == [("clean", "source"), ("clean", "auto")]
    for recipe in ("source", "auto"):
        accuracies = [rows[condition, recipe]["accuracy"] for condition in ("clean", "noisy")]
        assert rows["mean", recipe]["accuracy"] == pytest.approx(np.mean(accuracies), abs=1e-4)
        assert rows["mean", recipe]["images"] == COUNT + 40


ZEROS = np.zeros(2, int)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": lambda: small().train()}, r"Try: model.eval\(\)"),
        ({"model": lambda: sita.adapt(small())}, "it is already adapted"),
        ({"data": (images(2, 3, 8, 8), np.eye(2))}, "argmax"),
        ({"data": (images(2, 3, 8, 8), ZEROS - 1)}, f"labels from 0 to {CLASSES - 1}.*received -1"),
        ({"data": (images(2, 3, 8, 8), ZEROS[:1])}, "whole numbers"),
        ({"data": images(2, 3, 8, 8)}, r"expected \(images, labels\)"),
        ({"data": [{"pixels": images(2, 3, 8, 8), "labels": ZEROS}]}, "has a dict"),
        ({"data": {"clean": (images(2, 3, 8, 8), ZEROS), "fog": []}}, "received none"),
        ({"recipes": [sita.Recipe(priors=0.5), sita.Recipe(priors=0.8)]}, "two different recipes are named 'custom'"),
    ],
)
def test_what_is_unclear_is_refused(change: dict[str, Any], message: str) -> None:
    given = {"model": small, "data": (images(2, 3, 8, 8), ZEROS), "recipes": ["bn"]} | change
    with pytest.raises(SitaError, match=message):
        benchmark(given["model"](), given["data"], given["recipes"])


@pytest.mark.slow
def test_keras_model_equals_numpy() -> None:
    import keras_nets

    from sita_workbench.baselines.keras_training import Tent

    model, batch = keras_nets.functional(), keras_nets.images(9)
    adapted = sita.adapt(model, "ptn")
    p = {"source": model.predict(batch, verbose=0), "ptn": adapted.predict(batch, verbose=0)}
    labels = labels_like(p["ptn"])
    table = benchmark(model, (batch, labels), ["ptn"])
    for row in table:
        assert row["accuracy"] == pytest.approx(100 * (p[row["recipe"]].argmax(-1) == labels).mean(), abs=1e-4)
    trained = Tent(model).predict_on_batch(batch).argmax(-1)
    (row,) = [row for row in benchmark(model, (batch, labels), ["tent"]) if row["recipe"] == "tent"]
    assert row["accuracy"] == pytest.approx(100 * (trained == labels).mean(), abs=1e-4)
