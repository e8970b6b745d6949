"""A Keras model as a function of its weights, whose BatchNorm statistics a method chooses, and the gradients of a loss.

`gradient_of` and `compiled` hold all that depends on Keras' backend.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from sita_adapters.errors import InputError, ModelError
from sita_keras.clone import Cloner
from sita_keras.inspection import arrange, check_training, find_image, find_layers, own_methods, walk
from sita_keras.ops import ENGINE, KERAS

if ENGINE == "tensorflow":
    import tensorflow as tf
elif ENGINE == "jax":
    import jax
else:
    import torch

Values = list[Any]
"""The values of several variables."""


@dataclass(frozen=True)
class Statistics:
    """BatchNorm layers normalize with (1 − share) of the source's statistics and `share` of their input's.

    - `unbiased`: the variance of n values is divided by n − 1.
    - `constant`: no gradient flows through the input's statistics.
    """

    share: float
    unbiased: bool = False
    constant: bool = False


SOURCE = Statistics(share=0.0)
OWN = Statistics(share=1.0)

Measured = dict[str, list[tuple[Any, Any]]]
"""What layers measured in a call, by their paths: mean and unbiased variance, each time that the layer ran."""

_call: ContextVar[tuple[Statistics, Measured]] = ContextVar("call", default=(SOURCE, {}))
"""Of the call that runs. The model's own code lies between the call and its layers."""


class BlendedBatchNorm:
    """Mixin before BatchNormalization: γ · (x − m) / sqrt(v + ε) + β with the statistics of the call that runs."""

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Normalize the whole batch with the same statistics."""
        layer: Any = self
        statistics, measured = _call.get()
        if mask is not None:
            raise InputError(
                f"Layer {layer.name!r} received a mask. Expected layers without. Try: mask after the layer."
            )
        if not statistics.share:
            return super().call(inputs, training=False)  # type: ignore[misc]
        x = KERAS.precise(inputs)
        column = [1] * len(x.shape)
        column[layer.axis] = x.shape[layer.axis]
        own = _measure(x, layer, statistics, measured)
        source = [ops.reshape(KERAS.cast(each, x), column) for each in (layer.moving_mean, layer.moving_variance)]
        pairs = zip(source, own, strict=True)
        mean, variance = own if statistics.share == 1 else (s + statistics.share * (t - s) for s, t in pairs)
        x = (x - mean) / ops.sqrt(variance + layer.epsilon)
        x = x * ops.reshape(KERAS.cast(layer.gamma, x), column) if layer.scale else x
        x = x + ops.reshape(KERAS.cast(layer.beta, x), column) if layer.center else x
        return ops.cast(x, layer.compute_dtype)


def _measure(x: Any, layer: Any, statistics: Statistics, measured: Measured) -> tuple[Any, Any]:
    """Return mean and variance of each channel over everything else, with all axes kept, and note both."""
    axes = [axis for axis in range(len(x.shape)) if axis != layer.axis % len(x.shape)]
    count = math.prod(ops.shape(x)[axis] for axis in axes)
    if isinstance(count, int) and count == 1:
        raise InputError("A BatchNorm layer receives one value per channel. Try: larger images, or leave it out.")
    mean = ops.mean(x, axis=axes, keepdims=True)
    biased = ops.mean(ops.square(x - mean), axis=axes, keepdims=True)
    size = ops.cast(count, x.dtype)
    unbiased = biased * (size / (size - 1))
    flat = (ops.stop_gradient(ops.reshape(each, (-1,))) for each in (mean, unbiased))
    measured.setdefault(layer.sita_name, []).append(tuple(flat))
    variance = unbiased if statistics.unbiased else biased
    return (ops.stop_gradient(mean), ops.stop_gradient(variance)) if statistics.constant else (mean, variance)


class _BlendingCloner(Cloner):
    norm = BlendedBatchNorm


class ModelCopy:
    """A copy of a Keras model as a function of its weights; `start` and `fixed` are their values when it was made.

    Its layers compute with values that each call gives them: no variable is ever written to.
    """

    def __init__(self, model: keras.Model) -> None:
        find_image(model)  # raises unless the model takes images alone, by its own `call`
        check_training(model)
        norms = find_layers(model)
        if own := [f"{type(layer).__name__} ({name})" for name, layer in norms.items() if own_methods(layer, ["call"])]:
            raise ModelError(
                f"Expected BatchNormalization layers with the `call` of Keras; received {', '.join(own)}. Try: plain "
                "BatchNormalization layers, and another layer for what that `call` does besides."
            )
        self.cloner = _BlendingCloner({id(layer): name for name, layer in norms.items()})
        self.body = self.cloner.clone(model)
        self.graphs = [self.body]
        self.norms = list(find_layers(self.body).values())
        self.train_on(())

    def branch(self, head: Any, features: str) -> keras.Model:
        """Return the graph from the images to a copy of `head`, which takes the output of the layer `features`."""
        self.cloner.adapted.update({id(layer): f"{head.name}/{name}" for name, layer in find_layers(head).items()})
        self.graphs.append(keras.Model(self.body.inputs, self.cloner.clone(head)(self.body.get_layer(features).output)))
        return self.graphs[-1]

    def parameters(self, layers: Iterable[Any] | None = None) -> list[keras.Variable]:
        """Return the variables that training would change, frozen ones too; of these layers, or of the model's."""
        chosen = [layer for _, layer in walk(self.body)] if layers is None else layers
        # Private, because in `trainable_variables` the frozen ones are missing.
        found = (each for layer in chosen for each in getattr(layer, "_trainable_variables", ()))
        return list({id(each): each for each in found if _is_float(each)}.values())

    def train_on(self, variables: Sequence[keras.Variable]) -> None:
        """Set which variables a method trains, and keep the values of all."""
        chosen = {id(each) for each in variables}
        every = {id(each): each for graph in self.graphs for each in graph.weights if _is_float(each)}
        self.trained = list(variables)
        self.others = [each for key, each in every.items() if key not in chosen]
        self.start, self.fixed = _read(self.trained), _read(self.others)

    def run(
        self, values: Values, fixed: Values, images: Any, statistics: Statistics, graph: Any = None
    ) -> tuple[Any, Measured]:
        """Return the output for a batch of images, with these values of the trained and the other variables.

        Beside it, what the layers measured. `graph` is a branch to run in place of the model.
        """
        graph, measured = graph or self.body, Measured()
        given = zip([*self.trained, *self.others], [*values, *fixed], strict=True)
        mode = {"training": False} if graph._call_has_training_arg else {}
        outer = _call.set((statistics, measured))
        try:
            with keras.StatelessScope(state_mapping=list(given)):
                return graph(arrange(graph, images), **mode), measured
        finally:
            _call.reset(outer)


