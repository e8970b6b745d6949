"""TENT, MEMO and MixNorm for Keras models, on TensorFlow, JAX and torch.

The settings, views and formulas are those of the classes for PyTorch.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import ops

from sita_adapters.backend import backend_of
from sita_adapters.errors import ModelError, OutputError
from sita_adapters.inputs import Inputs
from sita_keras.inspection import find_channel_axis
from sita_keras.ops import KERAS

from .keras_copy import OWN, ModelCopy, Statistics, Values, compiled, gradient_of, outside_inference_mode
from .settings import (
    MemoSettings,
    MixNormSettings,
    TentSettings,
    memo_settings,
    mixnorm_settings,
    tent_settings,
)
from .views import augmix_views, decode, encode, spatial_views

if TYPE_CHECKING:
    from ..models.loaded import LoadedModel

_ROUNDING = 5e-3
"""The rounding error of a sum of probabilities in half precision."""

_TINY = float(np.finfo(np.float32).tiny)


class KerasBaseline:
    """The common part: a copy of the model, and the loop over images. Like a model, it has `predict_on_batch`."""

    def __init__(self, model: keras.Model, inputs: Inputs | None = None) -> None:
        backend = backend_of(model)
        if not backend.label.startswith("keras") or backend.adaptation_of(model) is not None:
            raise ModelError(
                f"{self.label} expects a plain Keras model; received an adapted model or one of another framework, "
                f"{type(model).__name__}. Try: leave it out, or pass the source model."
            )
        self.encoding = inputs
        self.inputs = getattr(model, "inputs", None)  # by whose shapes images are arranged; none of a subclassed model
        self.first = find_channel_axis(model) == 1  # whether images have their channels first
        with outside_inference_mode():
            self.copy = ModelCopy(model)
        self.differentiate = functools.cache(lambda kind: gradient_of(functools.partial(self.objective, kind)))
        self.forward = functools.cache(lambda kind: compiled(functools.partial(self._scores, kind)))

    @property
    def label(self) -> str:
        """The method's name in `sita bench`."""
        return type(self).__name__.lower()

    def predict_on_batch(self, images: Any) -> np.ndarray:
        """Return the scores of each image, from the model adapted to this image alone."""
        array = ops.convert_to_numpy(images)
        with outside_inference_mode():
            return np.concatenate([ops.convert_to_numpy(self.answer(array[i : i + 1])) for i in range(len(array))])

    __call__ = predict_on_batch

    def answer(self, image: np.ndarray) -> Any:
        """Return the scores (1, …) of one image (1, …)."""
        raise NotImplementedError

    def loss(self, log_p: Any) -> Any:
        """Return what the method minimizes, from log-probabilities."""
        raise NotImplementedError

    def gradients(self, values: Values, images: np.ndarray, statistics: Statistics) -> Values:
        """Return the gradients of the loss with respect to the trained variables, which have these values."""
        return self.differentiate(statistics)(values, self.copy.fixed, ops.convert_to_tensor(images))[0]

    def scores(self, values: Values, images: np.ndarray, statistics: Statistics, fixed: Values | None = None) -> Any:
        """Return the scores of images, with these values of the trained and the other variables."""
        given = self.copy.fixed if fixed is None else fixed
        return self.forward(statistics)(values, given, ops.convert_to_tensor(images))

    def objective(self, statistics: Statistics, values: Values, fixed: Values, batch: Any) -> tuple[Any, Any]:
        """Return the loss, and what else a step needs."""
        scores = self._scores(statistics, values, fixed, batch)
        return self.loss(log_probabilities(scores, self._class_axis(scores))), ()

    def _scores(self, statistics: Statistics, values: Values, fixed: Values, images: Any) -> Any:
        output, _ = self.copy.run(values, fixed, images, statistics)
        if isinstance(output, Mapping) and ("out" in output or "logits" in output):
            output = output["out"] if "out" in output else output["logits"]
        if not KERAS.is_array(output):
            raise OutputError(
                f"{self.label} expects one array of scores, or a dict with 'out' or 'logits'; the model returned a "
                f"{type(output).__name__}. Try: a model of the scores alone."
            )
        if len(output.shape) < 2 or output.shape[self._class_axis(output)] < 2:
            raise OutputError(
                f"{self.label} expects scores of at least 2 classes; the model returned {tuple(output.shape)}. Try: a "
                "head with one score per class."
            )
        return output

    def _class_axis(self, scores: Any) -> int:
        return 1 if self.first or len(scores.shape) == 2 else -1

    def pixels(self, image: np.ndarray) -> np.ndarray:
        """Return RGB bytes (h, w, 3) of an encoded image (1, …)."""
        assert self.encoding is not None
        return decode(np.moveaxis(image[0], 0 if self.first else -1, -1).astype(np.float64), self.encoding)

    def encoded(self, views: np.ndarray) -> np.ndarray:
        """Return views (N, h, w, 3) as the model takes them."""
        assert self.encoding is not None
        return np.moveaxis(encode(views, self.encoding), -1, 1 if self.first else -1)

    def size(self, image: np.ndarray) -> tuple[int, int]:
        """Return height and width of an image (1, …)."""
        return image.shape[2:4] if self.first else image.shape[1:3]


