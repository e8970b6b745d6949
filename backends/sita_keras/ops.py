"""The tensors of Keras' backends as the core's arrays."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras import ops

from sita_adapters.engine import Answer
from sita_adapters.ops import Ops, SymbolicError

ENGINE = keras.backend.backend()
"""What Keras computes with in this process: "tensorflow", "jax" or "torch"."""

if ENGINE == "tensorflow":
    import tensorflow as tf
elif ENGINE == "jax":
    import jax
    import jax.extend.core
else:
    import torch


class KerasOps(Ops, functions=ops):
    """Array operations on the tensors of Keras' backend."""

    def take(self, x: Any, indices: Any, axis: int) -> Any:
        """Return entries along an axis; on torch, by what its exporter to ONNX knows."""
        if ENGINE == "torch" and not isinstance(x, keras.KerasTensor):
            return x.index_select(axis, indices)
        return ops.take(x, indices, axis=axis)

    def is_array(self, value: Any) -> bool:
        """Whether this is a tensor, with values or without, or an array as `predict` returns it."""
        return bool(ops.is_tensor(value)) or isinstance(value, keras.KerasTensor | np.ndarray)

    def is_float(self, array: Any) -> bool:
        return bool(keras.backend.is_float_dtype(keras.backend.standardize_dtype(array.dtype)))

    def shape(self, array: Any) -> Sequence[Any]:
        return ops.shape(array)  # type: ignore[no-any-return]

    def sizes(self, array: Any) -> list[Any]:
        """Return all sizes but the first. If they are known, a graph need not compute them: that is five nodes each."""
        return [*(self.shape(array) if None in array.shape[1:] else array.shape)[1:]]

    def positions(self, array: Any, channel_axis: int) -> Any:
        sizes = self.sizes(array)
        del sizes[channel_axis % len(array.shape) - 1]
        known = all(isinstance(size, int) for size in sizes)
        return math.prod(sizes if known else [ops.cast(size, "float32") for size in sizes])

    def is_symbol(self, size: Any) -> bool:
        return not isinstance(size, int)

    def at_least_one(self, size: Any) -> Any:
        """Return a size that can be divided by. (Of the last batch, a replica of TensorFlow's may get no image.)"""
        return size if ENGINE != "tensorflow" or isinstance(size, int) else ops.maximum(size, 1)

    def is_traced(self, array: Any) -> bool:
        if isinstance(array, keras.KerasTensor):
            return True
        if ENGINE == "tensorflow":
            return bool(tf.is_tensor(array) and tf.is_symbolic_tensor(array))
        if ENGINE == "jax":
            return isinstance(array, jax.core.Tracer)
        compiled = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
        return compiled or getattr(getattr(array, "device", None), "type", None) == "meta"

    def constant(self, values: Any, like: Any) -> Any:
        return ops.convert_to_tensor(values, dtype=like.dtype)

    def indices(self, values: Any, like: Any) -> Any:
        return ops.convert_to_tensor(values, dtype="int32")

    def cast(self, array: Any, like: Any) -> Any:
        return ops.cast(array, like.dtype)

    def precise(self, array: Any) -> Any:
        return ops.cast(array, keras.backend.result_type(array.dtype, "float32"))

    def copy(self, array: Any) -> Any:
        return array  # nobody can write to it

    def concat(self, arrays: Sequence[Any], axis: int) -> Any:
        return ops.concatenate(list(arrays), axis=axis)

    def repeat_rows(self, array: Any, times: int) -> Any:
        return ops.repeat(array, times, axis=0)

    def for_every_image(self, values: Any, like: Any) -> Any:
        return ops.zeros_like(like if like.shape[1] == 1 else like[:, :1]) + values

    def to_numpy(self, array: Any) -> np.ndarray:
        if self.is_traced(array):
            raise SymbolicError
        values = np.asarray(ops.convert_to_numpy(array))
        return values.astype(np.float32) if values.dtype.kind == "V" else values  # bfloat16, which numpy lacks

    def map_batches(self, function: Callable[[list[Any]], Any], batch: list[Any], size: int) -> list[Any]:
        """Call a function on at most `size` images at a time; in a graph, on one after the other."""
        (images,) = batch
        if not self.is_traced(images):
            return super().map_batches(function, batch, size)
        answers: list[Answer] = []

        def answer_one(image: Any) -> list[Any]:
            answers.append(function([image[None]]))
            pairs = zip(answers[-1].arrays, answers[-1].layout.axes, strict=True)
            return [array if axis is None else array[0] for array, axis in pairs]

        mapped = _map_in_order(answer_one, images)
        pairs = zip(mapped, answers[-1].layout.axes, strict=True)
        arrays = [array[0] if axis is None else array for array, axis in pairs]
        return [replace(answers[-1], arrays=arrays, weights=None)]  # which belong to the graph of one image

    def after(self, arrays: Sequence[Any]) -> AbstractContextManager[Any]:
        """Make TensorFlow, which runs what it can side by side, wait for these."""
        if ENGINE != "tensorflow" or not arrays:
            return contextlib.nullcontext()
        return tf.control_dependencies([array for array in arrays if tf.is_tensor(array)])  # type: ignore[no-any-return]


def runs_channels_first() -> bool:
    """Whether convolutions can have their channels first: TensorFlow's only on a GPU."""
    return ENGINE != "tensorflow" or bool(tf.config.list_physical_devices("GPU"))


def current_trace() -> Any:
    """Return what traces operations just now: a graph of TensorFlow, a trace of JAX, a level of vmap on torch."""
    if ENGINE == "tensorflow":
        return tf.compat.v1.get_default_graph()
    if ENGINE == "jax":
        return jax.extend.core.get_opaque_trace_state()  # type: ignore[no-untyped-call]
    return torch._C._functorch.maybe_current_level()


def detach(value: Any) -> Any:
    """Return an array that Keras may take: of torch, the same memory without gradients; of JAX, a copy."""
    if ENGINE == "torch":
        return torch.nn.Parameter(value.detach(), requires_grad=False)
    with jax.ensure_compile_time_eval():  # whatever Keras traces around this
        return value.copy()


def _map_in_order(function: Callable[[Any], list[Any]], images: Any) -> list[Any]:
    """Map a function over the images, strictly one after the other."""
    if ENGINE != "tensorflow":
        return ops.map(function, images)  # type: ignore[no-any-return]
    # Keras' own map leaves it to TensorFlow to run ten at a time, which would not keep memory flat.
    traced = tf.function(function).get_concrete_function(tf.TensorSpec(images.shape[1:], images.dtype))
    signature = keras.tree.map_structure(lambda one: tf.TensorSpec(one.shape, one.dtype), traced.structured_outputs)
    return tf.map_fn(function, images, fn_output_signature=signature, parallel_iterations=1)  # type: ignore[no-any-return]


KERAS = KerasOps()
