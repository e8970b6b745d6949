"""What a model is made of: its BatchNorm layers, the layout of its images, its scores, and what cannot be adapted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import keras
import numpy as np
from keras import tree
from keras.src.models import Functional, Sequential

from sita_adapters.errors import CloneError, InputError, OutputError, UninitialisedModelError, UnknownModelError
from sita_adapters.outputs import Selector, find_scores, flatten
from sita_adapters.views import SpatialKind, spatial_kind
from sita_adapters.voting import Scores

from .ops import KERAS

Ending: TypeAlias = Literal["softmax", "sigmoid", "other", "unclear"]
"""What a model's last step is. Unclear: a softmax is among its layers, and which of them comes last is not known."""

_SCORES: dict[Ending, Scores] = {
    "softmax": "probabilities",
    "sigmoid": "sigmoid_probabilities",
    "other": "logits",
    "unclear": "logits",
}

_ENDINGS: dict[str, Ending] = {"softmax": "softmax", "softmax_v2": "softmax", "sigmoid": "sigmoid"}
"""By the name of an activation function, layer or operation; TensorFlow's softmax calls itself softmax_v2."""

_CARRYING = {
    *("Reshape", "Flatten", "Permute", "Squeeze", "ExpandDims", "Transpose"),
    *("Cast", "Identity", "Dropout", "SpatialDropout2D"),
    *("Resizing", "UpSampling2D", "Cropping2D", "GlobalAveragePooling2D"),
}
"""Layers and operations, by the names of their classes, that make no logits of probabilities."""


