"""A structural copy of a Keras model («twin»), whose layers track the source's own variables."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import keras
from keras import tree
from keras.src.models import Functional, Sequential
from keras.src.trainers.trainer import Trainer

from sita_adapters.errors import CloneError

from .blending import blending_class

_SIGNATURE = (
    "_call_signature",
    "call_signature_parameters",
    "_call_has_training_arg",
    "_call_has_mask_arg",
    "_call_has_context_arg",
)
"""What a layer notes of its `call`; a blending one keeps its parent's."""

_KEPT = (
    "_auto_config",
    "_input_spec",
    "_supports_masking",
    "_convert_input_args",
    "_build_shapes_dict",
    "built",
    "_path",
)
"""Of the bookkeeping that every layer has, what describes the layer rather than its place in a graph."""

_TORCH = ("_parameters", "_buffers", "_modules")


def make_twin(model: keras.Model, blended: set[int]) -> keras.Model:
    """Return a twin of the model, in which the layers with these ids blend their statistics."""
    return _Twins(blended).of(model)


class _Twins:
    """Makes one twin of every layer, however often it is met."""

    def __init__(self, blended: set[int]) -> None:
        self.blended = blended
        self.made: dict[int, Any] = {}

    def of(self, layer: Any) -> Any:
        """Return the twin of a layer, model, or bare operation."""
        if id(layer) not in self.made:
            if isinstance(layer, Functional | Sequential):
                self.made[id(layer)] = self._of_graph(layer)
            elif isinstance(layer, keras.layers.Layer):
                self._of_layer(layer)
            else:
                self.made[id(layer)] = _copy_operation(layer)
        return self.made[id(layer)]

    def _of_graph(self, model: Any) -> Any:
        if type(model).call not in (Functional.call, Sequential.call):
            raise CloneError(
                f"{type(model).__name__} is a functional model with a `call` of its own, which cloning would lose. "
                "Remedy: make it a subclass of keras.Model that holds the functional model as an attribute."
            )
        # As keras.models.clone_model does, which would also serialise what the source was compiled with, and fail on
        # losses and schedules that cannot be.
        if isinstance(model, Sequential):
            inputs = [_copy_input(tensor) for tensor in model.inputs]
            return keras.Sequential([*inputs, *map(self.of, model.layers)], name=model.name)
        inputs = tree.map_structure(_copy_input, model.input)
        return Functional(inputs, model._run_through_graph(inputs, operation_fn=self.of), name=model.name)

    def _of_layer(self, layer: Any) -> None:
        kind: Any = blending_class(type(layer)) if id(layer) in self.blended else type(layer)
        new = kind.__new__(kind)
        if isinstance(layer, Trainer):
            Trainer.__init__(new)
        keras.layers.Layer.__init__(
            new, name=layer.name, dtype=layer.dtype_policy, trainable=layer.trainable, autocast=layer.autocast
        )
        self.made[id(layer)] = new
        bookkeeping = set(vars(new)) | {"build", "quantize", "_torch_params"}
        new.activity_regularizer = layer.activity_regularizer
        for variable in (*layer._trainable_variables, *layer._non_trainable_variables):
            new._track_variable(variable)
        # Under Keras' torch backend, layers that are attributes live among a module's children.
        for name, value in (*vars(layer).items(), *vars(layer).get("_modules", {}).items()):
            if name in _SIGNATURE or name in _KEPT:
                object.__setattr__(new, name, copy.copy(value))
            elif name not in bookkeeping and name not in _TORCH:
                setattr(new, name, self._value(value))
        if isinstance(new._build_shapes_dict, dict):
            new._build_shapes_dict = {k: _any_batch(shape) for k, shape in new._build_shapes_dict.items()}
        new._post_build()
        new._lock_state()

    def _value(self, value: Any) -> Any:
        """Copy what an attribute holds, as far as layers are in it."""
        if isinstance(value, keras.layers.Layer):
            return self.of(value)
        if isinstance(value, dict):
            return {key: self._value(part) for key, part in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._value(part) for part in value))
        if isinstance(value, list | tuple | set):
            kind = next(kind for kind in (list, tuple, set) if isinstance(value, kind))
            return kind(self._value(part) for part in value)
        return value


def _copy_input(tensor: Any) -> Any:
    return keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype, name=tensor.name)


def _copy_operation(operation: Any) -> Any:
    """Copy a bare operation (x * 2.0), which has no state but its place in the graph."""
    copied = copy.copy(operation)
    copied._inbound_nodes, copied._outbound_nodes = [], []
    return copied


def _any_batch(shape: Any) -> Any:
    """Forget the batch size that a layer was built with, which the twin's is not."""
    if isinstance(shape, tuple) and shape and all(size is None or isinstance(size, int) for size in shape):
        return (None, *shape[1:])
    return shape


def walk_layers(layer: Any, path: str = "", seen: set[int] | None = None) -> Iterator[tuple[str, Any]]:
    """Yield every layer below this one, each once, with its path."""
    seen = set() if seen is None else seen
    for child in layer._layers:
        if id(child) in seen:
            continue
        seen.add(id(child))
        child_path = f"{path}/{child.name}" if path else child.name
        yield child_path, child
        yield from walk_layers(child, child_path, seen)
