"""Only class scores are averaged: of every other output, one row supplies all that belongs to an image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import keras_nets as nets
import keras_odd_nets as odd
import keras_reference
import numpy as np
import pytest
import reference
from keras import layers, ops

import sita_adapters as sita


def photos() -> np.ndarray:
    """Four images like those that `settled` sets the statistics from, and four that are far from them."""
    calm = nets.images(12, seed=7)[8:]
    calm = (calm - calm.mean((1, 2, 3), keepdims=True)) / calm.std((1, 2, 3), keepdims=True)
    return np.concatenate([calm, 3 * calm + 4]).astype("float32")


def settled(output: Callable[[Any], Any]) -> keras.Model:
    """A network with the statistics of calm images, whose output is a function of its features (N, 16, 16, 12)."""
    inputs = keras.Input((16, 16, 3))
    x = layers.BatchNormalization(momentum=0.0)(layers.Conv2D(12, 3, padding="same")(inputs))
    model = nets.settle(keras.Model(inputs, output(x)))
    model(photos()[:4], training=True)
    return model


def pooled(x: Any, classes: int, activation: str | None = None) -> Any:
    return layers.Dense(classes, activation=activation)(layers.GlobalAveragePooling2D()(layers.ReLU()(x)))


def boxes(x: Any, count: int) -> Any:
    return layers.Reshape((count, 4))(pooled(x, 4 * count))


def labels(scores: Any) -> Any:
    return ops.cast(ops.argmax(scores, -1), "float32")


def detections(x: Any) -> Any:
    """Boxes, scores and class ids of 12 candidates, sorted by their scores: (N, 12, 6)."""
    scores = ops.sigmoid(layers.Reshape((12, 5))(pooled(x, 60)))
    order = ops.argsort(-ops.max(scores, -1), axis=-1)[..., None]
    parts = boxes(x, 12), ops.max(scores, -1)[..., None], labels(scores)[..., None]
    return ops.concatenate([ops.take_along_axis(part, order, axis=1) for part in parts], axis=-1)


SELECTED: dict[str, Callable[[Any], Any]] = {
    "class ids as floats": lambda x: labels(layers.Reshape((60, 30))(pooled(x, 1800))),
    "a mask as floats": lambda x: labels(layers.Conv2D(4, 1)(x)),
    "boxes": lambda x: boxes(x, 9),
    "sorted detections with class ids": detections,
    "boxes and scores of anchors": lambda x: {"boxes": boxes(x, 9), "classes": layers.Reshape((9, 5))(pooled(x, 45))},
    "boxes, masks and class ids": lambda x: [boxes(x, 3), ops.sigmoid(layers.Conv2D(2, 1)(x)), labels(pooled(x, 7))],
    "unit vectors": lambda x: layers.UnitNormalization()(pooled(x, 8)),
    "non-negative features": lambda x: pooled(x, 8, "relu"),
    "integers beside floats": lambda x: (boxes(x, 3), ops.argmax(pooled(x, 7), -1)),
}


def check_one_row(model: keras.Model, adapted: keras.Model, expected: Any) -> None:
    """The answer is the reference's; each image has all of its outputs from one row, and both rows occur."""
    batch = photos()
    source = [keras_reference.run(model, image) for image in batch]
    blended = keras_reference.adapted_rows(model, batch, reference.BOLD)
    for use in odd.ways(adapted):
        answer = use(batch)
        keras.tree.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5), answer, expected)
        chosen = []
        for index in range(len(batch)):
            one = keras.tree.map_structure(lambda array, i=index: array[i : i + 1], answer)
            chosen.append([_same(one, rows[index]) for rows in (source, blended)])
        assert all(any(each) for each in chosen)
        assert [True, False] in chosen
        assert [False, True] in chosen


def _same(answer: Any, row: Any) -> bool:
    pairs = zip(keras.tree.flatten(answer), keras.tree.flatten(row), strict=True)
    return all(np.allclose(found, expected, rtol=2e-4, atol=2e-5) for found, expected in pairs)


@pytest.mark.parametrize("name", SELECTED)
def test_outputs_that_are_no_scores_come_from_one_row(name: str) -> None:
    model = settled(SELECTED[name])
    with pytest.warns(sita.SitaWarning, match="usually the source's"):
        adapted = sita.adapt(model)
    assert sita.describe(adapted).scores is None
    assert "The shift selects the row" in str(sita.describe(adapted))
    check_one_row(model, adapted, keras_reference.auto(model, photos(), None))


@pytest.mark.parametrize("activation", [None, "softmax"])
def test_scores_of_which_the_caller_says_that_they_are_none(activation: str | None) -> None:
    model = settled(lambda x: pooled(x, 5, activation))
    check_one_row(model, sita.adapt(model, scores="none"), keras_reference.auto(model, photos(), None))
    expected = keras_reference.auto(model, photos(), "probabilities" if activation else "logits")
    np.testing.assert_allclose(sita.adapt(model).predict_on_batch(photos()), expected, rtol=2e-4, atol=2e-5)


def test_scores_beside_boxes_choose_the_row_by_their_confidence() -> None:
    model = settled(lambda x: {"logits": 3 * pooled(x, 5), "boxes": boxes(x, 3)})
    expected = keras_reference.auto(model, photos(), "logits", lambda output: output["logits"], selects=True)
    adapted = sita.adapt(model)
    assert sita.describe(adapted).scores == "logits"
    assert "one row supplies all outputs of an image" in str(sita.describe(adapted))
    check_one_row(model, adapted, expected)


def test_auxiliary_scores_are_mixed_like_the_main_ones() -> None:
    model, batch = settled(lambda x: {"logits": pooled(x, 5), "auxiliary": pooled(x, 5)}), photos()
    expected = keras_reference.auto(model, batch, "logits", lambda output: output["logits"])
    found = sita.adapt(model).predict_on_batch(batch)
    source = model.predict_on_batch(batch)
    for name in ("logits", "auxiliary"):
        np.testing.assert_allclose(found[name], expected[name], rtol=2e-4, atol=2e-5)
        assert abs(found[name] - source[name]).max() > 1e-3


def test_scores_of_every_pixel_are_mixed() -> None:
    model, batch = settled(layers.Conv2D(4, 1)), photos()
    expected = keras_reference.auto(model, batch, "logits")
    np.testing.assert_allclose(sita.adapt(model).predict_on_batch(batch), expected, rtol=2e-4, atol=2e-5)
