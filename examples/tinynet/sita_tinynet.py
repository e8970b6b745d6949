"""The backend that adapts models of tinynet. `backend`, at the end, is what the entry point names."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tinynet import BatchNorm, Sequential

from sita_adapters import engine
from sita_adapters.blending import blend, enter_layer
from sita_adapters.engine import Adaptation, Call, ForwardContext, Settings
from sita_adapters.errors import InputError, ModelError
from sita_adapters.ops import NUMPY
from sita_adapters.outputs import OutputLayout
from sita_adapters.probe import InputRecorder, perturb, probe_model, random_like
from sita_adapters.recipe import Recipe
from sita_adapters.selection import LayerInfo, Layers, select
from sita_adapters.statistics import output_affine
from sita_adapters.views import ImageLayout, spatial_kind


# A layer: measure, blend, normalize.
class AdaptedBatchNorm(BatchNorm):
    """A BatchNorm that blends the statistics of the source's layer, which it reads at every call."""

    def __init__(self, source: BatchNorm, name: str) -> None:
        self.source, self.name = source, name

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Normalize each row of x (N, h, w, C) with its blended statistics."""
        context, layer = enter_layer(self.name, x), self.source
        if not context.plan.blends:
            return layer(x)

        def measure(n: int, first: int) -> tuple[np.ndarray, np.ndarray]:
            rows = x.reshape(-1, n, *x.shape[1:])[:, first:]
            return rows.mean(axis=(2, 3)), rows.var(axis=(2, 3))

        source, positions = (layer.mean, layer.variance), x.shape[1] * x.shape[2]
        mean, variance = blend(measure, source, layer.epsilon, len(x), positions, context, self.name)
        affine = {"gamma": layer.gamma, "beta": layer.beta, "epsilon": layer.epsilon}
        scale, shift = output_affine(mean, variance, **affine, xp=np)
        return x * scale.reshape(len(x), 1, 1, -1) + shift.reshape(len(x), 1, 1, -1)


# A model: the engine's call around the source's own layers.
class AdaptedSequential(Sequential):
    """A Sequential whose calls run through the engine."""

    def __init__(self, source: Sequential, adaptation: Adaptation) -> None:
        layers = list(source.layers)
        for info in adaptation.layers:
            if info.adapted:
                layers[int(info.name)] = AdaptedBatchNorm(layers[int(info.name)], info.name)
        super().__init__(*layers)
        self.source, self.adaptation = source, adaptation

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """Return the scores of images, each adapted to independently."""
        if images.ndim != 4 or not len(images):
            raise InputError(f"Expected images (N, h, w, c), at least one; received shape {images.shape}.")
        layouts, signature = self.adaptation.layouts, images.dtype
        if signature not in layouts:
            layouts[signature] = self.probe(images)
        kind = spatial_kind(images.shape[1:3])
        image_layout = ImageLayout(NUMPY, kind, channel=-1, axes=(-3, -2), inputs=self.adaptation.settings.inputs)
        return engine.predict(Call(self.adaptation, self.forward, image_layout, layouts[signature]), [images])

    def forward(self, batch: list[np.ndarray]) -> np.ndarray:
        """Run the layers, without the engine."""
        return super().__call__(batch[0])

    def probe(self, images: np.ndarray) -> OutputLayout:
        """Establish what the output is, and that images do not influence each other."""
        random, recorder = random_like(images), InputRecorder(NUMPY)

        def run(which: Sequence[int], *, perturbed: bool = False, fresh: bool = False) -> np.ndarray:
            rows = random[list(which)]
            rows = perturb(rows, np.finfo(rows.dtype).eps) if perturbed else rows
            context = ForwardContext(self.adaptation, engine.PLAIN, len(rows), NUMPY, record=recorder.record)
            return engine.run_rows([rows], self.forward, context)

        return probe_model(run, recorder, self.adaptation, "Sequential", images)


# The protocol.
class TinynetBackend:
    """What `sita_adapters.backend.Backend` asks for. No file format is offered."""

    ops = NUMPY
    label = "tinynet"
    export_formats = ()

    def adapt(self, model: Any, recipe: Recipe, settings: Settings, layers: Layers, example: Any) -> AdaptedSequential:
        """Return an adapted model that shares the weights of this one."""
        if isinstance(model, AdaptedSequential):
            raise ModelError("Expected a plain model; received an adapted one. Try: sita.unwrap(adapted).")
        named = {str(place): layer for place, layer in enumerate(model.layers)}
        norms = {name: layer for name, layer in named.items() if isinstance(layer, BatchNorm)}
        if not norms:
            raise ModelError(f"Expected a BatchNorm among {len(named)} layers; found none.")
        chosen = select(norms, layers)
        adaptation = Adaptation(
            recipe=recipe,
            settings=settings,
            layers=tuple(LayerInfo(name, "BatchNorm", len(norm.mean), name in chosen) for name, norm in norms.items()),
            kinds=("square", "rectangle"),
            model_name="Sequential",
            channel_axis=-1,
        )
        adapted = AdaptedSequential(model, adaptation)
        if example is not None:
            adapted(example)
        return adapted

    def unwrap(self, adapted: AdaptedSequential) -> Sequential:
        """Return a plain model with the same layers."""
        return copy.copy(adapted.source)

    def adaptation_of(self, model: Sequential) -> Adaptation | None:
        """Return what makes a model an adapted one."""
        return getattr(model, "adaptation", None)

    @contextmanager
    def observing(self, adapted: AdaptedSequential) -> Iterator[Adaptation]:
        """Yield the key under which votes are recorded."""
        yield adapted.adaptation

    def run(self, model: Sequential, images: np.ndarray, *, channels_last: bool = False) -> np.ndarray:
        """Return the model's output; its images have their channels last in any case."""
        return model(images)

    def write(self, adapted: Any, path: Path, format: str, example: Any, diagnostics: bool) -> tuple[int | None, ...]:
        """Write nothing: without a format in `export_formats`, `sita.export` does not get here."""
        raise NotImplementedError


backend = TinynetBackend()
