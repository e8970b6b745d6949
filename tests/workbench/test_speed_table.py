"""The table of speed: one cell is measured, and the page shows the stored results."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_the_table_and_the_page_show_the_stored_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    speed = importlib.import_module("speed")
    auto = {"method": "auto", "rows": 2, "ms": 441.2, "times_one_row": [3, 2.9, 3.1], "overhead": [1.05, 1.04, 1.07]}
    figures = [{**auto, "method": "plain", "ms": 147.3}, auto]
    line = "| ResNet-50 | eager | 3.0 (2.9–3.1) | 1.05 (1.04–1.07) | 147 | 441 (auto) |"
    assert speed.rows_of("resnet50/eager", figures) == [line]
    assert speed.table({"cells": {"resnet50/eager": figures}}).splitlines()[2:] == [line]
    page = (BENCHMARKS.parent / "docs" / "speed.md").read_text(encoding="utf-8")
    assert speed.put_table(page, "| another |").count("\n\n| another |\n\n") == 1
    assert speed.table(json.loads((BENCHMARKS / "speed.json").read_text())) in page


@pytest.mark.slow
def test_a_cell_has_times_and_ratios() -> None:
    command = [sys.executable, str(BENCHMARKS / "speed.py"), "--cell", "mobilenet_v2/eager", "--repeats", "2"]
    plain, auto = json.loads(subprocess.run(command, capture_output=True, check=True).stdout.splitlines()[-1])
    assert [plain["method"], plain["rows"], auto["method"], auto["rows"]] == ["plain", 1, "auto", 2]
    assert 0 < plain["ms"] < auto["ms"]
    assert 0 < auto["overhead"][1] <= auto["overhead"][0] <= auto["overhead"][2]
