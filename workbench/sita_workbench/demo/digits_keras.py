"""The demo's network in Keras 3, on any of its backends: the ResNet of digits_torch, trained the same way."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import layers
from safetensors import SafetensorError
from safetensors import numpy as safetensors

import sita_adapters as sita

from .demo import Classifier, Training
from .digits import SIZE, Digits

Network: TypeAlias = Any
"""A keras.Model. Keras has no types to check against."""

NAME = "keras"
LABEL = f"Keras on {keras.backend.backend()}"


def build(widths: tuple[int, ...]) -> Network:
    """Return the network (N, 32, 32, 1) → (N, 10) with its convolutions zero.

    Padding and constants are PyTorch's, so that the two frameworks can exchange weights.
    """
    image = keras.Input((SIZE, SIZE, 1), name="image")
    x = layers.ReLU(name="stem_relu")(_convolve(image, "stem", widths[0], 5, 2))
    for stage, width in enumerate(widths):
        x = _block(x, f"stage{stage}", width, 1 if stage == 0 else 2)
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(image, layers.Dense(10, kernel_initializer="zeros", name="head")(x), name="digit_resnet")


def _block(x: Any, name: str, width: int, stride: int) -> Any:
    """Two convolutions and a shortcut."""
    inner = layers.ReLU(name=f"{name}_relu1")(_convolve(x, f"{name}_1", width, 3, stride))
    inner = _convolve(inner, f"{name}_2", width, 3, 1)
    shortcut = x
    if stride != 1 or x.shape[-1] != width:
        shortcut = _convolve(x, f"{name}_around", width, 1, stride)
    return layers.ReLU(name=f"{name}_relu2")(layers.Add(name=f"{name}_add")([inner, shortcut]))


def _convolve(x: Any, name: str, width: int, size: int, stride: int) -> Any:
    """A convolution and its BatchNorm. Keras' "same" pads less on the left than on the right where it strides."""
    if size > 1:
        x = layers.ZeroPadding2D(size // 2, name=f"{name}_pad")(x)
    convolution = layers.Conv2D(width, size, stride, use_bias=False, kernel_initializer="zeros", name=f"{name}_conv")
    return layers.BatchNormalization(momentum=0.9, epsilon=1e-5, name=f"{name}_bn")(convolution(x))


def train(digits: Digits, training: Training, advance: Callable[[], None]) -> Network:
    """Return a network trained on these digits; `advance` is called after every epoch.

    Digits are shifted a little at random and never corrupted. All random numbers come from numpy, so that every backend
    of Keras starts with the same weights and sees the same batches.
    """
    random = np.random.default_rng(training.seed)
    network = build(training.widths)
    _draw_weights(network, random)
    optimizer = _Momentum(training.learning_rate, training.weight_decay)
    network.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images, steps = encode(digits.images), len(digits) // training.batch_size
    rates = iter(one_cycle(training.learning_rate, steps * training.epochs))
    for _ in range(training.epochs):
        shuffled = random.permutation(len(digits))[: steps * training.batch_size]
        for batch in shuffled.reshape(steps, training.batch_size):
            optimizer.learning_rate = next(rates)
            network.train_on_batch(_shifted(images[batch], training.shift, random), digits.labels[batch])
        advance()
    return _with_weights(build(training.widths), _weights(network))  # without the optimizer's state


def _draw_weights(network: Network, random: np.random.Generator) -> None:
    """Draw kernels as PyTorch does: uniform in ±1/√(inputs of a unit)."""
    for variable in network.trainable_variables:
        if len(variable.shape) > 1:
            bound = 1.0 / math.sqrt(math.prod(variable.shape[:-1]))
            variable.assign(random.uniform(-bound, bound, variable.shape).astype(np.float32))


class _Momentum(keras.optimizers.SGD):  # type: ignore[misc]  # Keras comes without types
    """PyTorch's SGD with Nesterov momentum under OneCycleLR: momentum falls while the learning rate η rises.

    m = 0.95 − 0.1 · η / peak,  g = ∇ + decay · w,  b ← m · b + g,  w ← w − η · (g + m · b)

    Keras' own SGD keeps m and applies the decay outside the momentum, which made the two networks less alike.
    """

    def __init__(self, peak: float, decay: float) -> None:
        super().__init__(peak, momentum=0.95, nesterov=True, name="momentum")
        self.peak, self.decay = peak, decay

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Change one variable."""
        rate = keras.ops.cast(learning_rate, variable.dtype)
        momentum = 0.95 - 0.1 * rate / self.peak
        buffer = self.momentums[self._get_variable_index(variable)]
        decayed = gradient + self.decay * variable
        moved = momentum * buffer + decayed
        self.assign(buffer, moved)
        self.assign_sub(variable, rate * (decayed + momentum * moved))


def one_cycle(peak: float, steps: int) -> list[float]:
    """Return the learning rate of every step: up along a cosine in the first 30 %, then down to nearly 0."""
    top = 0.3 * steps - 1
    rates = []
    for step in range(steps):
        if step <= top:
            begin, end, done = peak / 25, peak, step / top
        else:
            begin, end, done = peak, peak / 25e4, (step - top) / (steps - 1 - top)
        rates.append(end + (begin - end) * (1 + math.cos(math.pi * done)) / 2)
    return rates


def _shifted(images: np.ndarray, most: int, random: np.random.Generator) -> np.ndarray:
    """Return the batch shifted by up to `most` pixels in each direction, padded with white paper."""
    height, width = images.shape[1:3]
    top, left = random.integers(0, 2 * most + 1, 2)
    padded = np.pad(images, ((0, 0), (most, most), (most, most), (0, 0)), constant_values=-1.0)
    return padded[:, top : top + height, left : left + width]


def encode(images: np.ndarray) -> np.ndarray:
    """(N, h, w) with values in [0, 1] → (N, h, w, 1) with values in [−1, 1], as the network takes them."""
    return np.asarray(images[..., None] * 2.0 - 1.0, dtype=np.float32)


def _weights(network: Network) -> dict[str, np.ndarray]:
    return {variable.path: keras.ops.convert_to_numpy(variable) for variable in network.weights}


def _with_weights(network: Network, weights: dict[str, np.ndarray]) -> Network:
    for variable in network.weights:
        variable.assign(weights[variable.path])
    return network


def save(network: Network, path: Path) -> None:
    """Write the weights to a safetensors file, which every backend of Keras reads."""
    path.write_bytes(safetensors.save(_weights(network)))


def load(path: Path, training: Training) -> Network:
    """Return the saved network; raise ValueError where the file holds anything else."""
    network = build(training.widths)
    try:
        saved = safetensors.load(path.read_bytes())
    except SafetensorError as error:
        raise ValueError(f"{path.name} does not hold the network's weights: {error}") from error
    expected = {variable.path: tuple(variable.shape) for variable in network.weights}
    if {name: array.shape for name, array in saved.items()} != expected:
        raise ValueError(f"{path.name} does not hold the network's weights: names or shapes differ")
    return _with_weights(network, saved)


def classifier(network: Network, recipe: str) -> Classifier:
    """Return a function that classifies one image with this recipe."""
    adapted = sita.adapt(network, recipe)

    def classify(image: np.ndarray) -> int:
        return int(np.argmax(adapted.predict_on_batch(encode(image[None]))))

    return classify


def on_pictures(network: Network) -> Network:
    """Return a network that takes pictures (N, 32, 32, 3), RGB from −1 to 1, in place of grey images."""
    pictures = keras.Input((SIZE, SIZE, 3), name="picture")
    return keras.Model(pictures, network(keras.ops.mean(pictures, axis=-1, keepdims=True)), name="digit_pictures")


def one_thread() -> AbstractContextManager[None]:
    """Compute on one thread where possible: TensorFlow and JAX fix their threads when they are imported."""
    if keras.backend.backend() != "torch":
        return contextlib.nullcontext()
    from . import digits_torch

    return digits_torch.one_thread()