def walk_layers(layer: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield every layer that runs inside this one, each once, with its path.

    A graph may hold more as attributes (the whole of a backbone of which it runs a part), which it does not run.
    """
    seen = set() if seen is None else seen
    for child in layer.layers if isinstance(layer, Functional) else layer._layers:
        if id(child) in seen:
            continue
        seen.add(id(child))
        child_path = f"{path}/{child.name}" if path else child.name
        yield child_path, child
        yield from walk_layers(child, child_path, seen)


def find_layers(model: keras.Model) -> dict[str, Any]:
    """Return the BatchNorm layers with source statistics, by path; where names repeat, a number is added."""
    found: dict[str, Any] = {}
    for path, layer in walk_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.moving_mean is not None:
            again = sum(name.partition("#")[0] == path for name in found)
            found[f"{path}#{again + 1}" if again else path] = layer
    return found


def find_image(model: Any, example: Any = None) -> Any:
    """Return the model's one image input, as a KerasTensor; raise where the model cannot be adapted for it.

    Of a model that is no graph, the example tells more than what it was built for.
    """
    if not isinstance(model, keras.Model):
        raise UnknownModelError(
            f"Expected a keras.Model; received a {type(model).__name__}. "
            "Try: pass the model that computes the predictions."
        )
    if not model.built:
        raise UninitialisedModelError(
            f"{type(model).__name__} is not built: it has no weights yet. Try: call it once on an image batch, or "
            "model.build((None, height, width, channels))."
        )
    _check_methods(model)
    _check_layout(model)
    is_graph = isinstance(model, Functional | Sequential)
    images = tree.flatten(model.inputs if is_graph else _input_of_subclassed(model, example))
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


def _check_methods(model: Any) -> None:
    """Raise where a model answers in ways of its own, which its adapted model would not have."""
    if own := own_methods(model, _ANSWERING):
        plain = "keras.Sequential([keras.Input(shape), model])"
        if isinstance(model, Functional):
            plain = "keras.Model(model.input, model.output)"
        raise CloneError(
            f"{type(model).__name__} has its own {', '.join(own)}, which an adapted model would not run. Expected a "
            f"model whose images go through `call` alone. Try: adapt a plain model, {plain}, and do what these methods "
            "do (preprocessing, say) outside."
        )


def _check_layout(model: Any) -> None:
    """Raise where convolutions have their channels first and TensorFlow, on this machine, cannot run them."""
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow

    first = [path for path, layer in walk_layers(model) if getattr(layer, "data_format", None) == "channels_first"]
    if first and not tensorflow.config.list_physical_devices("GPU"):
        raise InputError(
            f"The layers {', '.join(first[:3])} have their channels first, which TensorFlow runs on a GPU only; there "
            "is none. Try: KERAS_BACKEND=jax or torch, or a model with channels last."
        )


def _input_of_subclassed(model: Any, example: Any) -> Any:
    shapes = model._build_shapes_dict or {}
    if len(shapes) > 1:
        raise InputError(
            f"Expected a model that is called on images alone; {type(model).__name__} was built with "
            f"{', '.join(name.removesuffix('_shape') for name in shapes)}. Try: wrap it in a model whose call takes "
            "the images, and gives it the rest."
        )
    shape = next(iter(shapes.values()), None)
    if not isinstance(shape, tuple) or not all(size is None or isinstance(size, int) for size in shape):
        raise InputError(
            f"The input shape of {type(model).__name__} is not known. Try: call it once on an image batch."
        )
    dtype = model.compute_dtype
    if example is not None and len(given := tree.flatten(example)) == 1 and len(np.shape(given[0])) == len(shape):
        images = keras.ops.convert_to_tensor(given[0])
        shape, dtype = images.shape, dtype if KERAS.is_float(images) else images.dtype
    return keras.KerasTensor((None, *shape[1:]), dtype=keras.backend.standardize_dtype(dtype), name="images")


def scores_of(model: Any, candidates: int, selector: Selector = None) -> Scores:
    """Return what the model's scores are, read from its last activation. Raise if several candidates depend on it."""
    if isinstance(model, Functional):
        ending = _ending_of_tensor(_scores_tensor(model, candidates, selector))
    else:
        ending = _ending_of(model)
    if ending == "unclear" and candidates > 1:
        raise OutputError(
            f"Whether {type(model).__name__} puts out logits or probabilities cannot be read from the order of its "
            "layers: it has a softmax that is not the last of them. Try: scores='logits' or scores='probabilities'."
        )
    return _SCORES[ending or "other"]


def _scores_tensor(model: Any, candidates: int, selector: Selector) -> Any:
    """Return the tensor of a graph's outputs that candidates vote on; of one candidate, any will do."""
    outputs = model._outputs_struct
    found = flatten(outputs, KERAS.is_array)
    try:
        place = find_scores(outputs, selector, KERAS.is_array, lambda a: len(a.shape) > 1 and KERAS.is_float(a))
    except OutputError:
        if candidates > 1 or selector is not None:
            raise
        place = 0
    return found[place][1]


def _ending_of(layer: Any) -> Ending | None:
    """Return what a model or layer ends in; None where it hands on what it is given."""
    if isinstance(layer, Functional | Sequential):
        return _ending_of_tensor(tree.flatten(layer.outputs)[0])
    if isinstance(layer, keras.layers.Wrapper):
        return _ending_of(layer.layer)
    if isinstance(layer, keras.layers.Layer) and layer._layers:
        return _ending_by_order(layer)
    function = getattr(layer, "function", None) or getattr(layer, "activation", None)
    name = type(layer).__name__ if function is None else getattr(function, "__name__", type(function).__name__)
    if name.lower() in _ENDINGS:
        return _ENDINGS[name.lower()]
    hands_on = type(layer).__name__ in _CARRYING or (isinstance(layer, keras.layers.Activation) and name == "linear")
    return None if hands_on or isinstance(layer, keras.layers.InputLayer) else "other"


def _ending_of_tensor(tensor: Any) -> Ending | None:
    """Walk back from a graph's output, through what hands on."""
    operation, node, place = tensor._keras_history
    if isinstance(operation, Functional | Sequential):
        ending = _ending_of_tensor(tree.flatten(operation.outputs)[place])
    else:
        ending = _ending_of(operation)
    before = operation._inbound_nodes[node].input_tensors
    return ending if ending or not before else _ending_of_tensor(before[0])


def _ending_by_order(layer: Any) -> Ending:
    """Take the layer that was made last for the one that runs last, unless another is a softmax."""
    endings = (_ending_of(child) for child in reversed(layer._layers))
    last: Ending = next((ending for ending in endings if ending is not None), "other")
    if last != "other":
        return last
    leaves = (inner for _, inner in walk_layers(layer) if not inner._layers)
    return "unclear" if any(_ending_of(leaf) == "softmax" for leaf in leaves) else "other"


def channels_come_first(model: Any, rank: int) -> bool:
    """Return whether images of this rank have their channels before their spatial axes.

    As the convolution or pooling nearest the input takes them, or else the nearest BatchNorm; what permutes axes on the
    way there is followed back.
    """
    permutations: list[tuple[int, ...]] = []
    axis = None
    for operation in _walk_operations(model):
        if (found := _permutation(operation)) and len(found) == rank and axis is None:
            permutations.append(found)
        if _is_spatial(operation):
            axis = -1 if operation.data_format == "channels_last" else 1 - _rank_of(operation)
            break
        if axis is None and isinstance(operation, keras.layers.BatchNormalization) and operation.input_spec:
            axis = operation.axis % _rank_of(operation) - _rank_of(operation)
    if axis is None:
        return False
    for permutation in reversed(permutations):
        axis = permutation[axis] - rank
    if axis not in (-1, -1 - min(rank - 2, 2)):
        raise InputError(
            f"Expected images with their channels first or last; {type(model).__name__} takes images of rank {rank} "
            f"with channels on axis {axis % rank}. Try: permute the axes before the model, not inside it."
        )
    return axis != -1


def _walk_operations(model: Any) -> Iterator[Any]:
    """Yield layers and bare operations in the order they run in, as far as it is known."""
    for operation in model._operations if isinstance(model, Functional) else model._layers:
        yield operation
        if isinstance(operation, keras.layers.Layer):
            yield from _walk_operations(operation)


def _permutation(operation: Any) -> tuple[int, ...]:
    if isinstance(operation, keras.layers.Permute):
        return (0, *operation.dims)
    return tuple(operation.axes or ()) if type(operation).__name__ == "Transpose" else ()


def _is_spatial(operation: Any) -> bool:
    """Whether this is a convolution or a pooling."""
    return bool(hasattr(operation, "data_format") and getattr(operation, "input_spec", None)) and any(
        hasattr(operation, name) for name in ("kernel_size", "pool_size", "keepdims")
    )


def _rank_of(layer: Any) -> int:
    """Return the rank of what a layer was built for."""
    return int(layer.input_spec.ndim or layer.input_spec.min_ndim)


def image_kind(shape: tuple[int | None, ...], channels_first: bool) -> SpatialKind:
    """Return what a model's images are; where a size is open, what every image is."""
    if len(shape) < 3:
        raise InputError(f"Expected a model of images (N, …, C); its input has the shape {shape}.")
    space = shape[2:] if channels_first else shape[1:-1]
    return "rectangle" if None in space[-2:] else spatial_kind([size or 0 for size in space])
