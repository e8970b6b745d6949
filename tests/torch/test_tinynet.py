"""The worked example of a backend: tinynet's answers are those of the same network in PyTorch, and of plain loops."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import reference
import tinynet_installed
import torch
import torch_reference
from torch import nn

import sita_adapters as sita
from sita_adapters.errors import ExportError, InputError, ModelError, RecipeError

CHANNELS, CLASSES = 6, 5
EXACT = {"rtol": 1e-9, "atol": 1e-9}


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    added = tinynet_installed.install()
    yield
    sys.path[:] = [entry for entry in sys.path if entry not in added]


def make_weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        "kernel": 0.4 * random.normal(size=(3, 3, 3, CHANNELS)),
        "mean": random.normal(size=CHANNELS),
        "variance": random.uniform(0.5, 2, CHANNELS),
        "gamma": random.uniform(0.5, 1.5, CHANNELS),
        "beta": random.normal(size=CHANNELS),
        "head": 2 * random.normal(size=(CHANNELS, CLASSES)),
    }


@pytest.fixture
def model() -> Any:
    tinynet = importlib.import_module("tinynet")
    weights = make_weights()
    norm = tinynet.BatchNorm(*(weights[name] for name in ("mean", "variance", "gamma", "beta")))
    return tinynet.Sequential(
        tinynet.Convolution(weights["kernel"]), norm, tinynet.relu, tinynet.Dense(weights["head"])
    )


class Mean(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


@pytest.fixture
def torch_model() -> nn.Module:
    weights = {name: torch.from_numpy(value) for name, value in make_weights().items()}
    convolution = nn.Conv2d(3, CHANNELS, 3, padding=1, bias=False)
    norm, head = nn.BatchNorm2d(CHANNELS, eps=1e-3), nn.Linear(CHANNELS, CLASSES, bias=False)
    model = nn.Sequential(convolution, norm, nn.ReLU(), Mean(), head).double().eval()
    with torch.no_grad():
        convolution.weight.copy_(weights["kernel"].permute(3, 2, 0, 1))
        norm.running_mean.copy_(weights["mean"])
        norm.running_var.copy_(weights["variance"])
        norm.weight.copy_(weights["gamma"])
        norm.bias.copy_(weights["beta"])
        head.weight.copy_(weights["head"].T)
    return model


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(1).normal(0.3, 2, (4, 18, 18, 3))


def to_torch(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))


@pytest.mark.parametrize("recipe", sita.RECIPES)
def test_every_recipe_answers_as_in_pytorch(
    recipe: str, model: Any, torch_model: nn.Module, images: np.ndarray
) -> None:
    with torch.no_grad():
        expected = sita.adapt(torch_model, recipe)(to_torch(images)).numpy()
    np.testing.assert_allclose(sita.adapt(model, recipe)(images), expected, **EXACT)


def test_augbn_equals_a_plain_loop(model: Any, torch_model: nn.Module, images: np.ndarray) -> None:
    views = [lambda x: x, lambda x: x.rot90(1, (-2, -1)), lambda x: x.rot90(3, (-2, -1))]
    found = sita.adapt(model, "augbn", priors=0.7)(images)
    for image, scores in zip(to_torch(images), found, strict=True):
        rows = torch_reference.run_rows(torch_model, image, views, reference.augbn_rows(0.7, n=2))
        np.testing.assert_allclose(scores, rows[0].numpy(), **EXACT)


def test_the_source_is_not_touched_and_its_changes_are_seen(model: Any, images: np.ndarray) -> None:
    before = model(images)
    adapted = sita.adapt(model, "bn")
    first = adapted(images)
    np.testing.assert_array_equal(model(images), before)
    model.layers[1].mean += 1.0
    assert np.abs(adapted(images) - first).max() > 0.1
    np.testing.assert_array_equal(sita.unwrap(adapted)(images), model(images))


def test_an_answer_depends_on_its_image_alone(model: Any, images: np.ndarray) -> None:
    adapted = sita.adapt(model, "ops", max_rows=8)
    np.testing.assert_allclose(adapted(images)[2], adapted(images[2:3])[0], **EXACT)


def test_the_cores_functions_work(model: Any, torch_model: nn.Module, images: np.ndarray) -> None:
    adapted = sita.adapt(model)
    with sita.observe(adapted) as seen:
        adapted(images)
    assert len(seen) == 4
    assert sita.describe(adapted).scores == "logits"
    assert seen.layers == ("1",)
    assert sita.describe(adapted).backend == "tinynet"
    agreement = sita.compare({"tinynet": model, "torch": torch_model}, images, recipe="augbn").models[1]
    assert agreement.same_labels == 1
    assert agreement.largest_difference < 1e-9


def test_what_cannot_be_adapted_is_an_error(model: Any, images: np.ndarray) -> None:
    with pytest.raises(ModelError, match="unwrap"):
        sita.adapt(sita.adapt(model))
    with pytest.raises(ModelError, match="found none"):
        sita.adapt(type(model)(*model.layers[2:]))
    with pytest.raises(RecipeError, match="matches none"):
        sita.adapt(model, layers="stem")
    with pytest.raises(InputError, match="at least one"):
        sita.adapt(model)(images[:0])
    with pytest.raises(ModelError, match="outside a call"):
        sita.adapt(model).layers[1](images)
    with pytest.raises(ExportError):
        sita.export(sita.adapt(model), "model.onnx", example=images)
