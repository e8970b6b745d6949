"""An adapted BatchNormalization layer: measure its rows, blend, normalize."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from sita_adapters.errors import InputError
from sita_adapters.layer import LayerCall
from sita_adapters.selection import leave_out
from sita_adapters.state import thread
from sita_adapters.statistics import input_affine, output_affine

from .inspection import refuse_training, walk
from .ops import ENGINE, KERAS, current_trace


class AdaptedBatchNorm:
    """Mixin before a BatchNormalization class, which then returns the blended normalization."""

    sita_name: str
    """The layer's path in the source model."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Normalize with the blended statistics."""
        layer: Any = self
        given = layer._call_signature.bind_partial(*args, **kwargs)
        called_in_training = given.arguments.get("training")
        if layer._call_has_training_arg:
            given.arguments["training"] = False
        if not in_symbolic_scope() and not _runs_in_inner_graph(self.sita_name):  # where only shapes are asked for
            refuse_training(self.sita_name, called_in_training)
            _refuse_mask(given.arguments.get("mask"), layer)
            first = next(iter(given.arguments))
            x = given.arguments[first]
            call = LayerCall(self.sita_name, x)
            _note_invalid(x, call)
            if call.blends and self.is_known():
                return _normalized(x, layer, call)
            if call.blends:
                given.arguments[first] = _rewritten(x, layer, call)
        return super().call(*given.args, **given.kwargs)  # type: ignore[misc]

    def is_known(self) -> bool:
        """Whether this layer is of Keras' own class, whose arithmetic is known."""
        return type(self).__bases__[-1] is keras.layers.BatchNormalization


def _runs_in_inner_graph(name: str) -> bool:
    """Whether a layer runs in another graph than its model, which then raises: what the layer measures would leak."""
    context: Any = thread.context
    if context is None or current_trace() == context.graph.trace:
        return False
    context.graph.inner.append(name)
    return True


class FoldedTimeDistributed:
    """Mixin before TimeDistributed: all time steps in one batch (N·T, …), where time counts as space."""

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Run the layer once, on every step."""
        wrapper: Any = self
        _refuse_mask(mask, wrapper)
        steps, inner = ops.shape(inputs)[1], wrapper.layer
        kwargs = {"training": training} if inner._call_has_training_arg else {}
        outputs = inner.call(ops.reshape(inputs, (-1, *ops.shape(inputs)[2:])), **kwargs)
        return ops.reshape(outputs, (-1, steps, *ops.shape(outputs)[1:]))


def _refuse_mask(mask: Any, layer: Any) -> None:
    context = thread.context
    if mask is not None and context is not None:
        names = [each.sita_name for _, each in walk(layer) if isinstance(each, AdaptedBatchNorm)]
        raise InputError(
            f"Layer {layer.name!r} received a mask; all positions would count the same. Expected layers without masks. "
            f"Try: mask after the layer; or {leave_out(names, context.adaptation.layers)}."
        )


_classes: dict[tuple[Any, Any], Any] = {}


def mixed_class(mixin: Any, kind: Any) -> Any:
    """Return the subclass of a layer's class that has this mixin first; the class's own `call` stays."""
    if (mixin, kind) not in _classes:
        _classes[mixin, kind] = type(f"Adapted{kind.__name__}", (mixin, kind), {"__module__": __name__})
    return _classes[mixin, kind]


def _normalized(x: Any, layer: Any, call: LayerCall) -> Any:
    """Return γ · (x − m) / sqrt(v + ε) + β with the blended statistics, which is all that Keras' own class does."""
    mean, variance = _blend(x, layer, call)
    gamma = KERAS.cast(layer.gamma, mean) if layer.scale else 1.0
    beta = KERAS.cast(layer.beta, mean) if layer.center else 0.0
    scale, shift = output_affine(mean, variance, gamma=gamma, beta=beta, epsilon=layer.epsilon, ops=KERAS)
    return ops.cast(_affine(x, layer.axis, scale, shift), layer.compute_dtype)


def _rewritten(x: Any, layer: Any, call: LayerCall) -> Any:
    """Return x · scale + shift, which the untouched layer turns into the blended normalization of x."""
    mean, variance = _blend(x, layer, call)
    m_s, v_s = KERAS.cast(layer.moving_mean, mean), KERAS.cast(layer.moving_variance, mean)
    scale, shift = input_affine(mean, variance, source_mean=m_s, source_variance=v_s, epsilon=layer.epsilon, ops=KERAS)
    rewritten = _affine(x, layer.axis, scale, shift)
    return KERAS.cast(rewritten, x) if KERAS.is_float(x) else rewritten


def _note_invalid(x: Any, call: LayerCall) -> None:
    """On JAX, note which entries of the first layer's input are not finite: those of the source's rows, too."""
    context: Any = call.context
    if ENGINE == "jax" and not context.graph.invalid:
        finite = ops.isfinite(KERAS.precise(x))
        context.graph.invalid.append(ops.any(ops.logical_not(finite), axis=range(1, len(x.shape))))


def _blend(x: Any, layer: Any, call: LayerCall) -> tuple[Any, Any]:
    """Return the statistics that each entry of x is normalized with, (…, C)."""
    source, positions = (layer.moving_mean, layer.moving_variance), KERAS.positions(x, layer.axis)
    mean, variance = call.blend(measure(x, layer.axis, call), source, layer.epsilon, positions)
    if ENGINE == "jax":
        context: Any = call.context
        context.graph.invalid.append(ops.any(ops.logical_not(ops.isfinite(mean + variance)), axis=-1))
    return mean, variance


def measure(x: Any, axis: int, call: LayerCall) -> tuple[Any, Any]:
    """Return mean and biased variance (B, entries − first, C) of the measured entries, in float32 or better.

    Two passes, the mean and then the mean square of what is left, are right to 5e-7 at mean/σ = 300 on every backend of
    Keras; `ops.moments` is not.
    """
    n, first = call.entries, call.first
    rows = ops.reshape(KERAS.precise(x), (-1, n, *KERAS.sizes(x)))
    rows = rows[:, first:] if first else rows
    channels = axis % len(x.shape) + 1
    space = [each for each in range(2, len(rows.shape)) if each != channels]
    if not space:
        return rows, ops.zeros_like(rows)
    mean = ops.mean(rows, axis=space, keepdims=True)
    variance = ops.mean(ops.square(rows - mean), axis=space)
    return ops.reshape(mean, (-1, n - first, x.shape[axis])), variance  # not by squeeze, which ONNX lacks


def _affine(x: Any, axis: int, scale: Any, shift: Any) -> Any:
    """Return x · scale + shift, both (…, C), one for each entry of x."""
    column = [1] * len(x.shape)
    column[0], column[axis] = -1, x.shape[axis]
    return KERAS.precise(x) * ops.reshape(scale, column) + ops.reshape(shift, column)
