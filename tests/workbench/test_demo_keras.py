"""The demo's network in Keras: the same as PyTorch's."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np
import pytest
from safetensors.numpy import save_file

import sita_adapters as sita
from sita_adapters.errors import InputError
from sita_workbench.demo.digits import encode, load_digits
from sita_workbench.models.digits import load_digits_model
from sita_workbench.networks.torch_weights import assign_torch_weights

pytestmark = pytest.mark.slow


def test_keras_and_pytorch_read_the_same_digits_with_the_same_network() -> None:
    images = encode(load_digits()[1].images[:64])
    loaded = {"torch": load_digits_model("digits"), "keras": load_digits_model("digits:keras")}
    compared = sita.compare({name: each.model for name, each in loaded.items()}, images[:8], "auto")
    assert compared.models[1].same_labels == 1.0
    assert compared.models[1].largest_difference < 1e-5
    np.testing.assert_array_equal(*(each.run(each.adapt("auto"), images).argmax(axis=1) for each in loaded.values()))


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    save_file({"stem.0.weight": np.zeros((16, 1, 5, 5), np.float32)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match=r"Expected the 47 weights of digit_resnet; .* has 1"):
        assign_torch_weights(load_digits_model("digits:keras").model, tmp_path / "other.safetensors")
