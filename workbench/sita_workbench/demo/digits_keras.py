"""The demo's network in Keras 3, on any of its backends: the ResNet of digits_torch, with the same weights."""

from __future__ import annotations

from typing import Any, TypeAlias

import keras
import numpy as np
from keras import layers

import sita_adapters as sita

from ..networks.torch_weights import assign_torch_weights
from .demo import WEIGHTS, WIDTHS, Classifier
from .digits import SIZE

Network: TypeAlias = Any
"""A keras.Model. Keras has no types to check against."""

LABEL = f"Keras on {keras.backend.backend()}"


def load() -> Network:
    """Return the trained network, (N, 32, 32, 1) → (N, 10). Layers are named like PyTorch's, with _ for a dot."""
    image = keras.Input((SIZE, SIZE, 1), name="image")
    x = layers.ReLU()(_convolve(image, "stem_0", "stem_1", WIDTHS[0], 5, 2))
    for stage, width in enumerate(WIDTHS):
        x = _block(x, f"stages_{stage}", width, 1 if stage == 0 else 2)
    x = layers.GlobalAveragePooling2D()(x)
    return assign_torch_weights(keras.Model(image, layers.Dense(10, name="head")(x), name="digit_resnet"), WEIGHTS)


def _block(x: Any, name: str, width: int, stride: int) -> Any:
    """Two convolutions and a shortcut."""
    inner = layers.ReLU()(_convolve(x, f"{name}_conv1", f"{name}_bn1", width, 3, stride))
    inner = _convolve(inner, f"{name}_conv2", f"{name}_bn2", width, 3, 1)
    if stride != 1 or x.shape[-1] != width:
        x = _convolve(x, f"{name}_shortcut_0", f"{name}_shortcut_1", width, 1, stride)
    return layers.ReLU()(layers.Add()([inner, x]))


def _convolve(x: Any, name: str, norm: str, width: int, size: int, stride: int) -> Any:  # noqa: PLR0917
    """A convolution and its BatchNorm. Keras' "same" pads less on the left than on the right if it strides."""
    padded = layers.ZeroPadding2D(size // 2)(x) if size > 1 else x
    y = layers.Conv2D(width, size, stride, use_bias=False, name=name)(padded)
    return layers.BatchNormalization(epsilon=1e-5, name=norm)(y)


def encode(images: np.ndarray) -> np.ndarray:
    """(N, h, w) with values in [0, 1] → (N, h, w, 1) with values in [−1, 1], as the network takes them."""
    return np.asarray(images[..., None] * 2.0 - 1.0, dtype=np.float32)


def classifier(network: Network, recipe: str) -> Classifier:
    """Return a function that classifies images with this recipe."""
    adapted = sita.adapt(network, sita.RECIPES[recipe])

    def classify(images: np.ndarray) -> np.ndarray:
        return np.asarray(np.argmax(adapted.predict_on_batch(encode(images)), axis=1))

    return classify


def on_pictures(network: Network) -> Network:
    """Return a network that takes pictures (N, 32, 32, 3), RGB from −1 to 1, instead of gray images."""
    pictures = keras.Input((SIZE, SIZE, 3), name="picture")
    return keras.Model(pictures, network(keras.ops.mean(pictures, axis=-1, keepdims=True)), name="digit_pictures")
