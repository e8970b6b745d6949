"""The same residual networks for CIFAR in Keras, with the same weights, so that the frameworks can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
from keras import layers, ops

from sita_workbench.networks.torch_weights import assign_torch_weights

_EPSILON = 1e-5  # PyTorch's; Keras' own is 1e-3


def make_cifar_resnet_keras(depth: int, classes: int = 10) -> keras.Model:
    """Return the network of `depth` 20, 32, 44, 56 or 110. Layers are named as PyTorch's, with _ for a dot."""
    image = keras.Input((32, 32, 3))
    x = layers.ReLU()(_convolve(image, "conv1", "bn1", 16, 1))
    for stage, channels in enumerate((16, 32, 64), 1):
        for block in range((depth - 2) // 6):
            x = _block(x, f"layer{stage}_{block}", channels, 2 if stage > 1 and block == 0 else 1)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(classes, name="linear")(x), name=f"cifar_resnet{depth}")


def load_cifar_resnet_keras(depth: int, weights: Path) -> keras.Model:
    """Return the network with the weights of the PyTorch network's safetensors file."""
    return assign_torch_weights(make_cifar_resnet_keras(depth), weights)


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
