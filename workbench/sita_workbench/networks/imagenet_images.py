"""Real ImageNet images, what can happen to them, and the trained ResNet-50 of Keras, from a folder beside the project.

DATA holds `imagenet/images/*.JPEG`, `imagenet/labels.json` (a label 0–999 a file name), and
`weights/resnet50_imagenet_keras.npz` (an array a weight, `<layer>/<weight>`).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage

_CAFFE_MEANS = np.array([103.939, 116.779, 123.68], np.float32)

_Distort = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def load_images(data: Path, count: int | None, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return RGB images (N, size, size, 3) in uint8 and their labels, evenly picked from all of the folder."""
    from PIL import Image

    labels: dict[str, int] = json.loads((data / "imagenet" / "labels.json").read_text())
    names = sorted(labels)
    step = max(1, len(names) // (count or len(names)))
    names = names[::step][:count]

    def read(name: str) -> np.ndarray:
        with Image.open(data / "imagenet" / "images" / name) as image:
            return np.asarray(image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC))

    return np.stack([read(name) for name in names]), np.array([labels[name] for name in names])


def encode(images: np.ndarray) -> np.ndarray:
    """Return RGB bytes as Keras' ResNet50 takes them («caffe»): blue, green, red, each less its mean."""
    return np.ascontiguousarray(images[..., ::-1].astype(np.float32) - _CAFFE_MEANS)


def load_resnet50(data: Path, size: int = 224, activation: str | None = "softmax") -> Any:
    """Return Keras' ResNet50 with its ImageNet weights."""
    import keras

    model = keras.applications.ResNet50(weights=None, input_shape=(size, size, 3), classifier_activation=activation)
    with np.load(data / "weights" / "resnet50_imagenet_keras.npz") as stored:
        weights = dict(stored)
    for layer in model.layers:
        for variable in layer.weights:
            variable.assign(weights.pop(f"{layer.name}/{variable.name}").astype(np.float32))
    if weights:
        raise ValueError(f"Expected the weights of ResNet50 alone; received also {', '.join(weights)}.")
    return model


def _contrast(image: np.ndarray, _: np.random.Generator) -> np.ndarray:
    mean = image.mean((0, 1), keepdims=True)
    return np.asarray(mean + 0.05 * (image - mean))


def _haze(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Light grey in clouds of every size, as fog's."""
    clouds = np.zeros(image.shape[:2])
    for size in (4, 2, 1):
        scale = len(image) * size / 16
        cloud = ndimage.gaussian_filter(random.normal(size=image.shape[:2]), scale, mode="wrap")
        clouds += size * cloud / cloud.std()
    clouds = (clouds - clouds.min()) / (clouds.max() - clouds.min())
    density = (0.6 + 0.35 * clouds)[..., None]
    return np.asarray((1 - density) * image + density * 0.85)


def _noise(image: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return image + random.normal(0.0, 0.38, image.shape)


def _blur(image: np.ndarray, _: np.random.Generator) -> np.ndarray:
    deviation = 6.0 * len(image) / 224
    return np.asarray(ndimage.gaussian_filter(image, (deviation, deviation, 0), mode="reflect"))


_DISTORTIONS: dict[str, _Distort | None] = {
    "clean": None,
    "contrast": _contrast,
    "haze": _haze,
    "noise": _noise,
    "blur": _blur,
}

CONDITIONS = tuple(_DISTORTIONS)
"""What images are seen under: clean, and four corruptions as strong as ImageNet-C's at severity 5 (haze: alike)."""


def corrupt(images: np.ndarray, condition: str, seed: int = 0) -> np.ndarray:
    """Return images (N, H, W, 3) in uint8 under a condition. What is random is drawn for every image, from the seed."""
    distort = _DISTORTIONS[condition]
    if distort is None:
        return images
    made = []
    for index, image in enumerate(images):
        random = np.random.default_rng([seed, zlib.crc32(condition.encode()), index])
        made.append(np.clip(distort(image / 255.0, random), 0.0, 1.0))
    return np.round(255 * np.stack(made)).astype(np.uint8)