class Tent(KerasBaseline):
    """TENT (Wang et al. 2021) for single images; see `torch_training.Tent`."""

    def __init__(self, model: keras.Model, *, settings: TentSettings | None = None) -> None:
        super().__init__(model)
        self.settings = settings
        self.copy.train_on(self.copy.parameters(self.copy.norms))
        if not self.copy.trained:
            raise ModelError(f"tent expects BatchNorm layers with γ or β; {type(model).__name__} has none. Try: memo.")

    @classmethod
    def of(cls, loaded: LoadedModel) -> Tent:
        """Return TENT for a model of `sita bench`."""
        return cls(loaded.model)

    def loss(self, log_p: Any) -> Any:
        """Return the mean entropy over images and pixels."""
        return ops.mean(-ops.sum(ops.exp(log_p) * log_p, axis=self._class_axis(log_p)))

    def answer(self, image: np.ndarray) -> Any:
        """Make the updates of γ and β, and run the image once more."""
        settings = self.settings or tent_settings(self.size(image))
        optimizer, values = AdamW(settings.lr, settings.betas), self.copy.start
        for _ in range(settings.steps):
            values = optimizer.update(values, self.gradients(values, image, OWN))
        return self.scores(values, image, OWN)


class Memo(KerasBaseline):
    """MEMO (Zhang et al. 2021) for classification; see `torch_training.Memo`."""

    def __init__(
        self,
        model: keras.Model,
        inputs: Inputs,
        *,
        settings: MemoSettings | None = None,
        architecture: str = "",
        seed: int = 0,
    ) -> None:
        super().__init__(model, inputs)
        self.settings, self.architecture, self.seed = settings, architecture, seed
        self.copy.train_on(self.copy.parameters())

    @classmethod
    def of(cls, loaded: LoadedModel) -> Memo:
        """Return MEMO for a model of `sita bench`."""
        return cls(loaded.model, loaded.require_inputs(), architecture=loaded.spec)

    def loss(self, log_p: Any) -> Any:
        """Return the entropy of the mean prediction."""
        if len(log_p.shape) != 2:
            raise OutputError(
                f"memo expects one prediction per image, (N, classes); the model returned {tuple(log_p.shape)}. Its "
                "views move pixels, and cannot be averaged pixel by pixel. Try: leave memo out for segmentation."
            )
        mean = ops.logsumexp(log_p, axis=0) - math.log(log_p.shape[0])
        return -ops.sum(ops.exp(mean) * mean)

    def answer(self, image: np.ndarray) -> Any:
        """Make one step on all weights, and run the image."""
        settings = self.settings or memo_settings(self.size(image), self.architecture)
        share = 0.0 if settings.prior is None else 1 / (settings.prior + 1)
        statistics = Statistics(share, unbiased=True, constant=True)
        pixels, values = self.pixels(image), self.copy.start
        kind = SGD if settings.optimizer == "sgd" else AdamW
        optimizer = kind(settings.lr, weight_decay=settings.weight_decay)
        for step in range(settings.steps):
            views = self.encoded(augmix_views(pixels, settings.views, self.seed + step))
            values = optimizer.update(values, self.gradients(values, views, statistics))
        return self.scores(values, image, statistics)


