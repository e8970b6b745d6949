"""A framework for image models in numpy. It has just enough to need a backend of its own. Images are (N, h, w, c)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


class Convolution:
    """A convolution with stride 1 that keeps height and width; `kernel` is (height, width, inputs, outputs)."""

    def __init__(self, kernel: np.ndarray) -> None:
        self.kernel = kernel

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the features (N, h, w, outputs)."""
        height, width = self.kernel.shape[:2]
        padded = np.pad(x, ((0, 0), (height // 2, height // 2), (width // 2, width // 2), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(1, 2))
        return np.einsum("nxychw,hwco->nxyo", windows, self.kernel, optimize=True)


class BatchNorm:
    """Normalises every channel with the mean and variance that training left behind."""

    epsilon = 1e-3

    def __init__(self, mean: np.ndarray, variance: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> None:
        self.mean, self.variance, self.gamma, self.beta = mean, variance, gamma, beta

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return γ · (x − mean) / sqrt(variance + ε) + β."""
        return self.gamma * (x - self.mean) / np.sqrt(self.variance + self.epsilon) + self.beta


class Dense:
    """The mean over the positions, times a matrix: the scores (N, classes)."""

    def __init__(self, kernel: np.ndarray) -> None:
        self.kernel = kernel

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return the scores (N, classes)."""
        return x.mean(axis=(1, 2)) @ self.kernel


def relu(x: np.ndarray) -> np.ndarray:
    """Return x where it is positive, else 0."""
    return np.maximum(x, 0)


class Sequential:
    """Layers that run one after the other."""

    def __init__(self, *layers: Callable[[np.ndarray], np.ndarray]) -> None:
        self.layers = layers

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Return the last layer's output."""
        for layer in self.layers:
            images = layer(images)
        return images
