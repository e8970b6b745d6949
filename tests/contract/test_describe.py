"""`describe`: what was done, as an object and as a table."""

from __future__ import annotations

import re
from typing import Any

import pytest
from small_network import images

import sita_adapters as sita

pytestmark = pytest.mark.slow_on("tensorflow", "jax")


def test_it_names_the_layers_the_rows_and_the_settings(backend: Any) -> None:
    adapted = sita.adapt(backend.model(), "augbn", layers="bn[12]", inputs="imagenet", priors=0.9)
    description = sita.describe(adapted)
    assert description.backend.split()[0] == backend.name.partition("-")[0]
    assert description.rows == 3
    assert description.adapted == ("bn1", "bn2")
    assert description.skipped == ("bn3",)
    assert [layer.channels for layer in description.layers] == [6, 6, 8]
    text = str(description)
    for part in ("augbn: λ = 0.9; 2 views", "3 per image", "rot90, rot270", "imagenet", "2 of 3", "bn3"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 160


@pytest.mark.parametrize(
    ("options", "settings", "scores", "words"),
    [
        ({}, {}, "logits", "assumed to be class logits"),
        ({"activation": "softmax"}, {}, "probabilities", "probabilities"),
        ({"activation": "sigmoid"}, {}, None, "no class scores.*scores="),
        (
            {"activation": "sigmoid"},
            {"scores": "sigmoid_probabilities"},
            "sigmoid_probabilities",
            "sigmoid probabilities",
        ),
        ({"output": "two"}, {}, None, "no class scores.*output="),
        ({"output": "two"}, {"output": "a"}, "logits", "in a"),
        ({"dense": True}, {}, "logits", "classes on axis"),
    ],
)
def test_it_tells_what_was_established_about_the_output(
    backend: Any, options: dict[str, Any], settings: dict[str, Any], scores: str | None, words: str
) -> None:
    adapted = sita.adapt(backend.model(**options), **settings, example=backend.to_images(images(2)))
    description = sita.describe(adapted)
    assert description.scores == scores
    assert re.search(words, str(description)), str(description)


@pytest.mark.parametrize(
    ("recipe", "rows"),
    [("source", 1), ("ensemble", 3), ("bn", 1), ("augbn", 3), ("ops", 22), ("ops_shared", 10), ("auto", 2)],
)
def test_rows_an_image_costs(backend: Any, recipe: str, rows: int) -> None:
    description = sita.describe(sita.adapt(backend.model(), recipe))
    assert description.rows == rows
    assert f"{rows} per image" in str(description)
