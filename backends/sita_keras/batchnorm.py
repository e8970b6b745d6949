"""What an adapted BatchNormalization layer does: measure its rows, blend, normalize.

Subclasses of the source's own classes, made when they are needed, so that a class's own `call` stays.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from sita_adapters import engine
from sita_adapters.errors import BatchStatisticsError, InputError
from sita_adapters.statistics import input_affine, output_affine

from .moments import Features, measure
from .ops import KERAS


class AdaptedBatchNorm:
    """Mixin before a BatchNormalization class, which then returns the blend.

    It changes the input, so that the layer itself does the rest. Of Keras' own class the arithmetic is known: one
    multiply-add does it all.
    """

    sita_name: str
    """The layer's path in the source model."""

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Normalize with the blended statistics."""
        layer: Any = self
        given = layer._call_signature.bind_partial(*args, **kwargs)
        if given.arguments.get("training"):
            raise BatchStatisticsError(
                f"The layer {self.sita_name!r} is called with training=True, and so normalizes with the statistics of "
                "the batch. Expected BatchNorm layers that use their moving statistics. Try: call it without it."
            )
        if layer._call_has_training_arg:
            given.arguments["training"] = False
        first = next(iter(given.arguments))
        inputs, call = given.arguments[first], engine.running_call()
        # While Keras works out shapes it calls layers with random batch sizes; there is nothing to blend then.
        symbolic = in_symbolic_scope()
        if call is not None or not symbolic:
            call = engine.enter_layer(self.sita_name, inputs, call)
        if call is not None and not symbolic:
            mask = given.arguments.get("mask")
            if mask is not None and None is not inputs.shape[0] != call.entries:
                raise _refuse_mask(f"Layer {self.sita_name!r}, whose batch has more folded in,")
            if call.plan.blends and type(layer).__bases__[-1] is keras.layers.BatchNormalization:
                return _normalize(inputs, mask, layer, call)
            if call.plan.blends:
                given.arguments[first] = _change(inputs, mask, layer, call)
        return super().call(*given.args, **given.kwargs)  # type: ignore[misc]


class FoldedTimeDistributed:
    """Mixin before TimeDistributed: all time steps in one batch (N·T, …), so that time counts as space."""

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Run the layer once, on every step."""
        wrapper: Any = self
        if mask is not None:
            raise _refuse_mask(f"Layer {wrapper.name!r}")
        steps, inner = ops.shape(inputs)[1], wrapper.layer
        kwargs = {"training": training} if inner._call_has_training_arg else {}
        outputs = inner.call(ops.reshape(inputs, (-1, *ops.shape(inputs)[2:])), **kwargs)
        return ops.reshape(outputs, (-1, steps, *ops.shape(outputs)[1:]))


_classes: dict[tuple[Any, Any], Any] = {}


def mixed_class(mixin: Any, kind: Any) -> Any:
    """Return the subclass of a layer's class that has this mixin first."""
    if (mixin, kind) not in _classes:
        _classes[mixin, kind] = type(f"Adapted{kind.__name__}", (mixin, kind), {"__module__": __name__})
    return _classes[mixin, kind]


def _normalize(x: Any, mask: Any, layer: Any, call: Any) -> Any:
    """Return γ · (x − m) / sqrt(v + ε) + β with the blended statistics, which is all that Keras' own class does."""
    features, source, mean, variance = _blend(x, mask, layer, call)
    scale, shift = output_affine(
        mean,
        variance,
        gamma=KERAS.cast(layer.gamma, source[0]) if layer.scale else 1.0,
        beta=KERAS.cast(layer.beta, source[0]) if layer.center else 0.0,
        epsilon=layer.epsilon,
        xp=ops,
    )
    return ops.cast(features.affine(scale, shift), layer.compute_dtype)


def _change(x: Any, mask: Any, layer: Any, call: Any) -> Any:
    """Return x · scale + shift, which the untouched layer turns into the blended normalisation of x."""
    features, source, mean, variance = _blend(x, mask, layer, call)
    scale, shift = input_affine(
        mean, variance, source_mean=source[0], source_variance=source[1], epsilon=layer.epsilon, xp=ops
    )
    changed = features.affine(scale, shift)
    return KERAS.cast(changed, x) if KERAS.is_float(x) else changed


def _blend(x: Any, mask: Any, layer: Any, call: Any) -> tuple[Features, tuple[Any, Any], Any, Any]:
    """Return the features, the source's statistics (C,), and those that each entry is normalized with, (N, C)."""
    entries = KERAS.at_least_one(ops.shape(x)[0])
    features, mean, variance = engine.blend(
        lambda some: measure(x, layer.axis, mask, call.places, some),
        (layer.moving_mean, layer.moving_variance),
        layer.epsilon,
        entries,
        call=call,
        name=layer.sita_name,
    )
    if keras.backend.backend() == "jax":
        call.invalid.append(ops.any(ops.logical_not(ops.isfinite(mean + variance)), axis=-1))
    source = KERAS.cast(layer.moving_mean, mean), KERAS.cast(layer.moving_variance, mean)
    return features, source, mean, variance


def _refuse_mask(what: str) -> InputError:
    return InputError(
        f"{what} received a mask. Expected masks only where an image has one entry in the batch: the parts of an image "
        "would count alike, however much of each is masked. Try: leave the layer out with layers=, or normalize "
        "before the batch is folded."
    )
