"""Corruptions of the demo's digits: two kinds each of noise, blur, weather, lighting and lost detail.

Every strength was set with the source network alone: on digits used neither for training nor for testing, five of its
seeds get about 60 % right on average. The network, its training and the forms of contrast and compression were chosen
with adapted results in view, some of them on test digits. The demo shows the method and is not a benchmark.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import fft, ndimage

_Distort = Callable[[np.ndarray, float, np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Corruption:
    """A distortion of a square gray image at one strength. Random parts are drawn again for every image."""

    name: str
    strength: float
    distort: _Distort

    def apply(self, image: np.ndarray, index: int = 0) -> np.ndarray:
        """Return the corrupted image (h, w), float32 in [0, 1]. The same index gives the same image."""
        random = np.random.default_rng([0, zlib.crc32(self.name.encode()), index])
        distorted = self.distort(image.astype(np.float64), self.strength, random)
        return np.clip(distorted, 0.0, 1.0).astype(np.float32)

    def apply_all(self, images: np.ndarray) -> np.ndarray:
        """Return images (N, h, w), each corrupted independently."""
        return np.stack([self.apply(image, index) for index, image in enumerate(images)])


def _gaussian_noise(image: np.ndarray, deviation: float, random: np.random.Generator) -> np.ndarray:
    return image + random.normal(0.0, deviation, image.shape)


def _salt_and_pepper(image: np.ndarray, share: float, random: np.random.Generator) -> np.ndarray:
    hit = random.random(image.shape) < share
    return np.where(hit, random.integers(0, 2, image.shape), image)


def _defocus(image: np.ndarray, deviation: float, _: np.random.Generator) -> np.ndarray:
    return np.asarray(ndimage.gaussian_filter(image, deviation, mode="nearest"))


def _motion(image: np.ndarray, length: float, random: np.random.Generator) -> np.ndarray:
    streak = _streak(length, random.uniform(0.0, np.pi))
    return np.asarray(ndimage.convolve(image, streak / streak.sum(), mode="nearest"))


def _fog(image: np.ndarray, density: float, random: np.random.Generator) -> np.ndarray:
    """White haze whose density varies over the image between half and full."""
    clouds = ndimage.gaussian_filter(random.random(image.shape), len(image) / 6, mode="wrap")
    thickness = density * (0.5 + 0.5 * (clouds - clouds.min()) / np.ptp(clouds))
    return np.asarray(image * (1.0 - thickness) + thickness)


def _rain(image: np.ndarray, share: float, random: np.random.Generator) -> np.ndarray:
    """Bright streaks in one direction; `share` is the share of pixels at which one begins."""
    streak = _streak(len(image) / 3, np.pi / 2 + random.uniform(-0.4, 0.4))
    drops = (random.random(image.shape) < share).astype(np.float64)
    return np.asarray(image + 0.8 * ndimage.convolve(drops, streak / streak.max(), mode="constant"))


def _overexposure(image: np.ndarray, light: float, _: np.random.Generator) -> np.ndarray:
    return image + light


def _low_contrast(image: np.ndarray, loss: float, _: np.random.Generator) -> np.ndarray:
    return np.asarray(image.mean() + (image - image.mean()) * (1.0 - loss))


def _compression(image: np.ndarray, coarseness: float, _: np.random.Generator) -> np.ndarray:
    """Round the cosine transform of 8 × 8 blocks, high frequencies more coarsely, as JPEG does."""
    count = len(image) // 8
    blocks = image.reshape(count, 8, count, 8)
    waves = fft.dctn(blocks, axes=(1, 3), norm="ortho")
    fineness = np.maximum(1.0, np.add.outer(np.arange(8), np.arange(8)))
    step = coarseness * fineness[:, None, :]
    return np.asarray(fft.idctn(np.round(waves / step) * step, axes=(1, 3), norm="ortho").reshape(image.shape))


def _pixelation(image: np.ndarray, cells: float, _: np.random.Generator) -> np.ndarray:
    """A mosaic of cells × cells."""
    edges = np.linspace(0, len(image), int(cells) + 1).round().astype(int)
    sides = np.diff(edges)
    sums = np.add.reduceat(np.add.reduceat(image, edges[:-1], axis=0), edges[:-1], axis=1)
    return np.asarray((sums / np.outer(sides, sides)).repeat(sides, axis=0).repeat(sides, axis=1))


def _streak(length: float, angle: float) -> np.ndarray:
    """An anti-aliased straight line through the middle of a small image."""
    radius = int(np.ceil(length / 2)) + 1
    canvas = np.zeros((2 * radius + 1, 2 * radius + 1))
    along = np.linspace(-length / 2, length / 2, int(4 * length) + 1)
    y, x = radius + along * np.sin(angle), radius + along * np.cos(angle)
    top, left = np.floor(y).astype(int), np.floor(x).astype(int)
    down, right = y - top, x - left
    for row, height in ((top, 1 - down), (top + 1, down)):
        for column, width in ((left, 1 - right), (left + 1, right)):
            np.add.at(canvas, (row, column), height * width)
    return canvas


CORRUPTIONS = (
    Corruption("gaussian noise", 0.35, _gaussian_noise),
    Corruption("salt & pepper", 0.24, _salt_and_pepper),
    Corruption("defocus", 2.7, _defocus),
    Corruption("motion blur", 13.0, _motion),
    Corruption("fog", 0.28, _fog),
    Corruption("rain", 0.023, _rain),
    Corruption("overexposure", 0.25, _overexposure),
    Corruption("low contrast", 0.37, _low_contrast),
    Corruption("compression", 4.0, _compression),
    Corruption("pixelation", 5.0, _pixelation),
)
"""The ten corruptions with their strengths: blur in pixels, the others as their functions say."""
