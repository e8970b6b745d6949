"""A copy of a model's layers, of the same classes, that computes with the same variables or only reads them."""

from __future__ import annotations

import copy
import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import tree
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.models import Functional, Sequential
from keras.src.trainers.trainer import Trainer

from sita_adapters import engine
from sita_adapters.errors import ModelError, SharedWeightsError

from .batchnorm import AdaptedBatchNorm, FoldedTimeDistributed, mixed_class
from .inspection import own_methods, walk

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

_TORCH_PARAMETERS = "_torch_params"
"""What Keras' torch backend keeps beside that, and makes again from a layer's variables."""


class Cloner:
    """Makes one clone of every layer and variable of a model, however often it is met.

    `adapted` has, by their ids, the names of the layers that blend their statistics; `share` returns what stands for a
    variable in the clone. Without these, the clone is a plain model with the same variables.
    """

    def __init__(self, adapted: Mapping[int, str] | None = None, share: Callable[[Any], Any] | None = None) -> None:
        self.adapted, self.share = adapted or {}, share or (lambda variable: variable)
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
        """Return the same graph of cloned layers, not compiled as Keras' own clone_model would be."""
        if own := own_methods(model, ("call", "__call__")):
            raise ModelError(
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
        if id(layer) in self.adapted:
            new.sita_name = self.adapted[id(layer)]
        elif hasattr(layer, "adapt") and not layer._layers:
            # A preprocessing layer (Normalization) computes with tensors that its `adapt` and a load replace. The
            # source's own `call` reads the present ones, where a copy would keep those of today.
            new.call = layer.call
        order = {id(self.clone(child)): position for position, child in enumerate(layer._layers)}
        new._layers.sort(key=lambda child: order.get(id(child), len(order)))
        new._post_build()
        new._lock_state()

    def _class_of(self, layer: Any) -> Any:
        if id(layer) in self.adapted:
            return mixed_class(AdaptedBatchNorm, type(layer))
        if isinstance(layer, keras.layers.TimeDistributed) and any(
            id(inner) in self.adapted for _, inner in walk(layer)
        ):
            return mixed_class(FoldedTimeDistributed, type(layer))
        return type(layer)

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

    def _copy_value(self, value: Any) -> Any:  # noqa: PLR0911 (one for each type)
        """Copy what an attribute holds, as far as layers and variables are in it.

        Not by keras.tree, which sorts the keys of a dict: a model may run through its layers in their order.
        """
        if isinstance(value, keras.layers.Layer | keras.Variable | keras.random.SeedGenerator):
            return self.clone(value)
        if isinstance(value, types.MethodType):
            owner, name = self._copy_value(value.__self__), value.__name__
            if getattr(value.__self__, name, None) == value:  # an adapted layer has its own of this name
                return getattr(owner, name)
            return types.MethodType(value.__func__, owner)
        if isinstance(value, functools.partial):
            return functools.partial(
                *map(self._copy_value, (value.func, *value.args)), **self._copy_value(value.keywords)
            )
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


def _copy_operation(operation: Any) -> Any:
    """Copy a bare operation. (copy.copy would make Keras save and load it, which a user's own may not support.)"""
    copied: Any = object.__new__(type(operation))
    vars(copied).update(vars(operation))
    copied._inbound_nodes, copied._outbound_nodes = [], []
    return copied


class SharedVariable(keras.Variable):
    """Reads a variable of the source model, and refuses to be written.

    On TensorFlow and torch it uses the source's memory. On JAX it keeps a copy: there, Keras gives a model's arrays
    away to the functions that it compiles (`donate_argnums`), and what was given away is lost to everybody. Arrays of
    JAX never change: a source that has another array was updated, and is copied again.
    """

    def __init__(self, source: Any) -> None:
        # Not by Keras' constructor, which would make a value. (TensorFlow's bookkeeping starts with _self_.)
        described = {name: value for name, value in vars(source).items() if not name.startswith(("_value", "_self_"))}
        self.__dict__.update(described)
        self.source, self._trainable = source, False
        self._copied: Any = None
        self._copy: Any = None

    @property
    def _value(self) -> Any:
        """The source's value, where Keras looks for a variable's own."""
        value = self.source._value
        if keras.backend.backend() == "tensorflow":
            return value
        if value is None:  # the source runs right now, and Keras has its array
            return self._copy
        if value is not self._copied or self._is_taken():
            self._copied, self._copy = value, _copy_array(value)
        return self._copy

    @_value.setter
    def _value(self, value: None) -> None:
        """Let Keras on JAX take the copy, as it does with every variable while it predicts."""
        self._copy = None

    def assign(self, value: Any) -> Any:
        """Refuse. What Keras on JAX took, it may give back."""
        if in_stateless_scope() or engine.running_context() is not None:
            raise ModelError(
                f"The model writes to its variable {self.path!r} while it predicts, so its answers would depend on "
                "earlier calls. Expected a model that only reads its variables. Try: move what it counts or records "
                "out of `call`, or do it with training=True only."
            )
        if value is None or (value is not self._copy and not (self._is_taken() and hasattr(value, "is_deleted"))):
            raise SharedWeightsError(
                f"The variable {self.path!r} is the source model's; an adapted model, or one around it, can only read "
                "it. Try: write to the source model. Its adapted model sees the new values."
            )
        self._copy = value
        return value

    _direct_assign = _restore_from_tensors = assign  # the latter for a checkpoint of TensorFlow

    def _is_taken(self) -> bool:
        """Whether Keras on JAX has the copy: it took it out of the variable, or gave the array away."""
        taken = self._copied is not None and self._copy is None
        return taken or (hasattr(self._copy, "is_deleted") and bool(self._copy.is_deleted()))


def _copy_array(value: Any) -> Any:
    """Return an array of JAX that Keras may take; of torch, the same memory, through which no gradient passes."""
    if keras.backend.backend() == "torch":
        import torch

        return torch.nn.Parameter(value.detach(), requires_grad=False)
    import jax

    with jax.ensure_compile_time_eval():  # whatever Keras traces around this
        return value.copy()
