"""The table of speed: one cell measured for real, and the table and figure of figures that are there."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_cell_has_times_and_ratios() -> None:
    cell = ("--network", "mobilenet_v2", "--runtime", "eager", "--recipes", "augbn", "--repeats", "2")
    out = run("speed_cell.py", *cell)
    plain, augbn = json.loads(out.splitlines()[-1])
    assert (plain["method"], plain["rows"], augbn["method"], augbn["rows"]) == ("plain", 1, "augbn", 3)
    middle, low, high = augbn["overhead"]
    assert 0 < low <= middle <= high
    assert augbn["ms"] > plain["ms"] > 0


def test_the_table_and_the_figure_tell_what_was_measured(tmp_path: Path) -> None:
    figure = {"method": "augbn", "rows": 3, "ms": 441.2, "times_one_row": [3, 2.9, 3.1], "overhead": [1.05, 1.04, 1.07]}
    cells = {
        "resnet50/eager": {"figures": [figure], "memory": {"augbn": 80.4, "plain:augbn": 54.3}},
        "resnet50/keras-jax": {"figures": [], "memory": {}, "error": "No module named 'jax'"},
    }
    kept = tmp_path / "speed.json"
    kept.write_text(json.dumps({"cells": cells}))
    table = run("speed.py", "--show", "--out", str(kept))
    assert "| ResNet-50 | eager | augbn | 3 | 441 | 3.0 (2.9–3.1) | 1.05 (1.04–1.07) | 80 / 54 |" in table
    assert "| ResNet-50 | keras-jax | — |" in table
    assert (tmp_path / "speed.png").stat().st_size > 5000
