"""Messages and progress of a long run: a bar on a terminal, lines elsewhere, or nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

SECONDS = 10.0
"""The time between two lines if there is no terminal."""


class Advance(Protocol):
    """Advances a progress bar."""

    def __call__(self, steps: int = 1, doing: str | None = None) -> None:
        """Count steps, and show what is being done now."""


class Progress:
    """Where a run reports its progress. This class shows nothing."""

    def say(self, message: str) -> None:
        """Show a message to the user."""

    def track(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """Start a stage of `total` steps. Call the yielded function as they are done."""
        return contextlib.nullcontext(lambda steps=1, doing=None: None)


class ConsoleProgress(Progress):
    """Shows messages and bars on a console; without a terminal, a line every ten seconds."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, message: str) -> None:
        """Print a message."""
        from rich.text import Text

        self.console.print(Text(message), soft_wrap=True)

    @contextlib.contextmanager
    def track(self, description: str, total: int) -> Iterator[Advance]:
        """Show the progress of a stage, and how long the rest takes."""
        from rich import progress

        # What is being done may contain square brackets, which are no markup: ops[combine=mean].
        text = progress.TextColumn("{task.description}", markup=False)
        columns = text, progress.BarColumn(), progress.TaskProgressColumn(), progress.TimeRemainingColumn()
        lines = not self.console.is_terminal
        with progress.Progress(
            *columns, console=self.console, transient=True, disable=lines, speed_estimate_period=3600
        ) as bars:
            bars.add_task(description, total=total)
            (task,), spoken = bars.tasks, time.monotonic()

            def advance(steps: int = 1, doing: str | None = None) -> None:
                nonlocal spoken
                bars.update(task.id, advance=steps, description=doing or task.description)
                if lines and task.time_remaining and time.monotonic() - spoken >= SECONDS:
                    spoken = time.monotonic()
                    left = timedelta(seconds=task.time_remaining)
                    self.say(f"{task.percentage:.0f} %, about {left} left: {task.description}")

            yield advance
