"""The Keras backend, on TensorFlow, JAX and torch: what the core asks of the framework."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import tree
from keras.src.models import Functional

from sita_adapters import engine
from sita_adapters.backend import Settings, read_adaptation
from sita_adapters.cascade import CascadeRule
from sita_adapters.errors import AlreadyAdaptedError, CloneError, InputError, NoBatchNormError
from sita_adapters.outputs import flatten
from sita_adapters.plan import Plan
from sita_adapters.recipe import Recipe
from sita_adapters.selection import select
from sita_adapters.trial import WHOLE, whole_error
from sita_adapters.votable import scores_path
from sita_adapters.voting import Scores, read_scores

from .batchnorm import AdaptedBatchNorm
from .call import AdaptedCall
from .cascade import Cascade
from .clone import clone
from .exporting import FORMATS, WithVerdict, file_outputs, read_example, write
from .inspection import channels_come_first, find_image, find_layers, image_kind, scores_of, walk_layers
from .model import AdaptedModel
from .ops import KERAS
from .trial import try_out


class KerasBackend:
    """Adapts Keras 3 models: a clone that tracks the source's variables, inside one layer."""

    ops = KERAS
    export_formats = FORMATS

    @property
    def label(self) -> str:
        return f"keras ({keras.backend.backend()})"

    def adapt(self, model: Any, recipe: Recipe, settings: Settings) -> keras.Model:
        """Return an adapted model. Everything is checked before anything is made."""
        _refuse_adapted(model)
        image = find_image(model, settings.example)
        found = find_layers(model)
        if not found:
            raise NoBatchNormError(
                f"{type(model).__name__} has no BatchNormalization layer with moving statistics "
                f"({len(list(walk_layers(model)))} layers searched). SITA adapts BatchNorm statistics only."
            )
        names = select(found, settings.layers)
        channels_first = channels_come_first(model, len(image.shape))
        layer = AdaptedCall(
            model,
            tuple(place for place, name in enumerate(found) if name in names),
            recipe,
            image_kind(tuple(image.shape), channels_first),
            channels_first,
            settings.inputs,
            _read_scores(model, recipe, settings),
            settings.output,
            settings.max_rows,
            name=f"adapted_{image.name}",  # an input may have any name; this cannot be the same
        )
        _check_clone(layer)
        layer.findings = try_out(layer, image, settings.example)
        plan, _ = layer.adaptation.plan_for(layer.adaptation.kinds[0])
        # By its path: positions in an output differ between the backends, which may sort the keys of a dict.
        outputs = layer.compute_output_spec(image)
        _check_outputs(outputs, layer, plan)
        layer.adaptation.output = scores_path(outputs, plan, layer.adaptation, KERAS)
        inputs = tree.map_structure(_open_input, model._inputs_struct if isinstance(model, Functional) else image)
        return AdaptedModel(inputs, layer(*tree.flatten(inputs)), name=model.name)

    def unwrap(self, adapted: Any) -> keras.Model:
        return clone(adapted.adapted_call.hidden.source, {})

    def adaptation_of(self, model: Any) -> engine.Adaptation | None:
        return model.adapted_call.adaptation if isinstance(model, AdaptedModel) else None

    def source_name(self, adapted: Any) -> str:
        return str(adapted.adapted_call.source_name)

    def scores_of(self, model: Any) -> Scores:
        return scores_of(model, 1)

    @contextmanager
    def observing(self, adapted: Any) -> Iterator[engine.Adaptation]:
        """Give the adaptation. The model runs uncompiled meanwhile: a graph has no values to record."""
        adaptation = read_adaptation(adapted)
        with adapted.uncompiled():
            yield adaptation

    def cascade(self, model: Any, adapted: Any, rule: CascadeRule) -> Cascade:
        return Cascade(model, adapted, rule)

    def arrange(self, name: str, model: Any, images: np.ndarray) -> np.ndarray:
        """Return the images as the model's input takes them."""
        inputs = getattr(model, "inputs", None)  # a subclassed model has none to check against
        if not inputs:
            return images
        shape = tuple(inputs[0].shape)[1:]
        for arranged in (images, np.moveaxis(images, -1, 1)):
            pairs = zip(shape, arranged.shape[1:], strict=False)
            if len(shape) == 3 and all(size in (None, given) for size, given in pairs):
                return arranged
        if len(shape) == 3 and shape[-1] == images.shape[1] != images.shape[-1]:
            raise InputError(
                f"images: expected channels last, (N, h, w, {shape[-1]}) for {name!r}; received shape {images.shape}, "
                "which looks like channels first. Try: images.transpose(0, 2, 3, 1)."
            )
        raise InputError(f"images: {name!r} takes images of shape {shape}; received {images.shape[1:]}.")

    def run(self, model: Any, batch: np.ndarray) -> Any:
        """Return the model's output in numpy, compiled."""
        struct = getattr(model, "_inputs_struct", None)
        return model.predict_on_batch(batch if struct is None else tree.pack_sequence_as(struct, [batch]))

    def with_verdict(self, adapted: Any) -> WithVerdict:
        return WithVerdict(adapted)

    def read_example(self, adapted: Any, example: Any) -> np.ndarray:
        return read_example(adapted, example)

    def write(self, adapted: Any, path: Path, format: str, images: np.ndarray) -> None:
        write(adapted, path, format, images)

    def file_outputs(self, output: Any) -> list[tuple[str, Any]]:
        """Return the arrays of an output in the order that Keras flattens it in, which files keep."""
        return file_outputs(output)


def _refuse_adapted(model: Any) -> None:
    for path, layer in [("", model), *walk_layers(model)]:
        if isinstance(layer, AdaptedModel | AdaptedCall | AdaptedBatchNorm):
            raise AlreadyAdaptedError(
                f"Expected a plain model, but {f'its {path!r}' if path else 'it'} is adapted already. "
                "Try: adapt the source model, or sita.unwrap(adapted) first."
            )


def _read_scores(model: Any, recipe: Recipe, settings: Settings) -> Scores:
    if settings.scores:
        return read_scores(settings.scores, "logits")
    return scores_of(model, recipe.candidate_count, settings.output)


def _check_outputs(outputs: Any, layer: AdaptedCall, plan: Plan) -> None:
    """Raise where an output has the whole batch in it, where views would be, too."""
    axes = dict(layer.findings.axes)
    for path, array in flatten(outputs, KERAS.is_array):
        if axes.get(path) == WHOLE and (plan.rows > 1 or layer.adaptation.max_rows is not None):
            raise whole_error(path, array)


def _open_input(tensor: Any) -> Any:
    """Return an input like this one, for any number of images."""
    return keras.Input(batch_shape=(None, *tensor.shape[1:]), dtype=tensor.dtype, name=tensor.name)


def _check_clone(layer: AdaptedCall) -> None:
    """Raise where adapted layers were not cloned."""
    source = layer.source_name
    cloned = [each for _, each in walk_layers(layer.hidden.clone) if isinstance(each, AdaptedBatchNorm)]
    if len(cloned) != len(layer.chosen):
        raise CloneError(
            f"Of the {len(layer.chosen)} BatchNorm layers of {source}, {len(cloned)} reached its clone. "
            "Try: hold layers as attributes, in lists or dicts, where Keras tracks them."
        )
