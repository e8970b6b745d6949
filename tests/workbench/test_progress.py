"""How far a long run is, on a terminal and elsewhere."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from sita_workbench import progress
from sita_workbench.progress import ConsoleProgress, duration


def make_console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=80, highlight=False)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    console = make_console(terminal=False)
    with ConsoleProgress(console).track("running", 200) as advance:
        for _ in range(10):
            advance(0, "fog/5, ops[top_k=5]")
            now += 4.0
            advance(20)
    assert written(console).splitlines() == [
        "30 % after 12 s, about 28 s left: fog/5, ops[top_k=5]",
        "60 % after 24 s, about 16 s left: fog/5, ops[top_k=5]",
        "90 % after 36 s, about 4 s left: fog/5, ops[top_k=5]",
    ]


def test_a_short_stage_prints_nothing_without_a_terminal() -> None:
    console = make_console(terminal=False)
    with ConsoleProgress(console).track("running", 3) as advance:
        for _ in range(3):
            advance()
    assert written(console) == ""


def test_a_bar_takes_square_brackets_literally() -> None:
    console = make_console(terminal=True)
    with ConsoleProgress(console).track("running", 2) as advance:
        advance(1, "ops[mean]")
    assert "ops[mean]" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written(console))


@pytest.mark.parametrize(("seconds", "text"), [(40.4, "40 s"), (720, "12 min"), (12600, "3.5 h")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
