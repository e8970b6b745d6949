"""The demo's network in Keras: the same as PyTorch's, trained with the same schedule, stored and loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np
import pytest
import torch

import sita_adapters as sita
from sita_workbench.demo import demo, digits_torch
from sita_workbench.demo.demo import Training, trained_network
from sita_workbench.demo.digits import Digits, first, load_digits
from sita_workbench.progress import NoProgress

pytestmark = pytest.mark.slow
QUICK = Training(epochs=1)


@pytest.fixture(scope="module")
def digits_keras() -> Any:
    return demo.load_framework("keras")


@pytest.fixture(scope="module")
def some() -> Digits:
    return first(load_digits()[0], 128)


def test_the_network_is_trained_once_and_then_loaded_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, some: Digits, digits_keras: Any
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    trained, cached = (trained_network(digits_keras, some, QUICK, NoProgress()) for _ in range(2))
    for ours, theirs in zip(trained.get_weights(), cached.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    (path,) = (tmp_path / "sita-adapters").iterdir()
    assert path.name.startswith("digits-keras-")


@pytest.mark.parametrize("content", [b"no tensors here", b""])
def test_a_file_without_its_weights_is_refused(tmp_path: Path, content: bytes, digits_keras: Any) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="does not hold the network's weights"):
        digits_keras.load(path, QUICK)


def test_weights_of_another_network_are_refused(tmp_path: Path, digits_keras: Any) -> None:
    path = tmp_path / "weights.safetensors"
    digits_keras.save(digits_keras.build((4, 8)), path)
    with pytest.raises(ValueError, match="names or shapes differ"):
        digits_keras.load(path, QUICK)
    digits_keras.load(path, Training(widths=(4, 8)))


def test_the_learning_rate_is_that_of_pytorch(digits_keras: Any) -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=31, cycle_momentum=False)
    for step, rate in enumerate(digits_keras.one_cycle(0.1, 31)):
        assert rate == pytest.approx(schedule.get_last_lr()[0]), step
        optimizer.step()
        if step < 30:
            schedule.step()


def test_keras_and_pytorch_have_the_same_network(some: Digits, digits_keras: Any) -> None:
    network = digits_torch.train(some, QUICK, lambda: None)
    twin = digits_keras.build(QUICK.widths)
    for variable in twin.weights:
        variable.assign(_torch_tensor(network, variable.path).numpy())
    compared = sita.compare({"torch": network, "keras": twin}, digits_keras.encode(some.images[:8]), "ops")
    assert compared.models[1].same_labels == 1.0
    assert compared.models[1].largest_difference < 1e-5


def _torch_tensor(network: torch.nn.Module, path: str) -> torch.Tensor:
    """The tensor of PyTorch's network that a variable of Keras' corresponds to, its axes in Keras' order."""
    layer, kind = path.split("/")
    block, _, part = layer.rpartition("_")
    stage, _, place = block.partition("_")
    module = {"stem": "stem", "head": "head"}.get(stage or layer, f"stages.{stage[-1:]}")
    module += {
        ("", "conv"): ".0",
        ("", "bn"): ".1",
        ("around", "conv"): ".shortcut.0",
        ("around", "bn"): ".shortcut.1",
        ("", "head"): "",
    }.get((place, part), f".{part}{place}")
    names = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
    tensor = network.state_dict()[f"{module}.{names.get(kind, kind).replace('kernel', 'weight')}"]
    return tensor.permute(*range(2, tensor.ndim), 1, 0) if tensor.ndim > 1 else tensor


def test_pictures_go_into_the_same_network(digits_keras: Any, some: Digits) -> None:
    network = digits_keras.build((4, 8))
    for variable in network.weights:
        variable.assign(np.random.default_rng(len(variable.path)).uniform(0.5, 1.5, variable.shape))
    on_pictures = digits_keras.on_pictures(network)
    grey = digits_keras.encode(some.images[:3])
    np.testing.assert_allclose(
        on_pictures.predict_on_batch(grey.repeat(3, axis=-1)), network.predict_on_batch(grey), rtol=1e-5
    )
    adapted = sita.adapt(on_pictures, "augbn")
    np.testing.assert_allclose(
        adapted.predict_on_batch(grey.repeat(3, axis=-1)),
        sita.adapt(network, "augbn").predict_on_batch(grey),
        rtol=1e-4,
    )
