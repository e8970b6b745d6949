"""One detector: what `auto` answers for it, against the source model run twice, in float64 where that is possible."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import sita_adapters as sita

from ..zoo.torch_layers import changed, moments, statistics_of
from ..zoo.torch_weights import images_of, prepare
from .members import Detector

ADAPTED_WEIGHT, SELECTION_SHIFT = 2.0, 0.14
"""ρ and d_1 (docs/how_it_works.md)."""

Arrays = dict[str, np.ndarray]


@dataclass
class Result:
    """What a detector returns, what happens to it, and how far the answer is from the reference."""

    returns: str
    scored: bool  # whether it has class scores
    mixed: bool
    adapted: int  # of how many images the adapted row supplied all outputs
    images: int
    difference: float  # the largest, relative to the largest value of each array
    precision: str
    whole: str  # whether the class ids that the source returns as floats are whole numbers in the answer


def weight_of(layers: list[tuple[float, float]]) -> Callable[[float, float], float]:
    """Return the adapted row's weight as a function of both confidences, for (A, d) of each layer call.

    With class scores, u_a / (u_s + u_a), which does not depend on the shift; without (confidences of 0), 0 or 1.
    """
    areas = [(a - 1) / (a - 1 + layers[0][0] / 64) if a > 1 else 0.0 for a, _ in layers]
    shift = sum(a * d for a, (_, d) in zip(areas, layers, strict=True)) / (sum(areas) or 1.0)
    return lambda c_s, c_a: (
        ADAPTED_WEIGHT * c_a / (c_s + ADAPTED_WEIGHT * c_a) if c_s else float(shift > SELECTION_SHIFT)
    )


Moments = tuple[np.ndarray, np.ndarray]
"""Mean and variance, (C,)."""


def rule(
    image: Moments, source: Moments, epsilon: float, area: float, first: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the blended mean and variance of a layer with A positions, and d: 1 − λ = d / (d + ½) · a."""
    (mean, variance), (m_s, v_s) = image, source
    ratio = (variance + epsilon) / (v_s + epsilon)
    d = float((0.5 * (ratio + (mean - m_s) ** 2 / (v_s + epsilon) - np.log(ratio) - 1)).mean())
    a = (area - 1) / (area - 1 + first / 64) if area > 1 else 0.0
    w = d / (d + 0.5) * a
    return (1 - w) * m_s + w * mean, (1 - w) * v_s + w * variance, d


def confidence(scores: np.ndarray, kind: str) -> float:
    """Return e^−H of one image's scores, classes first."""
    p = scores if kind == "probabilities" else np.exp(scores - scores.max(0))
    p = p / p.sum(0)
    return math.exp((p * np.log(np.maximum(p, 1e-300))).sum(0).mean())


def check(detector: Detector) -> Result:
    """Build a detector, and compare what `auto` answers with the reference."""
    is_keras = detector.library == "keras_hub"
    runs = (KerasRuns if is_keras else TorchRuns)(detector)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found, description = runs.adapted()
    kind = description.scores
    found_mixed = kind is not None and "one row supplies" not in description.table
    worst, chosen, whole = 0.0, 0, "none"
    for image in range(len(runs.images)):
        source, adapted, weigh = runs.rows(image)
        c = (0.0, 0.0)
        if kind is not None:
            name = next(iter(source)) if len(source) == 1 or kind == "probabilities" else "logits"
            c = confidence(source[name][0], kind), confidence(adapted[name][0], kind)
        weight = weigh(*c)
        chosen += weight > 0.5
        for name, one in source.items():
            expected = np.where(weight > 0.5, adapted[name], one)
            if found_mixed:
                expected = mix(one, adapted[name], weight, is_probable(one))
            size = np.abs(expected).max() or 1.0
            worst = max(worst, float(np.abs(found[name][image : image + 1] - expected).max() / size))
            for column in whole_columns(one):
                ids = found[name][image][..., column]
                whole = "yes" if whole != "no" and np.array_equal(ids, np.rint(ids)) else "no"
    shapes = [f"{name} {'×'.join(map(str, array.shape[1:]))}" for name, array in found.items()]
    returns = ", ".join(shapes[:3]) + (f", … ({len(shapes)} arrays)" if len(shapes) > 3 else "")
    return Result(returns, kind is not None, found_mixed, chosen, len(runs.images), worst, runs.precision, whole)


def is_probable(array: np.ndarray) -> bool:
    """Whether these are probabilities with classes on axis 1."""
    return bool(array.min() >= 0 and np.abs(array.sum(1) - 1).max() < 1e-3)


