"""A copy of a model's layers, of the same classes, that computes with the same variables or only reads them."""

from __future__ import annotations

import copy
import functools
import types
from typing import Any

import keras
import numpy as np
from keras import ops
from keras.src.backend.common.stateless_scope import get_stateless_scope, in_stateless_scope
from keras.src.models import Functional, Sequential
from keras.src.trainers.trainer import Trainer

from sita_adapters.errors import ModelError, SharedWeightsError
from sita_adapters.state import thread

from .batchnorm import AdaptedBatchNorm, FoldedTimeDistributed, mixed_class
from .inspection import own_methods, walk
from .ops import ENGINE, detach

_KEPT = (
    # What a layer notes of its `call`. An adapted class's own says (*args, **kwargs), from which Keras learns nothing.
    *("_call_signature", "call_signature_parameters"),
    *("_call_has_training_arg", "_call_has_mask_arg", "_call_has_context_arg"),
    # What it was made of, and of what shape: needed to save it.
    *("_auto_config", "_build_shapes_dict", "built", "_path"),
    # What inputs it takes, and what it does with them before `call`.
    *("_input_spec", "_supports_masking", "_convert_input_args"),
)
"""Of what `Layer.__init__` sets, all that describes the layer. The rest is its place in a graph and what it tracks."""


READ_ONLY = (
    "The weights of an adapted model are the source model's, which it only reads. Try: load them into the source "
    "model, or into sita.unwrap(adapted), which shares them. The adapted model sees the new values."
)


class Cloner:
    """Makes one clone of every layer and variable of a model, however often it is met.

    `adapted` has, by their ids, the names of the layers that blend their statistics; `shared` collects the variables
    that read the source's. Without these, the clone is a plain model with the same variables.
    """

    norm: type = AdaptedBatchNorm
    """The mixin of the layers in `adapted`."""

    def __init__(self, adapted: dict[int, str] | None = None, shared: dict[int, SharedVariable] | None = None) -> None:
        self.adapted, self.shared = adapted or {}, shared
        self.made: dict[int, Any] = {}

    def clone(self, layer: Any) -> Any:
        """Return the clone of a layer, model, bare operation, variable or source of random numbers."""
        key = id(layer)
        if key not in self.made:
            if isinstance(layer, Functional | Sequential):
                self.made[key] = self._clone_graph(layer)
            elif isinstance(layer, keras.layers.Layer):
                self._clone_layer(layer)
            elif isinstance(layer, keras.Variable):
                self.made[key] = layer if self.shared is None else self.shared.setdefault(key, SharedVariable(layer))
            elif isinstance(layer, keras.random.SeedGenerator):  # its own: to draw from the source's would change it
                self.made[key] = type(layer).from_config(layer.get_config())
            else:  # a bare operation. For copy.copy, Keras would save and load it, which a user's own may not support
                self.made[key] = object.__new__(type(layer))
                vars(self.made[key]).update({**vars(layer), "_inbound_nodes": [], "_outbound_nodes": []})
        return self.made[key]

    def _clone_graph(self, model: Any) -> Any:
        """Return the same graph of cloned layers, not compiled as Keras' own clone_model would be."""
        if own := own_methods(model, ("call", "__call__")):
            raise ModelError(
                f"{type(model).__name__} is a functional model with a `{own[0]}` of its own, which cloning would lose. "
                "Try: its plain graph, keras.Model(part.input, part.output), with what that method does around it; or "
                "hold the graph as an attribute of a subclass of keras.Model."
            )
        if isinstance(model, Sequential):
            inputs = map(_copy_input, model.inputs) if model._functional else ()  # one for training only has none yet
            new = keras.Sequential([*inputs, *map(self.clone, model.layers)], name=model.name)
        else:
            inputs = keras.tree.map_structure(_copy_input, model._inputs_struct)
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
        if id(layer) in self.adapted:
            new.sita_name = self.adapted[id(layer)]
        elif hasattr(layer, "adapt") and not layer._layers and not own_methods(layer, ("adapt", "call")):
            # A preprocessing layer (Normalization) computes with tensors that its `adapt` and a load replace. The
            # source's own `call` reads the present ones, where a copy would keep those of today.
            new.call = layer.call
        order = {id(self.clone(child)): position for position, child in enumerate(layer._layers)}
        new._layers.sort(key=lambda child: order.get(id(child), len(order)))
        new._post_build()
        new._lock_state()

    def _class_of(self, layer: Any) -> Any:
        if id(layer) in self.adapted:
            return mixed_class(self.norm, type(layer))
        inside = walk(layer) if isinstance(layer, keras.layers.TimeDistributed) else ()
        folds = any(id(inner) in self.adapted for _, inner in inside)
        return mixed_class(FoldedTimeDistributed, type(layer)) if folds else type(layer)

    def _copy_attributes(self, layer: Any, new: Any) -> None:
        set_by_keras = {*vars(new), "_torch_params"}  # the latter made again from a layer's variables, on torch
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

    def _copy_value(self, value: Any) -> Any:  # noqa: PLR0911 (one for each type)
        """Copy what an attribute holds, as far as layers and variables are in it, and keep the order of dicts."""
        if isinstance(value, keras.layers.Layer | keras.Variable | keras.random.SeedGenerator):
            return self.clone(value)
        if isinstance(value, types.MethodType):
            owner, name = self._copy_value(value.__self__), value.__name__
            if getattr(value.__self__, name, None) == value:  # an adapted layer has its own of this name
                return getattr(owner, name)
            return types.MethodType(value.__func__, owner)
        if isinstance(value, functools.partial):
            function, *args = map(self._copy_value, (value.func, *value.args))
            return functools.partial(function, *args, **self._copy_value(value.keywords))
        if isinstance(value, dict):
            return {key: self._copy_value(part) for key, part in value.items()}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return type(value)(*map(self._copy_value, value))
        for kind in (list, tuple, set):  # Keras holds them in subclasses
            if isinstance(value, kind):
                return kind(map(self._copy_value, value))
        return value


