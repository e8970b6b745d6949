"""Keras on the backend that KERAS_BACKEND names, as the contract's tests handle it: numpy arrays in and out."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers, ops
from small_network import CLASSES, CONVOLUTIONS, EPSILONS, SIZE, WIDTHS, Weights, images, make_weights

BACKEND = keras.backend.backend()


def arrange(output: str, scores: Any, features: Any) -> Any:
    return {
        "scores": lambda: scores,
        "dict": lambda: {"logits": scores, "features": features},
        "list": lambda: [features, scores],
        "two": lambda: {"a": scores, "b": 2 * scores},
        "labels": lambda: ops.argmax(scores, -1),
        "labels and scores": lambda: {"out": ops.argmax(scores, -1), "scores": scores},
        "one number": lambda: ops.mean(scores),
    }[output]()


class KerasFramework:
    """Builds, runs and looks into models of Keras."""

    name = f"keras-{BACKEND}"
    files = {
        "tensorflow": ("model", "model.tflite", "model.onnx"),
        "jax": ("model",),
        "torch": ("model.onnx",),
    }[BACKEND]
    networks = ("ResNet50", "DenseNet121", "InceptionV3")
    sees_sizes = False  # a graph may leave them open
    keeps_nan = BACKEND != "jax"  # XLA's maximum on the CPU takes NaN for 0, so that a ReLU may lose it
    network_rounding = 1e-4  # TensorFlow convolves otherwise for another number of images, and statistics amplify it

    def model(
        self,
        output: str = "scores",
        *,
        activation: str | None = None,
        classes: int = CLASSES,
        dense: bool = False,
        size: tuple[int | None, int | None] = SIZE,
        weights: Weights | None = None,
    ) -> keras.Model:
        inputs = keras.Input((*size, 3))
        weights = make_weights(classes) if weights is None else weights

        def conv(name: str, x: Any) -> Any:
            height, width, _, filters = CONVOLUTIONS[name]
            return layers.Conv2D(filters, (height, width), padding="same", use_bias=False, name=name)(x)

        def norm(name: str, x: Any) -> Any:
            return layers.BatchNormalization(epsilon=EPSILONS[name], name=name)(x)

        x = layers.ReLU()(norm("bn1", conv("conv1", inputs)))
        x = layers.ReLU()(norm("bn2", conv("conv2", x)) + x)
        features = layers.ReLU()(norm("bn3", conv("conv3", x)))
        pooled = features if dense else layers.GlobalAveragePooling2D()(features)
        scores = layers.Dense(classes, activation=activation, name="head")(pooled)
        model = keras.Model(inputs, arrange(output, scores, features))
        for name in CONVOLUTIONS:
            model.get_layer(name).set_weights([weights[f"{name}/kernel"]])
        for name in WIDTHS:
            parts = ("gamma", "beta", "mean", "variance")
            model.get_layer(name).set_weights([weights[f"{name}/{part}"] for part in parts])
        model.get_layer("head").set_weights([weights["head/kernel"], weights["head/bias"]])
        return model

    @functools.cache  # noqa: B019 (there is one framework)
    def network(self, name: str) -> keras.Model:
        """One of the large networks, with statistics of images; shared by tests, which must not change it."""
        keras.utils.set_random_seed(0)
        size = 128 if name == "InceptionV3" else 64
        model = getattr(keras.applications, name)(
            weights=None, input_shape=(size, size, 3), classes=20, classifier_activation=None
        )
        norms = [layer for layer in model.layers if isinstance(layer, layers.BatchNormalization)]
        momenta = [layer.momentum for layer in norms]
        for layer in norms:
            layer.momentum = 0.0  # nothing of the initial 0 and 1 stays
        model(images(8, (size, size), seed=100), training=True)
        for layer, momentum in zip(norms, momenta, strict=True):
            layer.momentum = momentum
        return model

    def without_batchnorm(self) -> keras.Model:
        return keras.Sequential([keras.Input((*SIZE, 3)), layers.Flatten(), layers.Dense(CLASSES)])

    def around(self, model: keras.Model) -> keras.Model:
        """A model that holds this one."""
        return keras.Sequential([model])

    def run(self, model: Any, images: np.ndarray, *, eager: bool = False) -> Any:
        """On JAX compiled as a whole unless asked for: operation by operation would be compiled many times over."""
        answer = model.predict_on_batch(images) if BACKEND == "jax" and not eager else model(images)
        return self.to_numpy(answer)

    def run_in_training_mode(self, model: keras.Model, images: np.ndarray) -> Any:
        before = model.get_weights()
        answer = self.to_numpy(model(images, training=True))
        model.set_weights(before)
        return answer

    def to_images(self, images: np.ndarray) -> np.ndarray:
        return images

    def to_numpy(self, output: Any) -> Any:
        return keras.tree.map_structure(ops.convert_to_numpy, output)

    def memory(self, model: keras.Model) -> list[int]:
        """Which variables it computes with."""
        is_adapted = hasattr(model, "call_layer")
        shared = [each.source for each in model.call_layer().hidden.shared.values()] if is_adapted else model.variables
        return sorted(map(id, shared))

    def values(self, model: keras.Model) -> list[np.ndarray]:
        return [weight.copy() for weight in model.get_weights()]

    def fingerprint(self, model: keras.Model) -> Any:
        """Everything that adapt must leave alone."""
        held = list(model._flatten_layers())
        return (
            json.dumps(model.get_config(), default=str),
            [id(variable) for variable in model.variables],
            [variable.trainable for variable in model.variables],
            [(id(layer), len(layer._inbound_nodes), len(layer._outbound_nodes)) for layer in held],
            [sorted(vars(layer)) for layer in held],
        )

    def change_weights(self, model: keras.Model) -> None:
        model.set_weights([0.8 * weight for weight in model.get_weights()])

    def reload(self, adapted: keras.Model, folder: Path) -> keras.Model:
        adapted.save(folder / "model.keras")
        return keras.saving.load_model(folder / "model.keras")

    def writes(self, adapted: keras.Model, images: np.ndarray, folder: Path) -> dict[str, Callable[[], Any]]:
        """What would write through to the source."""
        changed = [weight + 1 for weight in adapted.get_weights()]
        return {
            "train the source model": lambda: adapted.fit(images, np.zeros((len(images), CLASSES)), verbose=0),
            "load them into the source": lambda: adapted.load_weights(folder / "w.weights.h5"),
            "the source model": lambda: adapted.set_weights(changed),
            "training=True": lambda: adapted(images, training=True),
        }

    def epsilon_of(self, layer: layers.Layer) -> float:
        return layer.epsilon

    def is_model(self, item: object) -> bool:
        return isinstance(item, layers.Layer | keras.Variable)

    def forget(self) -> None:
        """Keras keeps names, and the graphs of what was traced."""
        keras.backend.clear_session(free_memory=False)
