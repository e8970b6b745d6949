"""Handwritten digits that come with scikit-learn: small, real, and no download."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

SIZE = 32
"""Height and width in pixels. The originals are 8 × 8, too small for a layer's statistics."""

TRAIN_COUNT, HELD_OUT_COUNT, TEST_COUNT = 1000, 200, 597
"""The strengths of the corruptions were set on the held-out digits."""

WIDTHS = (16, 32, 64)
"""Channels of the network's stages."""

WEIGHTS = Path(__file__).with_name("digits.safetensors")
"""The network's weights, from benchmarks/train_digits.py. Stored, because training differs between machines."""


@dataclass(frozen=True, eq=False)
class Digits:
    """Gray images (N, 32, 32), float32 from 0 (paper) to 1 (ink), and their labels (N,)."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


def load_digits() -> tuple[Digits, Digits]:
    """Return the training and the test digits: always the same, the first 1000 and the last 597.

    The set seems to be sorted by writer, although the writers are not recorded. Unlike a shuffled split, this one tests
    mostly on other people's handwriting. The test digits are in a fixed random order, so the first ones are a fair
    sample.
    """
    from scipy import ndimage
    from sklearn import datasets

    raw = datasets.load_digits()
    large = ndimage.zoom(raw.images / 16.0, (1, SIZE / 8, SIZE / 8), order=3, mode="nearest", grid_mode=True)
    images, labels = np.clip(large, 0.0, 1.0).astype(np.float32), raw.target.astype(np.int64)
    order = TRAIN_COUNT + HELD_OUT_COUNT + np.random.default_rng(0).permutation(TEST_COUNT)
    return Digits(images[:TRAIN_COUNT], labels[:TRAIN_COUNT]), Digits(images[order], labels[order])


def encode(images: np.ndarray) -> np.ndarray:
    """Return gray images (N, h, w) as the network takes them: (N, h, w, 3) with values from −1 to 1."""
    return np.repeat(2.0 * images[..., None] - 1.0, 3, axis=-1)
