"""Corrupted copies of images in any encoding, on which `calibrate` estimates what a recipe gains."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np


def corrupt(images: np.ndarray, space: list[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield corrupted copies, one of each image, and their indices: noise, blur, contrast and light, at two strengths.

    Strengths are relative to the spread of all pixels, so they fit any encoding.
    """
    random = np.random.default_rng(0)
    x = images.astype(np.float32)
    low, high, spread = x.min(), x.max(), float(x.std())
    everything = tuple(range(1, x.ndim))

    def contrast(some: np.ndarray, factor: float) -> np.ndarray:
        mean = some.mean(axis=everything, keepdims=True)
        return np.asarray(mean + factor * (some - mean))

    kinds: list[Callable[[np.ndarray, float], np.ndarray]] = [
        lambda some, strength: some + strength * spread * random.standard_normal(some.shape, np.float32),
        lambda some, strength: contrast(some, 1 / (1 + 5 * strength)),
        lambda some, strength: some + 2 * strength * spread,
        lambda some, strength: contrast(some, 1 / (1 + 2 * strength)) + strength * spread,
    ]
    if space:
        kinds.append(lambda some, strength: _blur(some, space, strength))
    every = [(kind, strength) for strength in (0.3, 0.8) for kind in kinds]
    for number, (kind, strength) in enumerate(every):
        which = np.arange(number, len(x), len(every))  # one copy of each image
        yield np.clip(kind(x[which], strength), low, high).astype(images.dtype), which


def _blur(x: np.ndarray, space: list[int], strength: float) -> np.ndarray:
    """Average over a window of up to a tenth of each side."""
    for axis in space[-2:]:
        side = x.shape[axis]
        reach = max(1, round(0.05 * strength * side))
        padded = np.pad(x, [(reach, reach) if each == axis else (0, 0) for each in range(x.ndim)], mode="edge")
        shifted = [np.take(padded, range(start, start + side), axis=axis) for start in range(2 * reach + 1)]
        x = np.mean(shifted, axis=0)
    return x
