"""The same residual networks for CIFAR in Keras, with the same weights, so that the frameworks can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers, ops

from sita_adapters.errors import InputError

_EPSILON = 1e-5  # PyTorch's; Keras' own is 1e-3


def make_cifar_resnet_keras(depth: int, classes: int = 10) -> keras.Model:
    """Return the network of `depth` 20, 32, 44, 56 or 110. Layers are named as PyTorch's, with _ for a dot."""
    image = keras.Input((32, 32, 3))
    x = layers.ReLU()(_convolve(image, "conv1", "bn1", 16, 1))
    for stage, channels in enumerate((16, 32, 64), 1):
        for block in range((depth - 2) // 6):
            x = _block(x, f"layer{stage}_{block}", channels, 2 if stage > 1 and block == 0 else 1)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(classes, name="linear")(x))


def load_cifar_resnet_keras(depth: int, weights: Path) -> keras.Model:
    """Return the network with the weights of the PyTorch network's safetensors file."""
    from safetensors.numpy import load_file

    stored = {name: array for name, array in load_file(weights).items() if array.ndim}  # without num_batches_tracked
    model = make_cifar_resnet_keras(depth)
    wanted = {
        f"{layer.name.replace('_', '.')}.{_NAMES[weight.name]}": weight
        for layer in model.layers
        for weight in layer.weights
    }
    if set(wanted) != set(stored):
        raise InputError(
            f"Expected the {len(wanted)} weights of a network of {depth} layers; {weights} has {len(stored)}. Try: "
            "the depth that they were trained with."
        )
    for name, weight in wanted.items():
        weight.assign(_transposed(stored[name]))
    return model


_NAMES = {
    "kernel": "weight",
    "gamma": "weight",
    "bias": "bias",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}


def _transposed(array: np.ndarray) -> np.ndarray:
    """Return a weight with Keras' axes: kernels (h, w, in, out), matrices (in, out)."""
    return np.asarray(array.transpose({4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}[array.ndim]))


def _block(x: Any, name: str, channels: int, stride: int) -> Any:
    """Two 3×3 convolutions and a shortcut without parameters: strided, with zeros for new channels."""
    y = layers.ReLU()(_convolve(x, f"{name}_conv1", f"{name}_bn1", channels, stride))
    y = _convolve(y, f"{name}_conv2", f"{name}_bn2", channels, 1)
    more = (channels - x.shape[-1]) // 2
    if more:
        x = ops.pad(x[:, ::stride, ::stride], ((0, 0), (0, 0), (0, 0), (more, more)))
    return layers.ReLU()(layers.Add()([x, y]))


def _convolve(x: Any, name: str, norm: str, channels: int, stride: int) -> Any:
    padded = layers.ZeroPadding2D(1)(x)  # on all sides, as PyTorch does and Keras' "same" does not
    y = layers.Conv2D(channels, 3, stride, use_bias=False, name=name)(padded)
    return layers.BatchNormalization(epsilon=_EPSILON, name=norm)(y)
