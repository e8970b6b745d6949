"""The table of speed: one cell is measured, and the table and the figure show the results."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
def test_a_cell_has_times_and_ratios() -> None:
    cell = ("--network", "mobilenet_v2", "--runtime", "eager", "--recipes", "augbn", "--repeats", "2")
    command = [sys.executable, str(BENCHMARKS / "speed_cell.py"), *cell]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    plain, augbn = json.loads(out.splitlines()[-1])
    assert (plain["method"], plain["rows"], augbn["method"], augbn["rows"]) == ("plain", 1, "augbn", 3)
    middle, low, high = augbn["overhead"]
    assert 0 < low <= middle <= high
    assert augbn["ms"] > plain["ms"] > 0


def test_the_table_and_the_figure_show_the_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    speed = importlib.import_module("speed")
    cell = {"method": "augbn", "rows": 3, "ms": 441.2, "times_one_row": [3, 2.9, 3.1], "overhead": [1.05, 1.04, 1.07]}
    results = {
        "cells": {
            "resnet50/eager": {"figures": [cell], "memory": {"augbn": 80.4, "plain:augbn": 54.3}},
            "resnet50/keras-jax": {"figures": [], "memory": {}, "error": "No module named 'jax'"},
        }
    }
    table = speed.table(results)
    assert "| ResNet-50 | eager | augbn | 3 | 441 | 3.0 (2.9–3.1) | 1.05 (1.04–1.07) | 80 / 54 |" in table
    assert "| ResNet-50 | keras-jax | — |" in table
    speed.draw(results, tmp_path / "speed.png")
    assert (tmp_path / "speed.png").stat().st_size > 5000


def test_the_page_has_the_table_of_the_stored_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    speed = importlib.import_module("speed")
    page = (BENCHMARKS.parent / "docs" / "speed.md").read_text(encoding="utf-8")
    stored = json.loads((BENCHMARKS / "speed.json").read_text())
    assert speed.table(stored) in page
    assert speed.put_table(page, "| another |").count("\n\n| another |\n\n") == 1
