"""The demo's network in Keras: the same as PyTorch's."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np
import pytest
from safetensors.numpy import save_file

import sita_adapters as sita
from sita_adapters.errors import InputError
from sita_workbench.demo import demo, digits_torch
from sita_workbench.demo.digits import Digits, first, load_digits
from sita_workbench.networks.torch_weights import assign_torch_weights

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def digits_keras() -> Any:
    return demo.load_framework("keras")


@pytest.fixture(scope="module")
def some() -> Digits:
    return first(load_digits()[1], 64)


def test_keras_and_pytorch_have_the_same_network(some: Digits, digits_keras: Any) -> None:
    models = {"torch": digits_torch.load(), "keras": digits_keras.load()}
    compared = sita.compare(models, digits_keras.encode(some.images[:8]), "auto")
    assert compared.models[1].same_labels == 1.0
    assert compared.models[1].largest_difference < 1e-5


def test_both_frameworks_read_the_same_digits(some: Digits, digits_keras: Any) -> None:
    answers = [f.classifier(f.load(), "auto")(some.images) for f in (digits_torch, digits_keras)]
    np.testing.assert_array_equal(*answers)


def test_weights_of_another_network_are_refused(tmp_path: Path, digits_keras: Any) -> None:
    save_file({"stem.0.weight": np.zeros((16, 1, 5, 5), np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match=r"Expected the 47 weights of digit_resnet; .* has 1"):
        assign_torch_weights(digits_keras.load(), tmp_path / "other.safetensors")


def test_pictures_go_into_the_same_network(digits_keras: Any, some: Digits) -> None:
    network = digits_keras.load()
    on_pictures = digits_keras.on_pictures(network)
    gray = digits_keras.encode(some.images[:3])
    for recipe in ("source", "augbn"):
        np.testing.assert_allclose(
            sita.adapt(on_pictures, recipe).predict_on_batch(gray.repeat(3, axis=-1)),
            sita.adapt(network, recipe).predict_on_batch(gray),
            rtol=1e-4,
            atol=1e-5,
        )
