"""One small network in plain numpy and float64. Every framework builds it with the same weights.

    images ── conv1, bn1, ReLU ──┬── conv2, bn2 ──(+)── ReLU ── conv3, bn3, ReLU ── features
                                 └────────────────┘
    features ── mean over positions ── head ── scores;   dense: the head at every position instead

Arrays have their channels last. The statistics are blended by plain loops, written from the method's definition.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import reference

CLASSES = 5
SIZE = (12, 12)
CONVOLUTIONS = {"conv1": (3, 3, 3, 6), "conv2": (3, 3, 6, 6), "conv3": (1, 1, 6, 8)}
"""The shapes of the kernels: height, width, channels in, channels out. Padded with zeros, stride 1."""
EPSILONS = {"bn1": 1e-5, "bn2": 1e-3, "bn3": 1e-2}
WIDTHS = {"bn1": 6, "bn2": 6, "bn3": 8}

Weights = Mapping[str, np.ndarray]


def images(count: int, size: tuple[int, int] = SIZE, seed: int = 0) -> np.ndarray:
    """Smooth structure plus noise, so that statistics differ between images, channels and positions."""
    random = np.random.default_rng(seed)
    coarse = random.normal(size=(count, size[0] // 4, size[1] // 4, 3)).repeat(4, axis=1).repeat(4, axis=2)
    gain = random.uniform(0.3, 2.3, size=(count, 1, 1, 1))
    shift = 0.5 * random.normal(size=(count, 1, 1, 3))
    return (gain * coarse + shift + 0.3 * random.normal(size=coarse.shape)).astype(np.float32)


@functools.cache
def make_weights(classes: int = CLASSES) -> Weights:
    """Seeded weights in float32; the running statistics are near those of other images, none is trivial."""
    random = np.random.default_rng(classes)
    made: dict[str, np.ndarray] = {}
    for name, shape in CONVOLUTIONS.items():
        made[f"{name}/kernel"] = random.normal(size=shape) * (2 / np.prod(shape[:3])) ** 0.5
    for name, width in WIDTHS.items():
        made[f"{name}/gamma"] = random.uniform(0.7, 1.3, width)
        made[f"{name}/beta"] = random.uniform(-0.2, 0.2, width)
        made[f"{name}/mean"], made[f"{name}/variance"] = np.zeros(width), np.ones(width)
    made["head/kernel"] = 3 * random.normal(size=(WIDTHS["bn3"], classes))
    made["head/bias"] = 0.2 * random.normal(size=classes)

    def measure(name: str, x: np.ndarray) -> np.ndarray:
        made[f"{name}/mean"] = x.mean((0, 1, 2)) + 0.1 * random.normal(size=x.shape[-1])
        made[f"{name}/variance"] = x.var((0, 1, 2)) * random.uniform(0.8, 1.25, x.shape[-1])
        return normalize(name, x, made[f"{name}/mean"], made[f"{name}/variance"], made)

    _features(images(32, seed=99).astype(np.float64), made, measure)
    return {name: value.astype(np.float32) for name, value in made.items()}


def normalize(name: str, x: np.ndarray, mean: np.ndarray, variance: np.ndarray, weights: Weights) -> np.ndarray:
    """γ · (x − m) / sqrt(v + ε) + β"""
    return weights[f"{name}/gamma"] * (x - mean) / np.sqrt(variance + EPSILONS[name]) + weights[f"{name}/beta"]


def _convolve(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
    height, width = kernel.shape[:2]
    padded = np.pad(x, ((0, 0), (height // 2, height // 2), (width // 2, width // 2), (0, 0)))
    total = 0.0
    for i in range(height):
        for j in range(width):
            total = total + padded[:, i : i + x.shape[1], j : j + x.shape[2]] @ kernel[i, j]
    return total


def _features(x: np.ndarray, weights: Weights, norm: object) -> np.ndarray:
    x = np.maximum(norm("bn1", _convolve(x, weights["conv1/kernel"])), 0)
    x = np.maximum(norm("bn2", _convolve(x, weights["conv2/kernel"])) + x, 0)
    return np.maximum(norm("bn3", _convolve(x, weights["conv3/kernel"])), 0)


def moments(batch: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the mean and variance of every image before each layer of the source model, (N, C), in float64."""
    weights = {name: value.astype(np.float64) for name, value in make_weights().items()}
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def measure(name: str, x: np.ndarray) -> np.ndarray:
        found[name] = x.mean((1, 2)), x.var((1, 2))
        return normalize(name, x, weights[f"{name}/mean"], weights[f"{name}/variance"], weights)

    _features(batch.astype(np.float64), weights, measure)
    return found


def run_rows(
    inputs: Sequence[np.ndarray],
    rows: Sequence[reference.Row],
    *,
    adapted: Collection[str] = tuple(EPSILONS),
    classes: int = CLASSES,
    dense: bool = False,
    part: str = "scores",
    calls: list[list[reference.LayerCall]] | None = None,
) -> np.ndarray:
    """Return the scores of every row, in float64; a row runs `inputs[row.view]`, one image (h, w, 3).

    `part` may be "features" instead. `calls` takes what each row measured in each layer.
    """
    weights = {name: value.astype(np.float64) for name, value in make_weights(classes).items()}

    measured: list[list[reference.LayerCall]] = [[] for _ in rows] if calls is None else calls
    measured.extend([] for _ in range(len(rows) - len(measured)))

    def norm(name: str, x: np.ndarray) -> np.ndarray:
        means, variances, source = x.mean((1, 2)), x.var((1, 2)), (weights[f"{name}/mean"], weights[f"{name}/variance"])
        out = np.empty_like(x)
        for r, row in enumerate(rows):
            mean, variance = source
            if name in adapted:
                area = reference.first_area(measured, x.shape[1] * x.shape[2])
                mean, variance, call = reference.blend(row, means, variances, source, EPSILONS[name], area, name)
                measured[r] += [] if call is None else [call]
            out[r] = normalize(name, x[r], mean, variance, weights)
        return out

    x = np.stack([inputs[row.view] for row in rows]).astype(np.float64)
    features = _features(x, weights, norm)
    if part == "features":
        return features
    pooled = features if dense else features.mean((1, 2))
    return pooled @ weights["head/kernel"] + weights["head/bias"]


def activate(z: np.ndarray, activation: str | None) -> np.ndarray:
    """What a model with this activation returns for logits z."""
    if activation is None:
        return z
    return reference.softmax(z) if activation == "softmax" else np.asarray(1 / (1 + np.exp(-z)))


class Mix:
    """The candidates of one image in a mix: it under λ = 1, and these views of it (0: the image) under each rule."""

    def __init__(
        self,
        inputs: Sequence[np.ndarray],
        views: Sequence[int] = (0,),
        rules: Sequence[reference.Prior] = (reference.BOLD,),
        activation: str | None = None,
        **options: Any,
    ) -> None:
        rows, _ = reference.mix_rows(rules, views)
        calls: list[list[reference.LayerCall]] = []
        self.scores = activate(run_rows(inputs, rows, calls=calls, **options), activation)
        self.features = run_rows(inputs, rows, **{**options, "part": "features"})
        self.shifts = [reference.image_shift(each) for each in calls]

    def weights(self, kind: str, adapted_weight: float = 2.0) -> list[float]:
        """The weights of the candidates."""
        return reference.mix_weights(self.scores, self.shifts, kind, adapted_weight)

    def answer(self, kind: str, adapted_weight: float = 2.0) -> np.ndarray:
        """What a model whose scores are of this kind answers."""
        return reference.mix(self.scores, self.weights(kind, adapted_weight), kind)
