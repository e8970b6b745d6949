"""A copy of the layers, of the same classes, that computes with the same variables."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import tree
from keras.src.models import Functional, Sequential
from keras.src.trainers.trainer import Trainer

from sita_adapters.errors import CloneError

from .batchnorm import AdaptedBatchNorm, FoldedTimeDistributed, mixed_class
from .inspection import own_methods, walk_layers

_KEPT = (
    # What a layer notes of its `call`. An adapted class's own says (*args, **kwargs), from which Keras learns nothing.
    "_call_signature",
    "call_signature_parameters",
    "_call_has_training_arg",
    "_call_has_mask_arg",
    "_call_has_context_arg",
    # What it was made of, and of what shape: needed to save it.
    "_auto_config",
    "_build_shapes_dict",
    "built",
    "_path",
    # What inputs it takes, and what it does with them before `call`.
    "_input_spec",
    "_supports_masking",
    "_convert_input_args",
)
"""Of what `Layer.__init__` sets, all that describes the layer. The rest is its place in a graph and what it tracks."""

_TORCH_PARAMETERS = "_torch_params"
"""What Keras' torch backend keeps beside that, and makes again from a layer's variables."""

Share = Callable[[Any], Any]
"""Returns what stands for a variable in the clone."""


def clone(model: keras.Model, adapted: Mapping[int, str], share: Share = lambda variable: variable) -> keras.Model:
    """Return a copy of the model in which the layers with these ids blend their statistics.

    `adapted` has the layers' names by their ids. Without `share`, the variables are the model's own.
    """
    return _Cloner(adapted, share).clone(model)


class _Cloner:
    """Makes one clone of every layer and variable, however often it is met."""

    def __init__(self, adapted: Mapping[int, str], share: Share) -> None:
        self.adapted, self.share = adapted, share
        self.made: dict[int, Any] = {}

    def clone(self, layer: Any) -> Any:
        """Return the clone of a layer, model, bare operation, variable or source of random numbers."""
        if id(layer) not in self.made:
            if isinstance(layer, Functional | Sequential):
                self.made[id(layer)] = self._clone_graph(layer)
            elif isinstance(layer, keras.layers.Layer):
                self._clone_layer(layer)
            elif isinstance(layer, keras.Variable):
                self.made[id(layer)] = self.share(layer)
            elif isinstance(layer, keras.random.SeedGenerator):  # its own: to draw from the source's would change it
                self.made[id(layer)] = type(layer).from_config(layer.get_config())
            else:
                self.made[id(layer)] = _copy_operation(layer)
        return self.made[id(layer)]

    def _clone_graph(self, model: Any) -> Any:
        """Make a graph of clones.

        As keras.models.clone_model does, which would also serialize what the source was compiled with, and fail on
        losses and schedules that cannot be.
        """
        if own := own_methods(model, ("call", "__call__")):
            raise CloneError(
                f"{type(model).__name__} is a functional model with a `{own[0]}` of its own, which cloning would lose. "
                "Try: put its plain graph in its place, keras.Model(part.input, part.output), and do what that method "
                "does around it; or hold the graph as an attribute of a subclass of keras.Model."
            )
        if isinstance(model, Sequential):
            inputs = [_copy_input(tensor) for tensor in model.inputs]
            new = keras.Sequential([*inputs, *map(self.clone, model.layers)], name=model.name)
        else:
            inputs = tree.map_structure(_copy_input, model._inputs_struct)
            new = Functional(inputs, model._run_through_graph(inputs, operation_fn=self.clone), name=model.name)
        # Not by their setters, which would reach the variables.
        new._trainable, new._dtype_policy = model._trainable, model._dtype_policy
        return new

    def _clone_layer(self, layer: Any) -> None:
        kind = self._class_of(layer)
        new = kind.__new__(kind)
        if isinstance(layer, Trainer):
            Trainer.__init__(new)
        keras.layers.Layer.__init__(
            new, name=layer.name, dtype=layer.dtype_policy, trainable=layer.trainable, autocast=layer.autocast
        )
        self.made[id(layer)] = new
        self._copy_attributes(layer, new)
        if hasattr(layer, "adapt") and not layer._layers and id(layer) not in self.adapted:
            # A preprocessing layer (Normalization) computes with tensors that its `adapt` and a load replace. The
            # source's own `call` reads the present ones, where a copy would keep those of today.
            new.call = layer.call
        order = {id(self.clone(child)): place for place, child in enumerate(layer._layers)}
        new._layers.sort(key=lambda child: order.get(id(child), len(order)))
        if id(layer) in self.adapted:
            new.sita_name = self.adapted[id(layer)]
        if isinstance(new._build_shapes_dict, dict):
            new._build_shapes_dict = {k: _any_batch(shape) for k, shape in new._build_shapes_dict.items()}
        new._post_build()
        new._lock_state()

    def _copy_attributes(self, layer: Any, new: Any) -> None:
        set_by_keras = {*vars(new), _TORCH_PARAMETERS}
        new.activity_regularizer = layer.activity_regularizer
        for kind in ("trainable_variables", "non_trainable_variables"):  # those that are frozen stay where they are
            for variable in getattr(layer, f"_{kind}"):
                new._tracker.add_to_store(kind, self.clone(variable))
        # Under Keras' torch backend, layers that are attributes live among a module's children.
        for name, value in (*vars(layer).items(), *vars(layer).get("_modules", {}).items()):
            if name in _KEPT:
                object.__setattr__(new, name, copy.copy(value))
            elif name not in set_by_keras:
                setattr(new, name, self._copy_value(value))

    def _class_of(self, layer: Any) -> Any:
        if id(layer) in self.adapted:
            return mixed_class(AdaptedBatchNorm, type(layer))
        if isinstance(layer, keras.layers.TimeDistributed) and any(
            id(inner) in self.adapted for _, inner in walk_layers(layer)
        ):
            return mixed_class(FoldedTimeDistributed, type(layer))
        return type(layer)

    def _copy_value(self, value: Any) -> Any:  # noqa: PLR0911 (one for each type)
        """Copy what an attribute holds, as far as layers and variables are in it.

        Not by keras.tree, which sorts the keys of a dict that Keras tracks: a model that runs through its layers in
        order would run through them in another.
        """
        if isinstance(value, keras.layers.Layer | keras.Variable | keras.random.SeedGenerator):
            return self.clone(value)
        if isinstance(value, types.MethodType):
            owner, name = self._copy_value(value.__self__), value.__name__
            if getattr(value.__self__, name, None) == value:  # an adapted layer has its own of this name
                return getattr(owner, name)
            return types.MethodType(value.__func__, owner)
        if isinstance(value, functools.partial):
            keywords = {key: self._copy_value(part) for key, part in value.keywords.items()}
            return functools.partial(self._copy_value(value.func), *map(self._copy_value, value.args), **keywords)
        if isinstance(value, dict):
            return {key: self._copy_value(part) for key, part in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*(self._copy_value(part) for part in value))
        if isinstance(value, list | tuple | set):
            kind = next(kind for kind in (list, tuple, set) if isinstance(value, kind))
            return kind(self._copy_value(part) for part in value)
        return value


def _copy_input(tensor: Any) -> Any:
    """Return an input like this one, of a graph of its own."""
    return keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype, name=tensor.name)


def _copy_operation(operation: Any) -> Any:
    """Copy a bare operation (x * 2.0), which has no state but its place in the graph.

    Not by copy.copy, for which Keras would save and load it: slow, and impossible for operations of a user's own.
    """
    copied: Any = object.__new__(type(operation))
    vars(copied).update(vars(operation))
    copied._inbound_nodes, copied._outbound_nodes = [], []
    return copied


def _any_batch(shape: Any) -> Any:
    """Forget the batch size that a layer was built with, which the clone's is not."""
    if isinstance(shape, tuple) and shape and all(size is None or isinstance(size, int) for size in shape):
        return (None, *shape[1:])
    return shape
