"""Real ImageNet images, clean and corrupted, and the trained ResNet-50 of Keras, from a folder beside the project.

DATA holds `imagenet/images/*.JPEG`, `imagenet/labels.json` (file name: label 0–999), and
`weights/resnet50_imagenet_keras.npz` (arrays named `<layer>/<weight>`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from sita_workbench.corruptions import corrupt as corrupt_image

CONDITIONS = ("clean", "contrast", "fog", "gaussian_noise", "gaussian_blur")
"""Clean, and four corruptions at severity 5."""


def load_images(data: Path, count: int | None, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return RGB images (N, size, size, 3) in uint8 and their labels, at even distances in the folder."""
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
    """Return RGB bytes as Keras' ResNet50 takes them ("caffe"): blue, green, red, minus their means."""
    means = np.array([103.939, 116.779, 123.68], np.float32)
    return np.ascontiguousarray(images[..., ::-1].astype(np.float32) - means)


def load_resnet50(data: Path, size: int = 224) -> Any:
    """Return Keras' ResNet50 with its ImageNet weights."""
    import keras

    model = keras.applications.ResNet50(weights=None, input_shape=(size, size, 3))
    with np.load(data / "weights" / "resnet50_imagenet_keras.npz") as stored:
        for layer in model.layers:
            for weight in layer.weights:
                weight.assign(stored[f"{layer.name}/{weight.name}"])
    return model


def corrupt(images: np.ndarray, condition: str, seed: int = 0) -> np.ndarray:
    """Return images (N, H, W, 3) in uint8 under a condition."""
    if condition == "clean":
        return images
    return np.stack([corrupt_image(image, condition, 5, seed=seed, index=index) for index, image in enumerate(images)])
