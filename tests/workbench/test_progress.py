"""How far a long run is, on a terminal and elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from sita_workbench import progress
from sita_workbench.progress import ConsoleProgress


@pytest.mark.parametrize(("seconds", "lines"), [(4, 3), (0.1, 0)])
def test_without_a_terminal_there_is_a_line_now_and_then(
    seconds: float, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    console = Console(file=io.StringIO(), force_terminal=False, width=80, get_time=lambda: now)
    with ConsoleProgress(console).track("running", 200) as advance:
        for _ in range(10):
            advance(0, "fog/5, ops[top_k=5]")
            now += seconds
            advance(20)
    written = console.file.getvalue().splitlines()
    assert [line.partition(" %")[0] for line in written] == ["30", "60", "90"][:lines]
    assert all(re.search(r"about 0:00:\d\d left: fog/5, ops\[top_k=5\]$", line) for line in written)
