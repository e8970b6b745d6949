"""Handwritten digits that come with scikit-learn: small, real, and no download."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sita_adapters.errors import InputError

SIZE = 32
"""Height and width in pixels. The originals are 8 × 8, too small for a layer's statistics."""

TRAIN_COUNT = 1000
HELD_OUT_COUNT = 200
"""Digits between the training and the test digits, on which the strengths of the corruptions were set."""

TEST_COUNT = 597


@dataclass(frozen=True, eq=False)
class Digits:
    """Grey images (N, 32, 32), float32 from 0 (paper) to 1 (ink), and their labels (N,)."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


def load_digits() -> tuple[Digits, Digits]:
    """Return the training and the test digits: always the same, the first 1000 and the last 597.

    The set seems to be in the order of its writers, who are not recorded: unlike a shuffled split, this one tests
    mostly on other people's handwriting. The test digits are in a fixed random order, so that any first part is a fair
    sample.
    """
    from sklearn import datasets

    raw = datasets.load_digits()
    images, labels = upscale(raw.images / 16.0), raw.target.astype(np.int64)
    order = TRAIN_COUNT + HELD_OUT_COUNT + np.random.default_rng(0).permutation(TEST_COUNT)
    return Digits(images[:TRAIN_COUNT], labels[:TRAIN_COUNT]), Digits(images[order], labels[order])


def first(digits: Digits, count: int) -> Digits:
    """Return the first `count` digits."""
    if not 1 <= count <= len(digits):
        raise InputError(
            f"images: expected a number from 1 to {len(digits)}, which is all the test digits there are; "
            f"received {count}."
        )
    return Digits(digits.images[:count], digits.labels[:count])


def upscale(images: np.ndarray) -> np.ndarray:
    """Return images (N, h, w) at 32 × 32, interpolated by cubic splines."""
    from scipy import ndimage

    factors = (1, SIZE / images.shape[1], SIZE / images.shape[2])
    large = ndimage.zoom(images, factors, order=3, mode="nearest", grid_mode=True)
    return np.asarray(np.clip(large, 0.0, 1.0), dtype=np.float32)
