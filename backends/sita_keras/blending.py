"""BatchNormalization that blends its statistics: any class of them, by a subclass made on the spot."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from sita_adapters.errors import BypassError, InputError, SharedWeightsError
from sita_adapters.statistics import blend, pool, rewriting

from .arrays import KERAS
from .calls import Call, running


class Blending:
    """Mixin before a BatchNormalization class: rewrites the input, so that the layer itself puts out the blend."""

    def call(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Normalise with the blended statistics."""
        if kwargs.get("training"):
            raise SharedWeightsError(
                f"The layer {self.name!r} of an adapted model was called with training=True, which would overwrite the "  # type: ignore[attr-defined]
                "statistics that it shares with the source model. Remedy: train the source model."
            )
        kwargs["training"] = False
        # While Keras works out shapes it calls layers with made-up batch sizes; there is nothing to blend then.
        if not in_symbolic_scope():
            inputs = rewrite(inputs, self, _current_call(self))
        return super().call(inputs, *args, **kwargs)  # type: ignore[misc]


_classes: dict[Any, Any] = {}


def blending_class(kind: Any) -> Any:
    """Return the subclass of a BatchNormalization class that blends; its own `call` stays in use."""
    if kind not in _classes:
        _classes[kind] = type(f"Adapted{kind.__name__}", (Blending, kind), {"__module__": __name__})
    return _classes[kind]


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
    if here is leading:
        return None
    if isinstance(here, int) and isinstance(leading, int):
        if here == leading:
            return None
        if here == 0 or here % leading:
            raise InputError(
                f"Layer {layer.name!r} received {here} leading entries for {leading} rows: the model folds its batch "
                "in a way that cannot be followed. Remedy: leave the layer out with layers=."
            )
        return here // leading
    return here // leading
