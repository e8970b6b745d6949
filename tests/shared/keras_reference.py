"""An independent reference for Keras models: the source model itself, one image at a time, with every BatchNorm of
Keras computed by numpy in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import reference
from keras import ops


def run(model: Any, image: np.ndarray) -> Any:
    """The output of one image, layer by layer."""
    return keras.tree.map_structure(
        lambda one: ops.convert_to_numpy(one).astype(np.float64), model(image[None], training=False)
    )


@contextmanager
def normalized_by_hand(prior: Any, calls: list[reference.LayerCall]) -> Iterator[None]:
    """Make every BatchNormalization blend its statistics with those of its one image."""

    def call(layer: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
        x = ops.convert_to_numpy(ops.cast(inputs, "float32")).astype(np.float64)
        axis = layer.axis % x.ndim
        by_channel = np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
        source = [ops.convert_to_numpy(v).astype(np.float64) for v in (layer.moving_mean, layer.moving_variance)]
        means, variances = by_channel.mean(1)[None], by_channel.var(1)[None]
        row = reference.Row(0, prior, {0: 1.0})
        area = reference.first_area([calls], by_channel.shape[1])
        statistics = means, variances, (source[0], source[1])
        mean, variance, seen = reference.blend(row, *statistics, layer.epsilon, area, layer.name)
        calls.extend([] if seen is None else [seen])
        column = [-1 if place == axis else 1 for place in range(x.ndim)]
        y = (x - mean.reshape(column)) / np.sqrt(variance.reshape(column) + layer.epsilon)
        for used, variable, join in ((layer.scale, layer.gamma, np.multiply), (layer.center, layer.beta, np.add)):
            y = join(y, ops.convert_to_numpy(variable).reshape(column)) if used else y
        return ops.convert_to_tensor(y, dtype=layer.compute_dtype)

    plain = keras.layers.BatchNormalization.call
    keras.layers.BatchNormalization.call = call
    try:
        yield
    finally:
        keras.layers.BatchNormalization.call = plain


def adapted_rows(model: Any, images: np.ndarray, prior: Any) -> list[Any]:
    """The output of every image under one prior: a number or a rule."""
    outputs = []
    for image in images:
        with normalized_by_hand(prior, []):
            outputs.append(run(model, image))
    return outputs


def auto(
    model: Any,
    images: np.ndarray,
    kind: str | None,
    scores: Callable[[Any], np.ndarray] = lambda output: output,
    *,
    selects: bool | None = None,
) -> Any:
    """What the default recipe answers; `scores` finds the class scores of this kind in an output, classes last.

    Scores are mixed. If there are none, or if other arrays are beside them, one row supplies all outputs of an image.
    """
    answers, selects = [], kind is None if selects is None else selects
    for image in images:
        source, calls = run(model, image), []
        with normalized_by_hand(reference.BOLD, calls):
            adapted = run(model, image)
        both = [] if kind is None else [scores(source), scores(adapted)]
        weights = reference.mix_weights(both, [None, reference.image_shift(calls)], kind)
        if selects:
            answers.append((source, adapted)[np.argmax(weights)])
            continue
        place = id(scores(source))
        answers.append(
            keras.tree.map_structure(
                lambda *rows, w=weights, p=place: reference.mix(rows, w, kind if id(rows[0]) == p else None),
                source,
                adapted,
            )
        )
    return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *answers)
