"""Weights of a PyTorch network for the same network in Keras."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sita_adapters.errors import InputError

if TYPE_CHECKING:
    import keras

_NAMES = {"kernel": "weight", "gamma": "weight", "bias": "bias", "beta": "bias"}
_NAMES |= {"moving_mean": "running_mean", "moving_variance": "running_var"}
_AXES = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}
"""Keras' axes: kernels (h, w, in, out), matrices (in, out)."""


def assign_torch_weights(model: keras.Model, file: Path) -> keras.Model:
    """Give a Keras model the weights of a PyTorch network's safetensors file, and return it.

    Its layers are named like PyTorch's, with _ for a dot.
    """
    from safetensors.numpy import load_file

    stored = {name: array for name, array in load_file(file).items() if array.ndim}  # without num_batches_tracked
    wanted = {
        f"{layer.name.replace('_', '.')}.{_NAMES[weight.name]}": weight
        for layer in model.layers
        for weight in layer.weights
    }
    if set(wanted) != set(stored):
        raise InputError(
            f"Expected the {len(wanted)} weights of {model.name}; {file} has {len(stored)}, or other names. Try: the "
            "depth that they were trained with."
        )
    for name, weight in wanted.items():
        weight.assign(stored[name].transpose(_AXES[stored[name].ndim]).astype("float32"))
    return model
