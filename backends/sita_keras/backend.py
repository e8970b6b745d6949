"""The Keras backend, on TensorFlow, JAX and torch: what the core asks of the framework."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import keras
import numpy as np

from sita_adapters.backend import adaptation_of
from sita_adapters.binding import bind_recipe
from sita_adapters.engine import Answer, read_answer
from sita_adapters.errors import InputError, ModelError
from sita_adapters.plan import make_plan
from sita_adapters.recipe import Recipe
from sita_adapters.selection import Layers, match_layers
from sita_adapters.state import Adaptation, Settings

from .call import AdaptedCall
from .clone import Cloner
from .exporting import FORMATS, write
from .inspection import (
    arrange,
    check_views,
    find_channel_axis,
    find_image,
    find_layers,
    image_kind,
    read_statistics,
    walk,
)
from .model import AdaptedModel
from .ops import ENGINE, KERAS
from .probe import probe


class KerasBackend:
    """Adapts Keras 3 models: a clone that reads the source's variables, inside one layer."""

    ops = KERAS
    label = f"keras ({ENGINE})"
    export_formats = FORMATS

    def adapt(self, model: Any, recipe: Recipe, settings: Settings, layers: Layers, example: Any) -> keras.Model:
        """Return an adapted model."""
        _check_model(model)
        image = find_image(model, example)
        found = find_layers(model)
        if not found:
            raise ModelError(
                f"{type(model).__name__} has no BatchNormalization layer with moving statistics "
                f"({len(list(walk(model)))} layers searched). SITA adapts BatchNorm statistics only."
            )
        names = match_layers(found, layers)
        chosen = [position for position, name in enumerate(found) if name in names]
        shape, channel_axis = tuple(image.shape), find_channel_axis(model)
        if make_plan(recipe).has_views:
            check_views(model, shape, channel_axis)
        name, kind = f"adapted_{image.name}", image_kind(shape, channel_axis)  # an input's name cannot be the same
        bound = bind_recipe(recipe, lambda: {name: read_statistics(found[name]) for name in found if name in names})
        layer = AdaptedCall(model, chosen, bound, kind, channel_axis or -1, settings, name=name)
        layer.adaptation.probes[()] = probe(layer, image, example, channel_axis)
        inputs = keras.Input(batch_shape=(None, *shape[1:]), dtype=image.dtype, name=image.name)
        # A graph may hold both the source and the adapted model, under different names.
        return AdaptedModel(arrange(model, inputs), layer(inputs), name=f"adapted_{model.name}")

    def unwrap(self, adapted: Any) -> keras.Model:
        return Cloner().clone(adapted.call_layer().hidden.source)

    def adaptation_of(self, model: Any) -> Adaptation | None:
        return model.call_layer().adaptation if isinstance(model, AdaptedModel) else None

    def observing(self, adapted: Any) -> AbstractContextManager[object]:
        """Yield the adaptation. The model runs uncompiled meanwhile: a graph has no values to record."""
        adaptation_of(adapted)  # refuses a plain model
        return adapted.uncompiled()  # type: ignore[no-any-return]

    def call(self, model: Any, images: np.ndarray, *, channels_last: bool = False) -> Any:
        """Return the model's output in numpy, compiled."""
        return model.predict_on_batch(arrange(model, _move_channels(model, images) if channels_last else images))

    def run(self, adapted: Any, images: np.ndarray, *, channels_last: bool = False) -> Answer:
        """Return the Answer of an adapted model, compiled: its layout is that of the probe."""
        output = self.call(adapted, images, channels_last=channels_last)
        return read_answer(output, adaptation_of(adapted).latest_probe.layout, KERAS)

    def write(self, adapted: Any, path: Path, format: str, example: Any, diagnostics: bool) -> tuple[int | None, ...]:
        return write(adapted, path, format, example, diagnostics)


def _check_model(model: Any) -> None:
    """Raise unless this is a plain keras.Model."""
    if not isinstance(model, keras.Model):
        raise ModelError(
            f"Expected a keras.Model; received a {type(model).__name__}. "
            "Try: pass the model that computes the predictions."
        )
    for path, layer in walk(model):
        if isinstance(layer, AdaptedModel | AdaptedCall):
            raise ModelError(
                f"Expected a plain model, but {f'its {path!r}' if path else 'it'} is already adapted. "
                "Try: adapt the source model, or sita.unwrap(adapted) first."
            )


def _move_channels(model: Any, images: np.ndarray) -> np.ndarray:
    """Return images (N, h, w, channels) with their channels where the model's input has them."""
    shape = tuple(model.inputs[0].shape)[1:]
    for moved in (images, np.moveaxis(images, -1, 1)):
        pairs = zip(shape, moved.shape[1:], strict=False)
        if len(shape) == 3 and all(size in (None, given) for size, given in pairs):
            return moved
    raise InputError(
        f"images: the model takes images of shape {shape}; received {images.shape[1:]}. Try: images of this size with "
        "their channels last, (N, height, width, channels)."
    )
