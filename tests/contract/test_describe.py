"""`describe`: what was done, as an object and as a table."""

from __future__ import annotations

from typing import Any

import pytest

import sita_adapters as sita


def test_it_names_the_layers_the_rows_and_the_settings(backend: Any) -> None:
    adapted = sita.adapt(backend.model(), "augbn", layers="bn[12]", inputs="imagenet", priors=0.9)
    description = sita.describe(adapted)
    assert description.backend.split()[0] == backend.name.partition("-")[0]
    assert description.rows == 3
    assert description.adapted == ("bn1", "bn2")
    assert description.left_alone == ("bn3",)
    assert [layer.channels for layer in description.layers] == [6, 6, 8]
    assert (description.scores, description.max_rows) == ("logits", None)
    text = str(description)
    for part in ("augbn: λ = 0.9; 2 views", "3 per image", "rot90, rot270", "imagenet"):
        assert part in text
    assert "2 of 3 BatchNorm layers adapted" in text
    assert [line.split()[0] for line in text.splitlines()[-3:]] == ["bn1", "bn2", "bn3"]
    assert [line.split()[-1] for line in text.splitlines()[-3:]] == ["yes", "yes", "alone"]
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize(
    ("recipe", "rows"),
    [("source", 1), ("ensemble", 3), ("ptn", 1), ("bn", 1), ("augbn", 3), ("ops", 22), ("ops_shared", 10)],
)
def test_rows_an_image_costs(backend: Any, recipe: str, rows: int) -> None:
    description = sita.describe(sita.adapt(backend.model(), recipe))
    assert description.rows == rows
    assert f"{rows} per image" in str(description)
