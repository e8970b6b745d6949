"""What the probe runs a model and its layers on: random images, rounding errors, changed statistics."""

from __future__ import annotations

import numpy as np


def random_like(images: np.ndarray) -> np.ndarray:
    """Return two random images with the dtype and the value range of these images (N, …).

    The first covers the range of all images, and the second covers the range of the darkest image. This reveals a
    model that branches on the maximum of a batch. Each image has a few large areas, and noise.
    """
    floating, shape = np.issubdtype(images.dtype, np.floating), images.shape[1:]
    flat = images.reshape(len(images), -1).astype(np.float64)
    finite = flat[np.isfinite(flat).all(axis=1)]
    finite = finite if finite.size else np.asarray([[0.0, 1.0]])
    low, high = float(finite.min()), float(finite.max())
    darkest = max(float(finite.max(axis=1).min()), low + 1e-3 * (high - low))
    if high - low < 0.01 * max(abs(low), abs(high), 1.0):  # too little contrast to show that images mix
        low, high = min(low, 0.0), max(high, 0.0)
        if high - low < 0.01:
            low, high = (low, low + 1.0) if floating else (0.0, 1.0 if images.dtype == np.bool_ else 255.0)
        darkest = high
    random, made = np.random.default_rng(0), np.empty((2, *shape))
    for image, top in zip(made, (high, darkest), strict=True):
        areas = random.uniform(size=tuple(min(size, 3) for size in shape))
        values = areas[np.ix_(*(np.arange(size) * min(size, 3) // max(size, 1) for size in shape))]
        values = values + random.uniform(size=shape)
        values -= values.min(initial=np.inf)
        image[...] = low + (top - low) * values / max(float(values.max(initial=0.0)), 1e-6)
    return made.astype(images.dtype) if floating else np.rint(made).astype(images.dtype)


def perturb(images: np.ndarray, precision: float) -> np.ndarray:
    """Return images with relative errors of up to four times a precision; integers are unchanged."""
    if not np.issubdtype(images.dtype, np.floating):
        return images
    signs = np.random.default_rng(1).uniform(-1, 1, images.shape)
    return (images * (1 + 4 * precision * signs)).astype(images.dtype)


def change_statistics(
    x: np.ndarray, mean: np.ndarray, variance: np.ndarray, epsilon: float, axis: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return other statistics m', v' of a layer, and the input x' for which its output must stay the same.

    x' = (x − m) / √(v + ε) · √(v' + ε) + m'

    The method relies on this property: changing the statistics of a BatchNorm layer is the same as changing its input.
    It does not hold if a layer changes its input before the normalization, or bypasses the normalization.
    """
    random, column = np.random.default_rng(0), [-1 if each == axis % x.ndim else 1 for each in range(x.ndim)]
    other_mean = mean + random.normal(size=mean.shape) * np.sqrt(variance + epsilon)
    other_variance = (variance + epsilon) * random.uniform(0.05, 2.05, mean.shape)
    scale = np.sqrt((other_variance + epsilon) / (variance + epsilon)).reshape(column)
    return other_mean, other_variance, (x - mean.reshape(column)) * scale + other_mean.reshape(column)
