"""What a model is made of: its BatchNorm layers, the layout of its images, and what cannot be adapted."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import tree
from keras.src.models import Functional, Sequential

from sita_adapters.errors import InputError, ModelError
from sita_adapters.probe_inputs import random_like
from sita_adapters.views import SpatialKind, spatial_kind

from .ops import KERAS, runs_channels_first


def walk(layer: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield this layer, and every layer and bare operation (x * 2.0) that runs inside it, each once, with its path."""
    seen = set() if seen is None else seen
    if id(layer) not in seen:
        seen.add(id(layer))
        yield path, layer
        # A graph may hold more layers as attributes (all of a backbone of which it runs a part) than it runs.
        for child in layer._operations if isinstance(layer, Functional) else getattr(layer, "_layers", ()):
            yield from walk(child, f"{path}/{child.name}" if path else child.name, seen)


def find_layers(model: keras.Model) -> dict[str, Any]:
    """Return the BatchNorm layers with source statistics, by path; where names repeat, a number is added."""
    found: dict[str, Any] = {}
    for path, layer in walk(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.moving_mean is not None:
            numbered = (f"{path}#{number}" for number in itertools.count(2))
            found[path if path not in found else next(name for name in numbered if name not in found)] = layer
    return found


def read_statistics(layer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the source's mean and variance, (C,), as numpy's arrays."""
    mean, variance = (KERAS.to_numpy(each.value) for each in (layer.moving_mean, layer.moving_variance))
    return mean, variance


def find_image(model: Any, example: Any = None) -> Any:
    """Return the model's one image input, as a KerasTensor; raise where the model cannot be adapted for it."""
    if not model.built:
        raise ModelError(
            f"{type(model).__name__} is not built: it has no weights yet. Try: call it once on an image batch, or "
            "model.build((None, height, width, channels))."
        )
    if own := own_methods(model, _ANSWERING):
        graph, other = "keras.Model(model.input, model.output)", "keras.Sequential([keras.Input(shape), model])"
        raise ModelError(
            f"{type(model).__name__} has its own {', '.join(own)}, which an adapted model would not run. Try: adapt a "
            f"plain model, {graph if isinstance(model, Functional) else other}, and do what these methods do outside."
        )
    is_graph = isinstance(model, Functional) or (isinstance(model, Sequential) and model._functional)
    images = model.inputs if is_graph else [_input_of_subclassed(model, example)]
    if len(images) != 1:
        raise InputError(
            f"Expected a model with one image input; {type(model).__name__} has {len(images)}. "
            "Try: adapt the part of it that takes the image."
        )
    return images[0]


_ANSWERING = (
    *("__call__", "stateless_call"),
    *("predict", "predict_on_batch", "predict_step", "make_predict_function"),
    *("evaluate", "test_on_batch", "test_step", "make_test_function", "compute_loss", "compute_metrics"),
)
"""The methods of a model that lead to answers, and to measures of them."""


def own_methods(model: Any, names: Sequence[str]) -> list[str]:
    """Return which of these methods a model, or its class, has instead of Keras' own."""
    homes = {name: next((kind for kind in type(model).__mro__ if name in vars(kind)), object) for name in names}
    return [name for name in names if name in vars(model) or homes[name].__module__.partition(".")[0] != "keras"]


def _input_of_subclassed(model: Any, example: Any) -> Any:
    """Return the input of a model that is no graph; an example tells more than what the model was built for."""
    shapes = model._build_shapes_dict or {}
    shape = next(iter(shapes.values())) if len(shapes) == 1 else None
    if not isinstance(shape, tuple) or not all(size is None or isinstance(size, int) for size in shape):
        names = [name.removesuffix("_shape") for name in shapes]
        raise InputError(
            f"Expected a model of images alone; {type(model).__name__} was built with {', '.join(names) or 'none'}. "
            "Try: call it once on an image batch; or wrap it in a model that takes the images, and gives it the rest."
        )
    dtype = model.compute_dtype
    if example is not None and len(given := tree.flatten(example)) == 1 and len(np.shape(given[0])) == len(shape):
        images = keras.ops.convert_to_tensor(given[0])
        shape, dtype = images.shape, dtype if KERAS.is_float(images) else images.dtype
    return keras.KerasTensor((None, *shape[1:]), dtype=keras.backend.standardize_dtype(dtype), name="images")


def arrange(model: Any, images: Any) -> Any:
    """Return images as the model takes them: by name, or in a list, if it was made so."""
    return tree.pack_sequence_as(model._inputs_struct, [images]) if isinstance(model, Functional) else images


def random_images(image: Any, example: Any, error: type[Exception]) -> np.ndarray:
    """Return two random images for this input, like the example; raise this error if that does not fit the input."""
    dtype = "float32" if KERAS.is_float(image) else str(keras.backend.standardize_dtype(image.dtype))  # as numpy has
    if example is None:  # 64 pixels if the model takes any number
        return random_like(np.zeros((1, *(size or 64 for size in image.shape[1:])), dtype))
    parts = tree.flatten(example)
    shape = tuple(np.shape(parts[0])) if len(parts) == 1 else ()
    sizes = zip(image.shape[1:], shape[1:], strict=False)
    if len(shape) != len(image.shape) or not shape[0] or any(size not in (None, given) for size, given in sizes):
        received = f"{len(parts)} arrays" if len(parts) != 1 else f"shape {shape}"
        raise error(f"example: expected a batch of images of shape {tuple(image.shape)}; received {received}.")
    return random_like(np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(parts[0], dtype))))


