"""Layers of the source's own classes that do more: subclasses made on the spot, so that a class's own `call` stays."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from sita_adapters.errors import BypassError, InputError
from sita_adapters.statistics import blend, normalising, pool, rewriting

from .arrays import KERAS
from .calls import Call, running
from .training import refuse_training


class Blending:
    """Mixin before a BatchNormalization class, which puts out the blend.

    It rewrites the input, so that the layer itself does the rest. Of Keras' own class all is known: one multiply-add
    does the whole.
    """

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
            call = _current_call(layer)
            if call.blends and type(layer).__bases__[-1] is keras.layers.BatchNormalization:
                return normalise(inputs, layer, call)
            inputs = rewrite(inputs, layer, call)
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
    """Return x · scale + shift, which the untouched layer turns into the blended normalisation of x."""
    if not call.blends:
        return x
    features = _Features(x, layer, call)
    mean, variance = features.blended()
    m_s, v_s = features.source
    scale, shift = rewriting(mean, variance, source_mean=m_s, source_variance=v_s, epsilon=layer.epsilon, xp=KERAS.xp)
    rewritten = features.affine(scale, shift)
    return ops.cast(rewritten, x.dtype) if keras.backend.is_float_dtype(x.dtype) else rewritten


def normalise(x: Any, layer: Any, call: Call) -> Any:
    """Return γ · (x − m) / sqrt(v + ε) + β with the blended statistics, which is all that Keras' own class does."""
    features = _Features(x, layer, call)
    mean, variance = features.blended()
    scale, shift = normalising(
        mean,
        variance,
        gamma=features.like(layer.gamma) if layer.scale else 1.0,
        beta=features.like(layer.beta) if layer.center else 0.0,
        epsilon=layer.epsilon,
        xp=KERAS.xp,
    )
    return ops.cast(features.affine(scale, shift), layer.compute_dtype)


class _Features:
    """Features (B·R·T, …) of a layer: T is 1, or what the model folds into its batch, which counts as space."""

    def __init__(self, x: Any, layer: Any, call: Call) -> None:
        self.x, self.layer, self.call = x, layer, call
        self.axis = layer.axis % len(x.shape)
        self.channels = x.shape[self.axis]
        self.precise = ops.cast(x, keras.backend.result_type(x.dtype, "float32"))
        self.folded = _folded(x, call, layer)
        self.source = tuple(self.like(value) for value in (layer.moving_mean, layer.moving_variance))

    def like(self, values: Any) -> Any:
        """Return values in the precision of what is computed."""
        return ops.cast(values, self.precise.dtype)

    def blended(self) -> tuple[Any, Any]:
        """Return the statistics that every row is normalised with, (B, R, C)."""
        call, folded = self.call, self.folded
        means, variances = self._moments()
        if folded is None:
            shape: tuple[Any, ...] = (-1, call.rows, self.channels)
            means, variances = ops.reshape(means, shape), ops.reshape(variances, shape)
        else:
            shape = (-1, call.rows, folded, self.channels)
            means, variances = pool(ops.reshape(means, shape), ops.reshape(variances, shape), axis=2, xp=ops)
        if call.shared:
            each_image = ops.zeros_like(means)
            means, variances = pool(means, variances, axis=0, xp=ops)
            means, variances = means[None], variances[None]
        mean, variance = blend(
            means,
            variances,
            weights=self.like(call.weights),
            priors=self.like(call.priors),
            source_mean=self.source[0],
            source_variance=self.source[1],
            xp=ops,
        )
        return (mean + each_image, variance + each_image) if call.shared else (mean, variance)

    def _moments(self) -> tuple[Any, Any]:
        """Return mean and biased variance of every row and channel, of (N, C) numbers each."""
        space = [a for a in range(1, len(self.x.shape)) if a != self.axis]
        if not space:
            return self.precise, self.precise * 0
        means = ops.mean(self.precise, axis=space, keepdims=True)
        return means, ops.mean(ops.square(self.precise - means), axis=space)

    def affine(self, scale: Any, shift: Any) -> Any:
        """Return x · scale + shift, both (B, R, C)."""
        column = [1] * len(self.x.shape)
        column[0], column[self.axis] = -1, self.channels

        def per_row(values: Any) -> Any:
            if self.folded is not None:
                values = ops.repeat(ops.reshape(values, (-1, self.channels)), self.folded, axis=0)
            return ops.reshape(values, column)

        return self.precise * per_row(scale) + per_row(shift)


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