def _copy_input(tensor: Any) -> Any:
    """Return an input like this one, of a graph of its own."""
    return keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype, name=tensor.name)


_OPAQUE = ("TorchModuleWrapper", "FlaxLayer", "JaxLayer", "TFSMLayer")
"""Keras layers that run another framework's model, in which BatchNorm layers cannot be adapted."""


class Clones:
    """The source model and its clones, where no tracker of Keras looks for layers.

    `adapted` has, by their ids, the names of the layers that blend their statistics.
    """

    def __init__(self, source: keras.Model, adapted: dict[int, str]) -> None:
        self.source, self.adapted = source, adapted
        self.shared: dict[int, SharedVariable] = {}
        self.clone = self.make_clone()
        self.weights = [id(weight) for weight in source.weights]
        self.opaque = [path for path, layer in walk(source) if type(layer).__name__ in _OPAQUE]

    def make_clone(self) -> keras.Model:
        """Return a clone whose chosen layers blend."""
        return Cloner(self.adapted, self.shared).clone(self.source)

    @functools.cached_property
    def plain(self) -> keras.Model:
        """A clone without adapted layers."""
        return Cloner({}, self.shared).clone(self.source)


class SharedVariable(keras.Variable):
    """Reads a variable of the source model, and refuses other values.

    On TensorFlow and torch it uses the source's memory. On JAX it keeps a copy, since Keras gives a model's arrays away
    to the functions that it compiles (`donate_argnums`), and copies again when the source has another array.
    """

    def __init__(self, source: Any) -> None:
        # Not by Keras' constructor, which would make a value. (TensorFlow's bookkeeping starts with _self_.)
        self.__dict__.update({k: v for k, v in vars(source).items() if k != "_value" and not k.startswith("_self_")})
        self.source, self._trainable = source, False
        self._copied: Any = None
        self._copy: Any = None

    @property
    def value(self) -> Any:
        """The source's value; in a scope that computes with other values (training, on JAX), its value there."""
        if in_stateless_scope():
            # Not by the scope's own method, which the probe's scope overrides to see what is read.
            present = keras.StatelessScope.get_current_value(get_stateless_scope(), self.source)
            if present is not None:
                return self._maybe_autocast(present)
        return keras.Variable.value.fget(self)

    @property
    def _value(self) -> Any:
        """The source's value, where Keras looks for a variable's own."""
        value = self.source._value
        if ENGINE == "tensorflow":
            return value
        if value is None and not in_stateless_scope():
            raise ModelError(
                "The source model trains right now, and Keras has its weights. Expected a call between its epochs. "
                "Try: on_epoch_end in place of on_train_batch_end."
            )
        if value is None:
            return self._copy
        if value is not self._copied or self._is_taken():
            self._copied, self._copy = value, detach(value)
        return self._copy

    @_value.setter
    def _value(self, value: None) -> None:
        """Let Keras on JAX take the copy, as it does with every variable while it predicts."""
        self._copy = None

    def assign(self, value: Any) -> Any:
        """Refuse other values. What Keras on JAX took, it may give back."""
        if in_stateless_scope() or thread.context is not None:
            raise ModelError(
                f"The model writes to its variable {self.path!r} while it predicts, so its answers would depend on "
                "earlier calls. Try: move what it counts or records out of `call`, or do it with training=True only."
            )
        if value is None or (value is not self._copy and not (self._is_taken() and hasattr(value, "is_deleted"))):
            if value is None or not np.array_equal(ops.convert_to_numpy(value), ops.convert_to_numpy(self)):
                raise SharedWeightsError(f"{self.path!r}: {READ_ONLY}")
            return value  # what it has: a model around an adapted one restores its weights
        self._copy = value
        return value

    _direct_assign = _restore_from_tensors = assign  # the latter for a checkpoint of TensorFlow

    def _is_taken(self) -> bool:
        """Whether Keras on JAX has the copy: it took it out of the variable, or gave the array away."""
        taken = self._copied is not None and self._copy is None
        return taken or (hasattr(self._copy, "is_deleted") and bool(self._copy.is_deleted()))
