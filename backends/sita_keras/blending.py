"""Layers of the source's own classes that do more: subclasses made on the spot, so that a class's own `call` stays."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from sita_adapters.errors import BypassError, InputError
from sita_adapters.statistics import blend, pool, rewriting

from .arrays import KERAS
from .calls import Call, running
from .training import refuse_training


class Blending:
    """Mixin before a BatchNormalization class: rewrites the input, so that the layer itself puts out the blend."""

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Normalise with the blended statistics."""
        layer: Any = self
        if kwargs.get("training"):
            raise refuse_training(f"The layer {layer.name!r} of an adapted model")
        if layer._call_has_training_arg:
            kwargs["training"] = False
        if running.call is not None and running.call.watch is not None:
            running.call.watch(layer, inputs)
        # While Keras works out shapes it calls layers with made-up batch sizes; there is nothing to blend then.
        if not in_symbolic_scope():
            inputs = rewrite(inputs, layer, _current_call(layer))
        return super().call(inputs, *args, **kwargs)  # type: ignore[misc]


class Folding:
    """Mixin before TimeDistributed: all time steps in one batch (N·T, …), so that time counts as space."""

    def call(self, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        """Run the layer once, on every step."""
        wrapper: Any = self
        if mask is not None:  # steps that do not count have to be told apart, one by one
            return super().call(inputs, training=training, mask=mask)  # type: ignore[misc]
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


def _current_call(layer: Any) -> Call:
    if running.call is None:
        raise BypassError(
            f"The adapted layer {layer.name!r} ran outside a call of the adapted model, where there are no views to "
            "take statistics from. Remedy: call the adapted model itself, or use sita.unwrap(adapted)."
        )
    return running.call


def rewrite(x: Any, layer: Any, call: Call) -> Any:
    """Return x · scale + shift, which the untouched layer turns into the blended normalisation of x.

    x is (B·R·T, …): T is 1, or what the model folds into its batch (time in TimeDistributed), which counts as space.
    """
    if not call.blends:
        return x
    axis = layer.axis % len(x.shape)
    channels = x.shape[axis]
    precise = ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
    space = [a for a in range(1, len(x.shape)) if a != axis]
    means = ops.mean(precise, axis=space, keepdims=True) if space else precise
    variances = ops.mean(ops.square(precise - means), axis=space) if space else precise * 0
    means = ops.reshape(means, (-1, channels))
    folded = _folded(x, call, layer)
    if folded is None:
        shape: tuple[Any, ...] = (-1, call.rows, channels)
        means, variances = ops.reshape(means, shape), ops.reshape(variances, shape)
    else:
        shape = (-1, call.rows, folded, channels)
        means, variances = pool(ops.reshape(means, shape), ops.reshape(variances, shape), axis=2, xp=ops)
    if call.shared:
        each_image = ops.zeros_like(means)
        means, variances = pool(means, variances, axis=0, xp=ops)
        means, variances = means[None], variances[None]
    m_s, v_s = (ops.cast(value, precise.dtype) for value in (layer.moving_mean, layer.moving_variance))
    mean, variance = blend(
        means,
        variances,
        weights=ops.cast(call.weights, precise.dtype),
        priors=ops.cast(call.priors, precise.dtype),
        source_mean=m_s,
        source_variance=v_s,
        xp=ops,
    )
    if call.shared:
        mean, variance = mean + each_image, variance + each_image
    scale, shift = rewriting(mean, variance, source_mean=m_s, source_variance=v_s, epsilon=layer.epsilon, xp=KERAS.xp)
    column = [1] * len(x.shape)
    column[0], column[axis] = -1, channels

    def per_row(values: Any) -> Any:
        if folded is not None:
            values = ops.repeat(ops.reshape(values, (-1, channels)), folded, axis=0)
        return ops.reshape(values, column)

    return ops.cast(precise * per_row(scale) + per_row(shift), x.dtype)


def _folded(x: Any, call: Call, layer: Any) -> Any:
    """Return T where the model folds something into the batch before this layer, and None where it does not."""
    here, leading = ops.shape(x)[0], call.leading
    if isinstance(here, int) and isinstance(leading, int):
        check_fold(here, leading, layer.name)
        return None if here == leading else here // leading
    return None if here is leading else here // leading


def check_fold(here: int, leading: int, name: str) -> None:
    """Raise unless a layer that sees this many leading entries can have a whole number of them for every row."""
    if here == 0 or here % leading:
        raise InputError(
            f"Layer {name!r} received {here} leading entries for {leading} rows: the model folds its batch in a way "
            f"that cannot be followed. Expected a multiple of {leading}. Remedy: leave the layer out with layers=."
        )
