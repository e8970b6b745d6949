"""Which array holds the class scores, what they are, where the classes are, and what a mix may average."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import reference

from sita_adapters.errors import OutputError
from sita_adapters.outputs import ScoresLayout
from sita_adapters.scores import find_mixed, resolve_scores
from sita_adapters.state import Settings

Z = np.random.default_rng(0).normal(size=(3, 5))
MAPS = np.random.default_rng(1).normal(size=(3, 5, 4, 4))
P = reference.softmax(Z)
SQUARE = np.full((3, 4, 4), 0.25)


def resolve(output: Any, /, **settings: Any) -> tuple[ScoresLayout | None, str]:
    """The layout of an output whose arrays all have the images first; None stands for a constant."""
    listed = output if isinstance(output, list) else list(output.values()) if isinstance(output, dict) else [output]
    values = [array if len(array) == 3 else None for array in listed]
    about = {name: settings.pop(name, usual) for name, usual in (("image_rank", 4), ("channel_axis", 1))}
    return resolve_scores(output, values, Settings(**settings), lambda a: isinstance(a, np.ndarray), **about)


@pytest.mark.parametrize(
    ("output", "settings", "expected"),
    [
        (Z, {}, (0, "logits", -1)),
        (P, {}, (0, "probabilities", -1)),
        (np.log(P), {}, (0, "log_probabilities", -1)),
        (P.astype(np.float16), {}, (0, "probabilities", -1)),
        (MAPS, {}, (0, "logits", -3)),
        (MAPS, {"channel_axis": -1}, (0, "logits", -1)),
        (MAPS, {"class_axis": 2}, (0, "logits", -2)),
        (reference.softmax(MAPS), {}, (0, "probabilities", -1)),
        (np.moveaxis(reference.softmax(MAPS), -1, 1), {}, (0, "probabilities", -3)),
        (MAPS[:, :, 0], {"image_rank": 3}, (0, "logits", -2)),
        (Z[:, :1], {"scores": "sigmoid"}, (0, "sigmoid", -1)),
        (Z[:, 0], {"scores": "sigmoid"}, (0, "sigmoid", -1)),
        (1 / (1 + np.exp(-Z)), {"scores": "sigmoid_probabilities"}, (0, "sigmoid_probabilities", -1)),
        (SQUARE, {"class_axis": 1}, (0, "probabilities", -2)),
        ({"boxes": MAPS, "logits": Z}, {}, (1, "logits", -1)),
        ({"labels": Z.argmax(1), "z": Z}, {}, (1, "logits", -1)),
        ({"anchors": np.ones((7, 4)), "z": Z}, {}, (1, "logits", -1)),
        ([P, Z], {}, (0, "probabilities", -1)),
        ([Z + 3, P], {}, (1, "probabilities", -1)),
        ([MAPS, reference.softmax(MAPS)], {}, (1, "probabilities", -1)),
        ([Z, MAPS], {"output": 1}, (1, "logits", -3)),
        ([Z, MAPS], {"output": lambda output: output[0]}, (0, "logits", -1)),
    ],
)
def test_scores_are_established(output: Any, settings: dict[str, Any], expected: tuple[int, str, int]) -> None:
    assert resolve(output, **settings) == (ScoresLayout(*expected), "")


@pytest.mark.parametrize(
    ("output", "settings", "words"),
    [
        ([Z, MAPS], {}, r"Several outputs.*\[0\], \[1\].*output="),
        ([P, 2 * Z], {}, "Several outputs"),
        ([reference.softmax(Z / 100), Z[::-1] / 100], {}, "Several outputs"),
        ({"logits": Z, "out": Z + 1}, {}, "Several outputs.*logits, out"),
        (Z.argmax(1), {}, "Found no class scores"),
        (Z[:, :1], {}, "single class.*scores='sigmoid'"),
        (1 / (1 + np.exp(-Z)), {}, "from 0 to 1 that do not sum to 1.*'sigmoid_probabilities'"),
        (SQUARE, {}, "several axes. Try: class_axis="),
        (MAPS[:, :, 0], {}, "class axis.*unclear.*class_axis="),
        (MAPS, {"channel_axis": None}, "class axis.*unclear.*class_axis="),
        (Z, {"scores": "none"}, "scores='none'"),
        (P, {"scores": "none"}, "scores='none'"),
    ],
)
def test_what_is_unclear_is_explained(output: Any, settings: dict[str, Any], words: str) -> None:
    layout, why = resolve(output, **settings)
    assert layout is None
    assert re.search(words, why), why


@pytest.mark.parametrize(
    ("output", "settings", "words"),
    [
        (Z, {"scores": "probabilities"}, "scores='probabilities'.*sum to 1"),
        (P, {"scores": "logits"}, "scores='logits'.*not normalized"),
        (Z, {"scores": "sigmoid_probabilities"}, "from 0 to 1; received"),
        (Z, {"class_axis": 4}, "class_axis: expected an axis"),
        (Z, {"class_axis": 0}, "class_axis: expected an axis"),
        ({"a": Z}, {"output": "b"}, "output='b' gives nothing"),
        ({"a": Z.argmax(1), "b": Z}, {"output": "a"}, "gives a, which does not .* Try: one of b"),
        ({"a": Z}, {"output": lambda output: 2 * output["a"]}, "not a tensor of the output"),
    ],
)
def test_what_contradicts_the_values_is_an_error(output: Any, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(OutputError, match=words):
        resolve(output, **settings)


RANDOM = np.random.default_rng(2)
SET = RANDOM.normal(size=(3, 12, 6))
LABELS = RANDOM.integers(0, 9, (3, 12, 1)).astype(np.float64)
SORTED = -np.sort(-RANDOM.normal(size=(3, 12, 1)), axis=1)
WIDE = RANDOM.normal(size=(3, 12))


def with_column(column: np.ndarray) -> np.ndarray:
    """A set of twelve entries per image, of which one column is replaced."""
    return np.concatenate([SET[..., :5], column], axis=2)


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (with_column(LABELS), "whole numbers at index 5 of axis 2"),
        (with_column(SORTED), "sorted along axis 1"),
        (with_column(-SORTED), "sorted along axis 1"),
        (np.sort(WIDE), "sorted along axis 1"),
        (MAPS.argmax(1).astype(np.float64)[:, None] - 1, "whole numbers at index 0 of axis 1"),
        (np.concatenate([MAPS[:, :4], MAPS.argmax(1)[:, None]], axis=1), "whole numbers at index 4 of axis 1"),
        (Z / np.linalg.norm(Z, axis=1, keepdims=True), "unit length along axis 1"),
        (np.maximum(Z, 0) * 9, "no negative value"),
        (SET, "class axis.*unclear"),
        (with_column(0 * SORTED + 3), "whole numbers at index 5 of axis 2"),
        (with_column(0 * SORTED - 9), "class axis.*unclear"),
        (np.eye(5)[:3], "only 0 and 1.*scores='probabilities'"),
    ],
    ids=[
        "labels",
        "falling",
        "rising",
        "rank 2",
        "a mask",
        "a mask among maps",
        "unit",
        "features",
        "set",
        "one label",
        "a masked column",
        "one-hot",
    ],
)
def test_values_that_do_not_look_like_logits_are_no_scores(output: np.ndarray, words: str) -> None:
    layout, why = resolve(output)
    assert layout is None
    assert re.search(words, why), why


@pytest.mark.parametrize(
    "output",
    [
        np.sort(Z),  # five values may be sorted by chance
        np.concatenate([np.sort(WIDE[:2]), WIDE[2:]]),  # one image is not sorted
        np.concatenate([WIDE, np.full((3, 1), -10000.0)], axis=1),
        np.sort(MAPS.reshape(3, 5, 1, 16), axis=3),  # maps may be smooth
    ],
    ids=["too short", "one image", "a masked class", "maps"],
)
def test_values_that_are_alike_by_chance_are_logits(output: np.ndarray) -> None:
    layout, why = resolve(output)
    assert layout is not None, why
    assert layout.kind == "logits"


@pytest.mark.parametrize("argument", [{"scores": "logits"}, {"output": lambda output: output}, {"class_axis": 1}])
def test_arguments_settle_what_scores_are(argument: dict[str, Any]) -> None:
    for output in (np.maximum(Z, 0) * 9, Z / np.linalg.norm(Z, axis=1, keepdims=True)):
        assert resolve(output)[0] is None
        assert resolve(output, **argument)[0] == ScoresLayout(0, "logits", -1)


LOGITS, PROBABILITIES, SIGMOID = (ScoresLayout(0, kind, -1) for kind in ("logits", "probabilities", "sigmoid"))


@pytest.mark.parametrize(
    ("scores", "others", "expected"),
    [
        (LOGITS, [], ("logits",)),
        (LOGITS, [None], ("logits", None)),
        (LOGITS, [2 * Z - 1], ("logits", "logits")),
        (LOGITS, [2 * Z - 1, None, Z[::-1]], ("logits", "logits", None, "logits")),
        (LOGITS, [Z[:, :4]], ()),
        (LOGITS, [P], ()),
        (LOGITS, [Z[..., None]], ()),
        (LOGITS, [Z.argmax(1)], ()),
        (LOGITS, [np.rint(9 * Z)], ()),
        (LOGITS, [2 * Z, MAPS], ()),
        (PROBABILITIES, [P[::-1]], ("probabilities", "probabilities")),
        (PROBABILITIES, [Z + 3], ("probabilities", "logits")),
        (PROBABILITIES, [2 * Z], ()),
        (PROBABILITIES, [np.eye(5)[:3]], ()),
        (ScoresLayout(0, "sigmoid", -1), [np.repeat(Z, 2, axis=0)], ()),
        (SIGMOID, [Z + 1], ()),
        (None, [Z], ()),
    ],
)
def test_a_mix_averages_scores_and_heads_like_them_or_nothing(
    scores: ScoresLayout | None, others: list[np.ndarray | None], expected: tuple[str | None, ...]
) -> None:
    assert find_mixed(scores, [P if scores is PROBABILITIES else Z, *others]) == expected


def test_a_head_of_four_numbers_may_be_a_box_and_sigmoid_maps_are_alike() -> None:
    assert find_mixed(LOGITS, [Z[:, :4], 2 * Z[:, 1:]]) == ()
    assert find_mixed(ScoresLayout(0, "sigmoid", -1), [MAPS, MAPS + 1]) == ("sigmoid", "sigmoid")
    assert find_mixed(ScoresLayout(0, "sigmoid", -1), [MAPS, MAPS[:, :2]]) == ()
