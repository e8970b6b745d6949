"""The backend that adapts models of tinynet. `backend`, at the end, is what the entry point names."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from tinynet import BatchNorm, Sequential

from sita_adapters import engine
from sita_adapters.backend import Settings
from sita_adapters.engine import Adaptation
from sita_adapters.errors import AlreadyAdaptedError, InputError, NoBatchNormError
from sita_adapters.ops import NUMPY
from sita_adapters.recipe import Recipe
from sita_adapters.selection import LayerInfo, select
from sita_adapters.statistics import output_affine, sampled_lines, target
from sita_adapters.trial import Findings, Witness, hold_trial, made_up, shake
from sita_adapters.view_steps import Canvas
from sita_adapters.views import spatial_kind
from sita_adapters.voting import Scores, read_scores


# A layer: measure, blend, normalise.
@dataclass
class Features:
    """A layer's input (N, h, w, C), with the mean and biased variance of each entry, (N, C)."""

    x: np.ndarray
    means: np.ndarray
    variances: np.ndarray

    @property
    def area(self) -> int:
        """How many places an entry has."""
        return self.x.shape[1] * self.x.shape[2]

    def target(self, weights: np.ndarray, origins: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the statistics that the rows of each image estimate together, (B, R, C)."""
        shape = (-1, weights.shape[1], self.x.shape[-1])
        means, variances = self.means.reshape(shape), self.variances.reshape(shape)
        return target(means, variances, weights=weights, origins=origins, xp=np)


def measure(x: np.ndarray, places: int | None, entries: slice) -> Features:
    """Return features with the moments of these entries, from all places or from a sample."""
    sample = x[entries, sampled_lines(x.shape[1:3], places)]
    return Features(x, sample.mean(axis=(1, 2)), sample.var(axis=(1, 2)))


class AdaptedBatchNorm(BatchNorm):
    """A BatchNorm that blends the statistics of the source's layer, which it reads at every call."""

    def __init__(self, source: BatchNorm, name: str) -> None:
        self.source, self.name = source, name

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Normalise each row with its blended statistics."""
        call = engine.enter_layer(self.name, x, engine.running_call())
        layer = self.source
        if not call.plan.blends:
            return layer(x)
        _, mean, variance = engine.blend(
            lambda entries: measure(x, call.places, entries),
            (layer.mean, layer.variance),
            layer.epsilon,
            len(x),
            call=call,
            name=self.name,
        )
        affine = {"gamma": layer.gamma, "beta": layer.beta, "epsilon": layer.epsilon}
        scale, shift = output_affine(mean, variance, **affine, xp=np)
        return x * scale[:, None, None] + shift[:, None, None]


# A model: the engine's call around the source's own layers.
class AdaptedSequential(Sequential):
    """A Sequential whose calls run through the engine."""

    def __init__(self, source: Sequential, adaptation: Adaptation) -> None:
        chosen = {layer.name for layer in adaptation.layers if layer.adapted}
        layers = list(source.layers)
        for name in chosen:
            layers[int(name)] = AdaptedBatchNorm(layers[int(name)], name)
        super().__init__(*layers)
        self.source, self.adaptation = source, adaptation

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Return the scores of images, each adapted to by itself."""
        if images.ndim != 4 or not len(images):
            raise InputError(f"Expected images (N, h, w, c), at least one; received shape {images.shape}.")
        findings = self.adaptation.findings
        signature = (images.shape[1:], images.dtype)
        if signature not in findings:
            findings[signature] = self.try_out(images)
        kind = spatial_kind(images.shape[1:3])
        canvas = Canvas(NUMPY, kind, channel=-1, axes=(-3, -2), inputs=self.adaptation.inputs)
        return engine.predict([images], self.forward, self.adaptation, canvas, findings[signature])

    def forward(self, batch: list[np.ndarray]) -> np.ndarray:
        """Run the layers, without the engine."""
        return super().__call__(batch[0])

    def try_out(self, images: np.ndarray) -> Findings:
        """Hold the trial, which finds out that images do not mix."""
        made, witness = made_up(images), Witness(NUMPY)

        def run(which: Sequence[int], *, fresh: bool, seed: int, shaken: bool = False) -> np.ndarray:
            rows = made[list(which)]
            rows = shake(rows, np.finfo(rows.dtype).eps) if shaken else rows
            call = engine.Call(self.adaptation, engine.PLAIN, len(which), NUMPY, watch=witness.watch)
            return engine.run_rows([rows], self.forward, call)

        return hold_trial(run, witness, "Sequential", images)


# The protocol.
class TinynetBackend:
    """What `sita_adapters.backend.Backend` asks for, but for exporting: no file format is offered."""

    ops = NUMPY
    label = "tinynet"
    export_formats = ()

    def adapt(self, model: Any, recipe: Recipe, settings: Settings) -> AdaptedSequential:
        """Return an adapted model that shares the weights of this one."""
        if isinstance(model, AdaptedSequential):
            raise AlreadyAdaptedError("Expected a plain model; this is adapted. Remedy: sita.unwrap.")
        named = {str(place): layer for place, layer in enumerate(model.layers)}
        norms = {name: layer for name, layer in named.items() if isinstance(layer, BatchNorm)}
        if not norms:
            raise NoBatchNormError(f"Expected a BatchNorm among {len(named)} layers; found none.")
        chosen = select(norms, settings.layers)
        adaptation = Adaptation(
            recipe=recipe,
            inputs=settings.inputs,
            scores=read_scores(settings.scores, "logits"),
            output=settings.output,
            max_rows=settings.max_rows,
            layers=tuple(
                LayerInfo(name, "BatchNorm", len(layer.mean), name in chosen) for name, layer in norms.items()
            ),
            kinds=("square", "rectangle"),
        )
        return AdaptedSequential(model, adaptation)

    def unwrap(self, adapted: AdaptedSequential) -> Sequential:
        """Return a plain model with the same layers."""
        return copy.copy(adapted.source)

    def adaptation_of(self, model: Sequential) -> Adaptation | None:
        """Return what makes a model an adapted one."""
        return getattr(model, "adaptation", None)

    def source_name(self, adapted: AdaptedSequential) -> str:
        """Return the name of the source's class."""
        return type(adapted.source).__name__

    def scores_of(self, model: Sequential) -> Scores:
        """Return what the framework's models put out."""
        return "logits"

    @contextmanager
    def observing(self, adapted: AdaptedSequential) -> Iterator[Adaptation]:
        """Give the key under which votes are recorded."""
        yield adapted.adaptation

    def arrange(self, name: str, model: Sequential, images: np.ndarray) -> np.ndarray:
        """Return images as the model takes them: with their channels last, as they come."""
        return images

    def run(self, model: Sequential, batch: np.ndarray) -> np.ndarray:
        """Return the model's output."""
        return model(batch)


backend = TinynetBackend()
