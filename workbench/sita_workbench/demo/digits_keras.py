"""The demo's network in Keras 3, on any of its backends: the ResNet of digits_torch, with the same weights."""

from __future__ import annotations

from typing import Any

import keras
from keras import layers

from ..networks.torch_weights import assign_torch_weights
from .digits import SIZE, WEIGHTS, WIDTHS


def load() -> Any:
    """Return the trained network, (N, 32, 32, 3) → (N, 10). Layers are named like PyTorch's, with _ for a dot."""
    picture = keras.Input((SIZE, SIZE, 3), name="picture")
    gray = keras.ops.mean(picture, axis=-1, keepdims=True)
    x = layers.ReLU()(_convolve(gray, "stem_0", "stem_1", WIDTHS[0], 5, 2))
    for stage, width in enumerate(WIDTHS):
        x = _block(x, f"stages_{stage}", width, 1 if stage == 0 else 2)
    logits = layers.Dense(10, name="head")(layers.GlobalAveragePooling2D()(x))
    return assign_torch_weights(keras.Model(picture, logits, name="digit_resnet"), WEIGHTS)


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