class MixNorm(KerasBaseline):
    """MixNorm (Hu et al. 2021) for single images; see `torch_mixnorm.MixNorm`. Nothing is trained."""

    def __init__(
        self, model: keras.Model, inputs: Inputs, *, settings: MixNormSettings | None = None, seed: int = 0
    ) -> None:
        super().__init__(model, inputs)
        self.settings, self.seed = settings, seed
        if not self.copy.norms:
            raise ModelError(f"mixnorm expects BatchNorm layers; {type(model).__name__} has none. Try: memo.")

    @classmethod
    def of(cls, loaded: LoadedModel) -> MixNorm:
        """Return MixNorm for a model of `sita bench`."""
        return cls(loaded.model, loaded.require_inputs())

    def answer(self, image: np.ndarray) -> Any:
        """Run the image beside its views."""
        settings = self.settings or mixnorm_settings(self.size(image))
        views = spatial_views(self.pixels(image), settings.views, self.seed, settings.scale, settings.ratio)
        share = settings.m + (1 - settings.m) * settings.tau
        batch = np.concatenate([image, self.encoded(views).astype(image.dtype)])
        return self.scores(self.copy.start, batch, Statistics(share))[:1]


def log_probabilities(scores: Any, axis: int) -> Any:
    """Return the logarithm of scores that are non-negative and sum to 1, as after a softmax; else of their softmax.

    The values decide, so it does not matter where in a model its softmax is.
    """
    z = KERAS.precise(scores)
    sums_to_1 = ops.all(ops.abs(ops.sum(z, axis=axis) - 1) <= _ROUNDING)
    log = ops.log(ops.maximum(z, _TINY))
    return ops.where(ops.logical_and(ops.all(z >= 0), sums_to_1), log, ops.log_softmax(z, axis=axis))


class SGD:
    """Stochastic gradient descent without momentum, w ← w − lr · (g + decay · w), as in PyTorch."""

    def __init__(self, lr: float, *, weight_decay: float = 0.0) -> None:
        self.lr, self.weight_decay = lr, weight_decay

    def update(self, values: Values, gradients: Values) -> Values:
        """Return the values after one step."""
        pairs = zip(values, gradients, strict=True)
        return [w - self.lr * (g + self.weight_decay * w if self.weight_decay else g) for w, g in pairs]


class AdamW:
    """Adam with decoupled weight decay, as in PyTorch, whose ε (1e-8) is added after the correction; Keras' before.

    m ← β₁m + (1 − β₁)g, v ← β₂v + (1 − β₂)g²
    w ← (1 − lr · decay) · w − lr · m / (1 − β₁ᵗ) / (sqrt(v / (1 − β₂ᵗ)) + ε)
    """

    def __init__(self, lr: float, betas: tuple[float, float] = (0.9, 0.999), *, weight_decay: float = 0.0) -> None:
        self.lr, self.betas, self.keep = lr, betas, 1 - lr * weight_decay
        self.steps = 0
        self.moments: list[tuple[Any, Any]] = []

    def update(self, values: Values, gradients: Values) -> Values:
        """Return the values after one step."""
        (a, b), self.steps = self.betas, self.steps + 1
        old = self.moments or [(0.0, 0.0)] * len(values)
        pairs = zip(old, gradients, strict=True)
        self.moments = [(a * m + (1 - a) * g, b * v + (1 - b) * ops.square(g)) for (m, v), g in pairs]
        rate, root = self.lr / (1 - a**self.steps), math.sqrt(1 - b**self.steps)
        moved = zip(values, self.moments, strict=True)
        return [self.keep * w - rate * m / (ops.sqrt(v) / root + 1e-8) for w, (m, v) in moved]
