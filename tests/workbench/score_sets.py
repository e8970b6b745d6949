"""Small networks and images, for the tests of `sita score` and `sita serve`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

NETWORKS = """
import time, torch
from torch import nn


def _body():
    torch.manual_seed(3)
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
    )
    for _ in range(20):
        body(0.5 + 0.2 * torch.randn(16, 3, 12, 12))
    return body


def build(kind=nn.Sequential):
    body, head = _body(), nn.Linear(8, 4)
    head.weight.data *= 12
    model = kind(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)
    return model, {"inputs": "unit", "size": 12, "crop": 1.0}


def segment():
    body, head = _body(), nn.Conv2d(8, 4, 3, padding=2)
    head.weight.data *= 12
    return nn.Sequential(*body, head), {"inputs": "unit", "task": "segmentation"}


class Moody(nn.Sequential):  # slow, NaN for a white image, and it fails on images smaller than its convolution
    def forward(self, x):
        time.sleep(0.3)
        return torch.where((x == 1).flatten(1).all(1, keepdim=True), torch.nan, super().forward(x))


def moody():
    return build(Moody)[0], {"inputs": "unit", "crop": 1.0}
"""

KERAS = """
import keras


def build():
    keras.utils.set_random_seed(3)
    stem = [keras.layers.Conv2D(8, 3), keras.layers.BatchNormalization(), keras.layers.ReLU()]
    head = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(4)]
    return keras.Sequential([keras.Input((12, 12, 3)), *stem, *head]), {"inputs": "unit", "size": 12, "crop": 1.0}
"""


def draw_images(folder: Path, count: int, sides: tuple[int, ...] = (12,)) -> list[str]:
    """Write images of differing brightness and contrast; return their paths, relative to the folder above."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    paths = []
    for number in range(count):
        side = sides[number % len(sides)]
        pixels = random.normal(random.uniform(60, 190), random.uniform(5, 70), (side, side, 3))
        path = folder / f"{number:03d}.png"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
        paths.append(f"{folder.name}/{path.name}")
    return paths


def read_rows(output: str = "out") -> list[dict[str, Any]]:
    """Return the rows of a run, as any reader of Parquet finds them."""
    return list(pq.read_table(f"{output}/parts").to_pylist())
