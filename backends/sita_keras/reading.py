"""What a model's own layers say of it: how its images lie, and what its scores are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

import keras
from keras import tree
from keras.src.models import Functional, Sequential

from sita_adapters.errors import InputError, OutputError
from sita_adapters.outputs import Selector, find_scores, flatten
from sita_adapters.views import Frame, frame_of
from sita_adapters.voting import Scores

from .answers import could_be_scores, is_tensor
from .twin import walk_layers

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


def scores_of(model: Any, candidates: int, selector: Selector = None) -> Scores:
    """Return what the model's scores are, read from its last activation. Raise if several candidates depend on it."""
    if isinstance(model, Functional):
        ending = _ending_of_tensor(_scores_tensor(model, candidates, selector))
    else:
        ending = _ending_of(model)
    if ending == "unclear" and candidates > 1:
        raise OutputError(
            f"Whether {type(model).__name__} puts out logits or probabilities cannot be read from the order of its "
            "layers: it has a softmax that is not the last of them. Remedy: scores='logits' or scores='probabilities'."
        )
    return _SCORES[ending or "other"]


def _scores_tensor(model: Any, candidates: int, selector: Selector) -> Any:
    """Return the tensor of a graph's outputs that candidates vote on; of one candidate, any will do."""
    outputs = model._outputs_struct
    found = flatten(outputs, is_tensor)
    try:
        place = find_scores(outputs, selector, is_tensor, could_be_scores)
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
            f"with channels on axis {axis % rank}. Remedy: permute the axes before the model, not inside it."
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


def image_frame(shape: tuple[int | None, ...], channels_first: bool) -> Frame:
    """Return the frame of a model's images; where a size is open, what every image has."""
    if len(shape) < 3:
        raise InputError(f"Expected a model of images (N, …, C); its input has the shape {shape}.")
    space = shape[2:] if channels_first else shape[1:-1]
    return "oblong" if None in space[-2:] else frame_of([size or 0 for size in space])
