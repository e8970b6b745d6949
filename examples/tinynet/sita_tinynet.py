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
from sita_adapters.binding import bind_recipe
from sita_adapters.errors import InputError, ModelError
from sita_adapters.inputs import ImageLayout
from sita_adapters.layer import LayerCall
from sita_adapters.ops import NUMPY
from sita_adapters.probe import InputRecorder, probe_model
from sita_adapters.probe_inputs import perturb, random_like
from sita_adapters.recipe import Recipe
from sita_adapters.selection import LayerInfo, Layers, match_layers
from sita_adapters.state import Adaptation, Call, ForwardContext, ProbeResult, Settings
from sita_adapters.statistics import output_affine


# A layer: measure, blend, normalize.
class AdaptedBatchNorm(BatchNorm):
    """A BatchNorm that blends the statistics of the source's layer, which it reads at every call."""

    def __init__(self, source: BatchNorm, name: str) -> None:
        self.source, self.name = source, name

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Normalize each row of x (N, h, w, C) with its blended statistics."""
        call, layer = LayerCall(self.name, x), self.source
        if not call.blends:
            return layer(x)
        rows = x.reshape(-1, call.entries, *x.shape[1:])[:, call.first :]
        moments, source = (rows.mean(axis=(2, 3)), rows.var(axis=(2, 3))), (layer.mean, layer.variance)
        mean, variance = call.blend(moments, source, layer.epsilon, positions=x.shape[1] * x.shape[2])
        gamma, beta = layer.gamma, layer.beta
        scale, shift = output_affine(mean, variance, gamma=gamma, beta=beta, epsilon=layer.epsilon, ops=NUMPY)
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
        return self.answer(images).rebuild(NUMPY)

    def answer(self, images: np.ndarray) -> engine.Answer:
        """Run the engine. Its Answer has the scores, and how they came about."""
        if images.ndim != 4 or not len(images):
            raise InputError(f"Expected images (N, h, w, c), at least one; received shape {images.shape}.")
        adaptation, signature = self.adaptation, images.dtype
        if signature not in adaptation.probes:
            adaptation.probes[signature] = self.probe(images)
        plan, probe = adaptation.plan_of(images.shape[1:3]), adaptation.probes[signature]
        image_layout = ImageLayout(NUMPY, channel=-1, axes=(-3, -2), inputs=adaptation.settings.inputs)
        return engine.answer(Call(adaptation, plan, probe, image_layout, self.forward, [images]))

    def forward(self, batch: list[np.ndarray]) -> np.ndarray:
        """Run the layers, without the engine."""
        return super().__call__(batch[0])

    def probe(self, images: np.ndarray) -> ProbeResult:
        """Establish what the output is, and that images do not influence each other."""
        random, recorder = random_like(images), InputRecorder(NUMPY)

        def run(which: Sequence[int], *, perturbed: bool = False, fresh: bool = False) -> np.ndarray:
            rows = random[list(which)]
            rows = perturb(rows, np.finfo(rows.dtype).eps) if perturbed else rows
            context = ForwardContext(self.adaptation, engine.PLAIN, len(rows), NUMPY, record=recorder.record)
            return engine.run_rows([rows], self.forward, context)

        return probe_model(run, recorder, self.adaptation, images, image_rank=4, channel_axis=lambda: -1)


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
        chosen = match_layers(norms, layers)
        adaptation = Adaptation(
            recipe=bind_recipe(recipe, lambda: {name: (norms[name].mean, norms[name].variance) for name in chosen}),
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

    def call(self, model: Sequential, images: np.ndarray, *, channels_last: bool = False) -> np.ndarray:
        """Return any model's output; its images have their channels last in any case."""
        return model(images)

    def run(self, adapted: AdaptedSequential, images: np.ndarray, *, channels_last: bool = False) -> engine.Answer:
        """Return an adapted model's Answer."""
        return adapted.answer(images)

    def write(self, adapted: Any, path: Path, format: str, example: Any, diagnostics: bool) -> tuple[int | None, ...]:
        """Write nothing: without a format in `export_formats`, `sita.export` does not get here."""
        raise NotImplementedError


backend = TinynetBackend()
