"""Which array holds the class scores, what they are, and where the classes are, established from values."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import reference

from sita_adapters.engine import Adaptation, Settings
from sita_adapters.errors import OutputError
from sita_adapters.outputs import ScoresLayout, resolve_scores
from sita_adapters.recipe import RECIPES

Z = np.random.default_rng(0).normal(size=(3, 5))
MAPS = np.random.default_rng(1).normal(size=(3, 5, 4, 4))
P = reference.softmax(Z)
SQUARE = np.full((3, 4, 4), 0.25)


def resolve(output: Any, /, **settings: Any) -> tuple[ScoresLayout | None, str]:
    """The layout of an output whose arrays all have the images first; None stands for a constant."""
    listed = output if isinstance(output, list) else list(output.values()) if isinstance(output, dict) else [output]
    values = [array if len(array) == 3 else None for array in listed]
    about = {name: settings.pop(name) for name in ("kinds", "channel_axis") if name in settings}
    adaptation = Adaptation(RECIPES["auto"], Settings(**settings), (), **{"kinds": ("square",), **about})
    return resolve_scores(output, values, adaptation, lambda a: isinstance(a, np.ndarray))


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
        (MAPS[:, :, 0], {"kinds": ("signal",)}, (0, "logits", -2)),
        (Z[:, :1], {"scores": "sigmoid"}, (0, "sigmoid", -1)),
        (Z[:, 0], {"scores": "sigmoid"}, (0, "sigmoid", -1)),
        (1 / (1 + np.exp(-Z)), {"scores": "sigmoid_probabilities"}, (0, "sigmoid_probabilities", -1)),
        (SQUARE, {"class_axis": 1}, (0, "probabilities", -2)),
        ({"boxes": MAPS, "logits": Z}, {}, (1, "logits", -1)),
        ({"labels": Z.argmax(1), "z": Z}, {}, (1, "logits", -1)),
        ({"anchors": np.ones((7, 4)), "z": Z}, {}, (1, "logits", -1)),
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
        ({"logits": Z, "out": Z + 1}, {}, "Several outputs.*logits, out"),
        (Z.argmax(1), {}, "Found no class scores"),
        (Z[:, :1], {}, "single class.*scores='sigmoid'"),
        (1 / (1 + np.exp(-Z)), {}, "from 0 to 1 that do not sum to 1.*'sigmoid_probabilities'"),
        (SQUARE, {}, "several axes. Try: class_axis="),
        (MAPS[:, :, 0], {}, "class axis.*unclear|unclear.*class_axis="),
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