def _is_float(variable: keras.Variable) -> bool:
    return KERAS.is_float(variable)


def _read(variables: Sequence[keras.Variable]) -> Values:
    """Return copies of the variables' values."""
    arrays = [np.array(ops.convert_to_numpy(each)) for each in variables]
    pairs = zip(arrays, variables, strict=True)
    return [ops.convert_to_tensor(array, dtype=each.dtype) for array, each in pairs]


def gradient_of(loss: Callable[..., Any]) -> Callable[..., tuple[Values, Any]]:
    """Return a function that returns the gradient of loss(values, …)[0] with respect to `values`, and loss(…)[1].

    A value that the loss does not depend on has a gradient of 0.
    """
    if ENGINE == "jax":
        return jax.jit(jax.grad(loss, has_aux=True))
    return _gradient_of_tensorflow(loss) if ENGINE == "tensorflow" else _gradient_of_torch(loss)


def _gradient_of_tensorflow(loss: Callable[..., Any]) -> Callable[..., tuple[Values, Any]]:
    def gradient(values: Values, *others: Any) -> tuple[Values, Any]:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(values)
            value, beside = loss(values, *others)
        return tape.gradient(value, values, unconnected_gradients="zero"), beside

    return tf.function(gradient, autograph=False)  # type: ignore[no-any-return]


def _gradient_of_torch(loss: Callable[..., Any]) -> Callable[..., tuple[Values, Any]]:
    def gradient(values: Values, *others: Any) -> tuple[Values, Any]:
        with torch.enable_grad():
            leaves = [each.detach().requires_grad_() for each in values]
            value, beside = loss(leaves, *others)
            return list(torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)), beside

    return gradient


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors, compiled where Keras' backend compiles, and without gradients."""
    if ENGINE == "jax":
        return jax.jit(function)
    return tf.function(function, autograph=False) if ENGINE == "tensorflow" else torch.no_grad()(function)


def outside_inference_mode() -> AbstractContextManager[Any]:
    """Return a context whose tensors can take part in gradients: those of torch's inference mode cannot."""
    return torch.inference_mode(False) if ENGINE == "torch" else contextlib.nullcontext()