def image_kind(shape: Sequence[int | None], channel_axis: int | None) -> SpatialKind:
    """Return the kind of images of this shape (N, …); if a size is open, that of every image."""
    space = shape[2:] if channel_axis == 1 else shape[1:-1]
    return "rectangle" if len(space) > 1 and None in space[-2:] else spatial_kind([size or 0 for size in space])


def check_views(model: Any, shape: Sequence[int | None], channel_axis: int | None) -> None:
    """Raise if it is unclear which axes of a model's images views move."""
    advice = "Try: a recipe without views ('auto', 'shift', 'bn')"
    if len(shape) < 3:
        raise InputError(f"Views need images (N, …, C); {type(model).__name__} takes shape {shape}. {advice}.")
    if channel_axis is None:
        raise InputError(
            f"Views need the axis of the channels. {type(model).__name__} permutes its images, or normalizes another "
            f"axis than the last, before its first layer with a data_format. {advice}, or permute before the model."
        )


def find_channel_axis(model: Any) -> int | None:
    """Return the axis of a model's channels, 1 or −1, by the layer nearest its input that tells; None if none does.

    A BatchNormalization on another axis than the last does not tell: it may normalize the bands of a spectrogram.
    """
    last: int | None = -1
    for path, operation in list(walk(model))[1:]:
        if isinstance(operation, keras.layers.Permute) or type(operation).__name__ == "Transpose":
            return None
        if getattr(operation, "data_format", None) and not isinstance(operation, keras.layers.Flatten):
            if operation.data_format == "channels_last":
                return -1
            if not runs_channels_first():
                raise InputError(
                    f"The layer {path!r} has its channels first, which TensorFlow runs only on a GPU; none was found. "
                    "Try: KERAS_BACKEND=jax or torch, or a model with channels last."
                )
            return 1
        if isinstance(operation, keras.layers.BatchNormalization) and operation.input_spec:
            rank = int(operation.input_spec.ndim)
            last = last if operation.axis % rank == rank - 1 else None
    return last


def refuse_training(name: str, training: Any) -> None:
    """Raise if a layer is called with training=True: `predict` ignores it in a graph, and a call does not."""
    if training:
        raise ModelError(
            f"The layer {name!r} is called with training=True. Try: call it without training=; or, if an image layer "
            "(Resizing) before it in a `call` switches it to training, give that `call` an argument training=None."
        )


def check_training(model: Any) -> None:
    """Raise if a graph calls a layer with training=True, unless this is the default of the layer, as of image layers.

    Keras records a default as if it had been given.
    """
    graphs = [inner for _, inner in walk(model) if isinstance(inner, Functional)]
    for node in (node for graph in graphs for level in graph._nodes_by_depth.values() for node in level):
        if node.arguments.kwargs.get("training") is True:
            parameter = inspect.signature(node.operation.call).parameters.get("training")
            refuse_training(node.operation.name, parameter is None or parameter.default is not True)