def mix(one: np.ndarray, other: np.ndarray, weight: float, probable: bool) -> np.ndarray:
    """Return the weighted mean of logits, or of the logarithms of probabilities, normalized again."""
    if not probable:
        return (1 - weight) * one + weight * other
    z = (1 - weight) * np.log(one) + weight * np.log(other)
    e = np.exp(z - z.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def whole_columns(array: np.ndarray) -> list[int]:
    """Return the columns of sorted detections (1, N, columns) that hold class ids."""
    if array.ndim != 3 or not 6 <= array.shape[-1] <= 60:
        return []
    return [
        c
        for c in range(array.shape[-1])
        if np.ptp(array[..., c]) and np.array_equal(array[..., c], np.rint(array[..., c]))
    ]


class TorchRuns:
    """A PyTorch detector in float64, if it runs in it, and its images: near the training images, and far."""

    def __init__(self, detector: Detector) -> None:
        torch.manual_seed(0)
        source, self.settings = detector.build().eval(), detector.settings
        shape = (3, detector.size, detector.size)
        warm = images_of(4, shape, seed=1)
        self.found = prepare(source, warm)
        images = torch.cat([warm[:2], 0.3 * warm[:1] + 1.5, images_of(1, shape, seed=2) ** 3])
        try:
            with torch.no_grad():
                copy.deepcopy(source).double()(images[:1].double())
            self.source, self.images, self.precision = source.double(), images.double(), "float64"
        except RuntimeError:
            self.source, self.images, self.precision = source, images, "float32"

    def adapted(self) -> tuple[Arrays, Any]:
        """Return the answers of `auto`, and its description."""
        adapted = sita.adapt(self.source, **self.settings)
        with torch.no_grad():
            found = arrays_of(adapted(self.images))
        return {name: array for name, array in found.items() if self.has_images(array)}, sita.describe(adapted)

    def has_images(self, array: np.ndarray) -> bool:
        """Whether an array has an entry for each image."""
        return array.ndim > 0 and array.shape[0] == len(self.images)

    def rows(self, image: int) -> tuple[Arrays, Arrays, Callable[[float, float], float]]:
        """Return what the source returns for an image, alone; the same with adapted statistics; and the weight."""
        x, layers = self.images[image : image + 1], list[tuple[float, float]]()
        holders = [module for module in self.source.modules() if statistics_of(module) is not None]
        epsilons = {id(statistics_of(module)[0]): getattr(module, "eps", 1e-5) for module in holders}  # type: ignore[index]

        def blend(features: torch.Tensor, statistics: Any) -> Any:
            image = tuple(each.numpy() for each in moments(features.double(), statistics[0].numel()))
            source = tuple(each.double().numpy().reshape(-1) for each in statistics)
            area = features.numel() / len(source[0])
            first = layers[0][0] if layers else area
            m, v, d = rule(image, source, epsilons.get(id(statistics[0]), 1e-5), area, first)
            layers.append((area, d))
            return tuple(torch.from_numpy(each).to(statistics[0].dtype) for each in (m, v))

        with torch.no_grad():
            plain = arrays_of(self.source(x))
            with changed(self.source, self.found.by_itself, blend):
                adapted = arrays_of(self.source(x))
        kept = {name for name, array in plain.items() if array.ndim and array.shape[0] == 1}
        some = {name for name, array in self.answers_shape().items()}
        return (
            {name: plain[name] for name in plain if name in kept & some},
            {name: adapted[name] for name in adapted if name in kept & some},
            weight_of(layers),
        )

    def answers_shape(self) -> Arrays:
        """Return what the source returns for all images: constants have no entry for each."""
        if not hasattr(self, "_all"):
            with torch.no_grad():
                found = arrays_of(self.source(self.images))
            self._all = {name: array for name, array in found.items() if self.has_images(array)}
        return self._all


def arrays_of(output: Any, path: str = "") -> Arrays:
    """Return the tensors of an output by their paths."""
    if isinstance(output, torch.Tensor):
        return {path or "output": output.detach().double().numpy()}
    pairs = (
        output.items() if isinstance(output, dict) else enumerate(output) if isinstance(output, list | tuple) else ()
    )
    return {name: array for key, part in pairs for name, array in arrays_of(part, f"{path}.{key}".lstrip(".")).items()}


class KerasRuns:
    """The same of a Keras model in float64. Parts of KerasHub's layers compute in float32."""

    precision = "float32"

    def __init__(self, detector: Detector) -> None:
        import keras

        from ..zoo import keras_checks

        self.checks, self.settings = keras_checks, detector.settings
        keras.utils.set_random_seed(0)
        self.source = keras_checks.in_precision("float64", detector.build)
        shape = (detector.size, detector.size, 3)
        warm = keras_checks.images_of(4, shape, seed=1)
        keras_checks.prepare(self.source, warm)
        self.images = np.concatenate([warm[:2], 0.3 * warm[:1] + 1.5, keras_checks.images_of(1, shape, seed=2) ** 3])

    def run(self, model: Any, images: np.ndarray) -> Arrays:
        """Return the arrays of a model's output, uncompiled."""
        import keras

        output = model(keras.ops.convert_to_tensor(images, "float64"), training=False)
        return arrays_of(
            keras.tree.map_structure(lambda array: torch.from_numpy(keras.ops.convert_to_numpy(array)), output)
        )

    def adapted(self) -> tuple[Arrays, Any]:
        """Return the answers of `auto`, and its description."""
        adapted = sita.adapt(self.source, **self.settings)
        return self.run(adapted, self.images), sita.describe(adapted)

    def rows(self, image: int) -> tuple[Arrays, Arrays, Callable[[float, float], float]]:
        """Return what the source returns for an image, alone; the same with adapted statistics; and the weight."""
        from keras import ops

        x, layers = self.images[image : image + 1], list[tuple[float, float]]()

        def blend(layer: Any, features: Any) -> Any:
            flat = ops.convert_to_numpy(features).reshape(-1, features.shape[-1])
            source = ops.convert_to_numpy(layer.moving_mean), ops.convert_to_numpy(layer.moving_variance)
            area = float(len(flat))
            first = layers[0][0] if layers else area
            m, v, d = rule((flat.mean(0), flat.var(0)), source, layer.epsilon, area, first)
            layers.append((area, d))
            blended = (ops.convert_to_tensor(each, dtype=features.dtype) for each in (m, v))
            return self.checks.normalize(layer, features, *blended)

        plain = self.run(self.source, x)
        with self.checks.changed(blend):
            adapted = self.run(self.source, x)
        return plain, adapted, weight_of(layers)
