"""The Keras backend: adapt, describe, unwrap, on the TensorFlow, JAX and torch backends of Keras."""

from __future__ import annotations

from typing import Any, NoReturn

import keras
from keras import tree
from keras.src.models import Functional, Sequential

from sita_adapters.backend import Settings
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

from .blending import Blending
from .layers import PACKAGE, Body, Collapse, Expand, check_scores, find_layers, image_frame
from .twin import make_twin, walk_layers


@keras.saving.register_keras_serializable(package=PACKAGE)
class AdaptedModel(keras.Model):
    """An adapted model: Expand, Body, Collapse. It predicts, evaluates, saves and exports; it refuses to be trained."""

    def fit(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: the weights are the source model's."""
        raise SharedWeightsError(
            "An adapted model shares its weights and statistics with the source model, which training would change. "
            "Remedy: train the source model (its new weights are seen here)."
        )

    train_on_batch = fit

    def load_weights(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: the weights are the source model's."""
        raise SharedWeightsError(
            "Loading weights into an adapted model would overwrite the source model's, which it shares. "
            "Remedy: load them into the source model (they are seen here)."
        )


class KerasBackend:
    """Adapts Keras 3 models: a twin that tracks the source's variables, between Expand and Collapse."""

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
        scores = read_scores(settings.scores, last_scores(model))
        channels_first = _channels_first(found)
        frame = image_frame(tuple(image.shape), channels_first)
        body = Body(model, chosen, recipe, frame, name="body")
        blending = sum(isinstance(layer, Blending) for _, layer in walk_layers(body.twin))
        if blending != len(chosen):
            raise CloneError(
                f"Of the {len(chosen)} BatchNorm layers of {type(model).__name__}, {blending} reached its copy. "
                "Remedy: hold layers as attributes, in lists or dicts, so that Keras tracks them."
            )
        inputs = keras.Input(batch_shape=(None, *image.shape[1:]), dtype=image.dtype, name=image.name)
        rows = Expand(recipe, frame, settings.inputs, channels_first, name="expand")(inputs)
        outputs = body(rows)
        check_scores(outputs, recipe.candidate_count)
        answer = Collapse(recipe, frame, scores, name="collapse")(outputs)
        return AdaptedModel(inputs, answer, name=model.name)

    def describe(self, adapted: Any) -> Description:
        """Return what was done to an adapted model."""
        body, expand, collapse = (_part(adapted, name) for name in ("body", "expand", "collapse"))
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
            frames=(body.frame,),
        )

    def unwrap(self, adapted: Any) -> keras.Model:
        """Return a plain twin of the source model, that shares its variables."""
        return make_twin(_part(adapted, "body").source, set())


def last_scores(model: Any) -> Scores:
    """Read from the last activation whether a model puts out probabilities."""
    last: Any = None
    for _, layer in walk_layers(model):
        if not layer._layers:
            last = layer
    softmax = isinstance(last, keras.layers.Softmax) or getattr(last, "activation", None) is keras.activations.softmax
    return "probabilities" if softmax else "logits"


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
    shape = next(iter(shapes.values()), None)
    if not isinstance(shape, tuple) or not all(size is None or isinstance(size, int) for size in shape):
        raise InputError(
            f"The input shape of {type(model).__name__} is not known. Remedy: call it once on an image batch."
        )
    return keras.KerasTensor((None, *shape[1:]), dtype=model.compute_dtype, name="images")


def _channels_first(found: dict[str, Any]) -> bool:
    return any(layer.axis == 1 and len(layer._build_shapes_dict["input_shape"]) > 2 for layer in found.values())


def _part(adapted: Any, name: str) -> Any:
    if not isinstance(adapted, AdaptedModel):
        raise NotAdaptedError(
            f"Expected a model that sita.adapt returned; received a plain {type(adapted).__name__}. "
            "Remedy: adapted = sita.adapt(model)."
        )
    return adapted.get_layer(name)
