"""The Keras backend: adapt, describe, unwrap, on the TensorFlow, JAX and torch backends of Keras."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import keras
from keras import tree
from keras.src.models import Functional, Sequential

from sita_adapters.backend import Settings, Written
from sita_adapters.description import Description, LayerInfo
from sita_adapters.errors import (
    AlreadyAdaptedError,
    CloneError,
    InputError,
    NoBatchNormError,
    NotAdaptedError,
    SharedWeightsError,
    UninitialisedModelError,
    UnknownModelError,
)
from sita_adapters.recipe import Recipe
from sita_adapters.selection import select
from sita_adapters.voting import Scores, read_scores

from .answers import find_path
from .blending import Blending
from .cascade import Cascade
from .exporting import FORMATS, export
from .layers import PACKAGE, Body, Collapse, Expand
from .probing import check_run
from .reading import channels_come_first, image_frame, scores_of
from .rounds import Rounds
from .runner import KerasRunner
from .twin import find_layers, make_twin, walk_layers
from .uncompiled import uncompiled


@keras.saving.register_keras_serializable(package=PACKAGE)
class AdaptedModel(keras.Model):
    """An adapted model: Expand, Body, Collapse. It predicts, evaluates, saves and exports; it refuses to be trained."""

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None, **others: Any) -> Any:
        """Return an answer for every image."""
        if others:
            raise InputError(
                f"Expected images alone; received {', '.join(others)}, too, which an adapted model cannot hand on. "
                "Remedy: adapt a model whose call takes the images, and gives the source model the rest."
            )
        return super().call(inputs, training=training, mask=mask)

    @property
    def run_eagerly(self) -> bool:
        """Whether `predict` runs uncompiled; always where views are drawn by what is in an image."""
        return bool(_part(self, Expand).recipe.resample or keras.Model.run_eagerly.fget(self))

    @run_eagerly.setter
    def run_eagerly(self, value: bool) -> None:
        keras.Model.run_eagerly.fset(self, value)

    def fit(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: the weights are the source model's."""
        raise SharedWeightsError(
            "An adapted model shares its weights and statistics with the source model, which training would change. "
            "Remedy: train the source model (its new weights are seen here)."
        )

    train_on_batch = fit

    def set_weights(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: the weights are the source model's."""
        raise SharedWeightsError(
            "Setting the weights of an adapted model would overwrite the source model's, which it shares. "
            "Remedy: load them into the source model (they are seen here)."
        )

    load_weights = set_weights

    def save(self, filepath: Any, *args: Any, **kwargs: Any) -> None:
        """Save to a `.keras` file. It loads again adapted."""
        if str(filepath).endswith((".h5", ".hdf5")):
            raise CloneError(
                f"Expected a file name that ends in .keras; received {str(filepath)!r}. What is in an HDF5 file could "
                "not be adapted again. Remedy: adapted.save('model.keras')."
            )
        super().save(filepath, *args, **kwargs)


class KerasBackend:
    """Adapts Keras 3 models: a twin that tracks the source's variables, between Expand and Collapse."""

    export_formats = FORMATS

    def adapt(self, model: Any, recipe: Recipe, settings: Settings) -> keras.Model:
        """Return an adapted model. Everything is checked before anything is made."""
        image = _check(model)
        found = find_layers(model)
        if not found:
            raise NoBatchNormError(
                f"{type(model).__name__} has no BatchNormalization layer with moving statistics "
                f"({len(list(walk_layers(model)))} layers searched). SITA adapts BatchNorm statistics only."
            )
        names = select(found, settings.layers)
        chosen = tuple(place for place, name in enumerate(found) if name in names)
        scores = (
            read_scores(settings.scores, "logits")
            if settings.scores
            else scores_of(model, recipe.candidate_count, settings.output)
        )
        channels_first = channels_come_first(model, len(image.shape))
        frame = image_frame(tuple(image.shape), channels_first)
        # An input may have any name; with it at their end, the others' cannot be the same.
        body = Body(model, chosen, recipe, frame, name=f"body_{image.name}")
        blending = {id(layer): name for name, layer in find_layers(body.hidden.twin).items() if _blends(layer)}
        if len(blending) != len(chosen):
            raise CloneError(
                f"Of the {len(chosen)} BatchNorm layers of {type(model).__name__}, {len(blending)} reached its copy. "
                "Remedy: hold layers as attributes, in lists or dicts, so that Keras tracks them."
            )
        check_run(body, blending, image)
        answers_only = len(chosen) < len(found) and len(body.plan.answers) < body.plan.rows and body.end_views()
        inputs = tree.map_structure(_open_input, model._inputs_struct if isinstance(model, Functional) else image)
        expand = Expand(recipe, frame, settings.inputs, channels_first, name=f"expand_{image.name}")
        outputs = body.compute_output_spec(expand.compute_output_spec(image))
        path = find_path(outputs, settings.output, scores, body.plan)
        collapse = Collapse(recipe, frame, scores, path, answers_only, name=f"collapse_{image.name}")
        (images,) = tree.flatten(inputs)
        if settings.max_rows is None:
            answer = collapse(body(expand(images)))
        else:
            answer = Rounds(expand, body, collapse, settings.max_rows, name=f"rounds_{image.name}")(images)
        return AdaptedModel(inputs, answer, name=model.name)

    def describe(self, adapted: Any) -> Description:
        """Return what was done to an adapted model."""
        body, expand, collapse = (_part(adapted, kind) for kind in (Body, Expand, Collapse))
        layers = tuple(
            LayerInfo(name, type(layer).__name__, int(layer.moving_mean.shape[0]), place in body.chosen)
            for place, (name, layer) in enumerate(find_layers(body.source).items())
        )
        return Description(
            model=type(body.source).__name__,
            backend=f"keras ({keras.backend.backend()})",
            recipe=body.recipe,
            inputs=expand.inputs,
            scores=collapse.scores,
            layers=layers,
            max_rows=next((layer.max_rows for layer in adapted.layers if isinstance(layer, Rounds)), None),
            frames=(body.frame,),
            views_end_after=", ".join(body.views_end_after) or None,
        )

    @contextmanager
    def observing(self, adapted: Any) -> Iterator[Collapse]:
        """Give the layer that tells of every vote. The model runs uncompiled meanwhile: a graph has no numbers."""
        collapse = _part(adapted, Collapse)
        with uncompiled(adapted):
            yield collapse

    def cascade(self, model: Any, adapted: Any, threshold: float, scores: str | None) -> Cascade:
        """Return what runs the adapted model on what the plain one is unsure of."""
        collapse = _part(adapted, Collapse)
        return Cascade(model, adapted, threshold, read_scores(scores, collapse.scores), collapse.scores_path)

    def scores_of(self, model: Any) -> Scores:
        """Return what the last activation says."""
        return scores_of(model, 1)

    def export(self, adapted: Any, path: Path, format: str, example: Any) -> Written:
        """Write an adapted model to a file."""
        return export(adapted, _part(adapted, Collapse).scores_path, path, format, example)

    def runner(self) -> KerasRunner:
        """Return what runs models on numpy arrays."""
        return KerasRunner()

    def unwrap(self, adapted: Any) -> keras.Model:
        """Return a plain twin of the source model, that shares its variables."""
        return make_twin(_part(adapted, Body).source, set())


def _check(model: Any) -> Any:
    """Return the model's one image input."""
    if not isinstance(model, keras.Model):
        raise UnknownModelError(
            f"Expected a keras.Model; received a {type(model).__name__}. "
            "Remedy: pass the model that computes the predictions."
        )
    for path, layer in [("", model), *walk_layers(model)]:
        if isinstance(layer, AdaptedModel | Body | Blending):
            raise AlreadyAdaptedError(
                f"Expected a plain model, but {f'its {path!r}' if path else 'it'} is adapted already. "
                "Remedy: adapt the source model, or sita.unwrap(adapted) first."
            )
    if not model.built:
        raise UninitialisedModelError(
            f"{type(model).__name__} is not built: it has no weights yet. Remedy: call it once on an image batch, or "
            "model.build((None, height, width, channels))."
        )
    _check_layout(model)
    images = tree.flatten(model.inputs if isinstance(model, Functional | Sequential) else _input_of_subclassed(model))
    if len(images) != 1:
        raise InputError(
            f"Expected a model with one image input; {type(model).__name__} has {len(images)}. "
            "Remedy: adapt the part of it that takes the image."
        )
    return images[0]


def _check_layout(model: Any) -> None:
    """Raise where convolutions have their channels first and TensorFlow, on this machine, cannot run them."""
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow

    first = [path for path, layer in walk_layers(model) if getattr(layer, "data_format", None) == "channels_first"]
    if first and not tensorflow.config.list_physical_devices("GPU"):
        raise InputError(
            f"The layers {', '.join(first[:3])} have their channels first, which TensorFlow runs on a GPU only; there "
            "is none. Remedy: KERAS_BACKEND=jax or torch, or a model with channels last."
        )


def _input_of_subclassed(model: Any) -> Any:
    shapes = model._build_shapes_dict or {}
    if len(shapes) > 1:
        raise InputError(
            f"Expected a model that is called on images alone; {type(model).__name__} was built with "
            f"{', '.join(name.removesuffix('_shape') for name in shapes)}. Remedy: wrap it in a model whose call takes "
            "the images, and gives it the rest."
        )
    shape = next(iter(shapes.values()), None)
    if not isinstance(shape, tuple) or not all(size is None or isinstance(size, int) for size in shape):
        raise InputError(
            f"The input shape of {type(model).__name__} is not known. Remedy: call it once on an image batch."
        )
    return keras.KerasTensor((None, *shape[1:]), dtype=model.compute_dtype, name="images")


def _open_input(tensor: Any) -> Any:
    """Return an input like this one, for any number of images."""
    return keras.Input(batch_shape=(None, *tensor.shape[1:]), dtype=tensor.dtype, name=tensor.name)


def _blends(layer: Any) -> bool:
    return isinstance(layer, Blending)


def _part(adapted: Any, kind: type) -> Any:
    if not isinstance(adapted, AdaptedModel):
        raise NotAdaptedError(
            f"Expected a model that sita.adapt returned; received a plain {type(adapted).__name__}. "
            "Remedy: adapted = sita.adapt(model)."
        )
    for layer in adapted.layers:
        for part in (layer.expand, layer.body, layer.collapse) if isinstance(layer, Rounds) else (layer,):
            if isinstance(part, kind):
                return part
    raise AssertionError(f"An adapted model without {kind.__name__}.")
