"""A mix averages class scores and nothing else: every other output of an image comes from one of its rows."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import reference
import tinynet_installed

import sita_adapters as sita
from sita_adapters.errors import OutputError
from sita_adapters.ops import NUMPY
from sita_adapters.outputs import flatten

RANDOM = np.random.default_rng(0)
KERNEL = 0.4 * RANDOM.normal(size=(3, 3, 3, 6))
CLEAN = RANDOM.normal(size=(4, 16, 16, 3))
IMAGES = np.concatenate([CLEAN[:2], 1.4 * CLEAN[:2] + 0.2, 4 * CLEAN[2:] + 3])
EXACT = {"rtol": 1e-9, "atol": 1e-9}  # other batches may differ in the order of sums
HEADS = RANDOM.normal(size=(3, 6, 12))


@pytest.fixture(scope="module", autouse=True)
def _installed() -> Iterator[None]:
    added = tinynet_installed.install()
    yield
    sys.path[:] = [entry for entry in sys.path if entry not in added]


def make_model(head: Callable[[np.ndarray], Any]) -> Any:
    """Convolution, BatchNorm and a head, a function of features (N, h, w, 6). Clean images have no shift."""
    tinynet = importlib.import_module("tinynet")
    features = tinynet.Convolution(KERNEL)(CLEAN)
    moments = features.mean((0, 1, 2)), features.var((0, 1, 2))
    return tinynet.Sequential(tinynet.Convolution(KERNEL), tinynet.BatchNorm(*moments, np.ones(6), np.zeros(6)), head)


def shifts_of(model: Any, images: np.ndarray) -> list[float]:
    """D of every image, from its features one by one: with one layer, it is the shift of this layer."""
    norm, found = model.layers[1], []
    for features in model.layers[0](images):
        flat = features.reshape(-1, 6)
        found.append(reference.shift(flat.mean(0), flat.var(0), norm.mean, norm.variance, norm.epsilon))
    return found


def rows_of(model: Any, images: np.ndarray, **settings: Any) -> list[list[np.ndarray]]:
    """The arrays that the source's row and the adapted row return, each from a model that has no other."""
    _, rule = sita.RECIPES["auto"].prior_values
    recipes = sita.RECIPES["source"], sita.Recipe(priors=rule, n_views=0)
    outputs = [sita.adapt(model, recipe, **settings)(images) for recipe in recipes]
    return [[array for _, array in flatten(output, NUMPY.is_array)] for output in outputs]


def weights_of(source: np.ndarray, adapted: np.ndarray) -> list[float]:
    """The weights of both rows of an image: with one adapted row, its shift has no influence."""
    return reference.mix_weights([source, adapted], [None, 1.0], "logits")


def logits(x: np.ndarray, which: int = 0) -> np.ndarray:
    return 3 * x.mean((1, 2)) @ HEADS[which] + x[:, 0, 0] @ HEADS[which]


def detections(x: np.ndarray) -> np.ndarray:
    """Sixteen boxes with scores and labels as floats, (N, 16, 6), sorted by score, as from a head without NMS."""
    flat = x[:, ::4, ::4].reshape(len(x), 16, 6) @ RANDOM_MIX
    scores, labels = 1 / (1 + np.exp(-flat[..., 4])), flat[..., :5].argmax(2)
    order = np.argsort(-scores, axis=1)[..., None]
    found = np.concatenate([flat[..., :4], scores[..., None], labels[..., None]], axis=2)
    return np.take_along_axis(found, order, axis=1)


RANDOM_MIX = RANDOM.normal(size=(6, 6))


def unit(x: np.ndarray) -> np.ndarray:
    return logits(x) / np.linalg.norm(logits(x), axis=1, keepdims=True)


WITHOUT_SCORES: dict[str, tuple[Callable[[np.ndarray], Any], dict[str, Any]]] = {
    "detections": (detections, {}),
    "unit vectors": (unit, {}),
    "features": (lambda x: np.maximum(logits(x), 0), {}),
    "a mask as floats": (lambda x: x.argmax(3).astype(float), {}),
    "labels": (lambda x: x.argmax(3), {}),
    "a set": (lambda x: x.reshape(len(x), -1, 6), {}),
    "boxes and features": (lambda x: {"boxes": x[:, 0], "features": np.maximum(x, 0)}, {}),
    "logits, if there are no scores": (logits, {"scores": "none"}),
    "maps, if there are no scores": (lambda x: [x, 2 * x], {"scores": "none"}),
}


@pytest.mark.parametrize("case", WITHOUT_SCORES)
def test_without_scores_the_shift_selects_the_row_that_supplies_all_outputs(case: str) -> None:
    head, settings = WITHOUT_SCORES[case]
    model = make_model(head)
    with sita.observe(adapted := sita.adapt(model, **settings)) as seen:
        found = [array for _, array in flatten(adapted(IMAGES), NUMPY.is_array)]
    source, shifted = rows_of(model, IMAGES, **settings)
    chosen = [bool(d > reference.SELECTION_SHIFT) for d in shifts_of(model, IMAGES)]
    assert set(chosen) == {True, False}
    for image, is_shifted in enumerate(chosen):
        for array, *rows in zip(found, source, shifted, strict=True):
            np.testing.assert_allclose(array[image], rows[is_shifted][image], **EXACT)
    np.testing.assert_array_equal(seen.weights, [[1.0 - is_shifted, is_shifted] for is_shifted in chosen])
    assert "The shift selects the row" in str(sita.describe(adapted))


BESIDE_SCORES: dict[str, Callable[[np.ndarray], Any]] = {
    "boxes": lambda x: {"logits": logits(x), "boxes": x[:, 0]},
    "labels": lambda x: (logits(x), logits(x).argmax(1)),
    "a mask": lambda x: {"logits": logits(x), "mask": x.argmax(3).astype(float)},
    "other classes": lambda x: {"logits": logits(x), "other": logits(x, 1)[:, :5]},
}


@pytest.mark.parametrize("case", BESIDE_SCORES)
def test_the_row_with_more_weight_supplies_the_scores_and_what_stands_beside_them(case: str) -> None:
    model = make_model(BESIDE_SCORES[case])
    found = [array for _, array in flatten(sita.adapt(model)(IMAGES), NUMPY.is_array)]
    source, shifted = rows_of(model, IMAGES)
    chosen = set()
    for image in range(len(IMAGES)):
        weights = weights_of(source[0][image], shifted[0][image])
        row = shifted if weights[1] > weights[0] else source
        chosen.add(row is source)
        for array, expected in zip(found, row, strict=True):
            np.testing.assert_allclose(array[image], expected[image], **EXACT)
    assert chosen == {True, False}


@pytest.mark.parametrize("second", [None, lambda x: logits(x, 1), lambda x: np.ones((7, 4))])
def test_scores_auxiliary_heads_and_constants_are_mixed(second: Callable[[np.ndarray], np.ndarray] | None) -> None:
    model = make_model(logits if second is None else lambda x: {"logits": logits(x), "second": second(x)})
    found = [array for _, array in flatten(sita.adapt(model)(IMAGES), NUMPY.is_array)]
    source, shifted = rows_of(model, IMAGES)
    for image in range(len(IMAGES)):
        weights = weights_of(source[0][image], shifted[0][image])
        for array, first, other in zip(found, source, shifted, strict=True):
            if len(array) == len(IMAGES):
                expected = reference.mix([first[image], other[image]], weights)
                np.testing.assert_allclose(array[image], expected, **EXACT)
            else:
                np.testing.assert_array_equal(array, np.ones((7, 4)))


def test_probabilities_and_their_logits_are_mixed_alike() -> None:
    """As classifiers of ultralytics return them: the answer's probabilities are the softmax of its logits."""
    model = make_model(lambda x: (reference.softmax(logits(x) / 9), logits(x) / 9))
    found, raw = sita.adapt(model)(IMAGES)
    np.testing.assert_allclose(
        found, sita.adapt(make_model(lambda x: reference.softmax(logits(x) / 9)))(IMAGES), **EXACT
    )
    np.testing.assert_allclose(found, reference.softmax(raw), **EXACT)
    (_, source), (_, shifted) = rows_of(model, IMAGES)
    for image in range(len(IMAGES)):
        both = source[image], shifted[image]
        np.testing.assert_allclose(raw[image], reference.mix(both, weights_of(*both)), **EXACT)


def test_an_overflow_shows_in_the_answer() -> None:
    adapted = sita.adapt(make_model(detections))
    adapted(IMAGES)
    with np.errstate(all="ignore"):
        assert np.isnan(adapted(np.full((1, 16, 16, 3), 1e200))).any()


def test_an_output_of_another_rank_than_in_the_probe_is_refused() -> None:
    model = make_model(lambda x: logits(x) if x.shape[1] <= 16 else x @ HEADS[0])
    adapted = sita.adapt(model, "ops")
    assert adapted(IMAGES[:1]).shape == (1, 12)
    with pytest.raises(
        OutputError, match=r"Expected the output of rank 2 .*as in the probe.*Try: adapt a second model"
    ):
        adapted(np.ones((1, 24, 24, 3)))
    assert sita.adapt(model, "ops", example=np.tile(IMAGES, (1, 2, 2, 1)))(np.ones((1, 24, 24, 3))).shape[3] == 12
