"""Messages and progress of a long run: a bar on a terminal, lines elsewhere, or nothing."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console

SECONDS = 10.0
"""Between two lines, where there is no terminal."""


class Advance(Protocol):
    """Advances a progress bar."""

    def __call__(self, steps: int = 1, doing: str | None = None) -> None:
        """Count steps, and show what is being done now."""


class Progress:
    """Where a run reports its progress. This class shows nothing."""

    def say(self, message: str) -> None:
        """Show a message to the user."""

    def track(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """Start a stage of `total` steps; call what is yielded as they are done."""
        return contextlib.nullcontext(lambda steps=1, doing=None: None)


NoProgress = Progress


class ConsoleProgress(Progress):
    """Shows messages and bars on a console; without a terminal, a line every ten seconds."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, message: str) -> None:
        """Print a message."""
        from rich.text import Text

        self.console.print(Text(message), soft_wrap=True)

    def track(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """Show the progress of a stage, and how long the rest takes."""
        return self._bar(description, total) if self.console.is_terminal else self._lines(description, total)

    @contextlib.contextmanager
    def _bar(self, description: str, total: int) -> Iterator[Advance]:
        """Show a bar, and remove it at the end."""
        from rich import progress

        # What is being done may contain square brackets, which are no markup: ops[combine=mean].
        shown = progress.TextColumn("{task.description}", markup=False)
        columns = shown, progress.BarColumn(), progress.TaskProgressColumn(), progress.TimeRemainingColumn()
        with progress.Progress(*columns, console=self.console, transient=True) as bars:
            task = bars.add_task(description, total=total)
            yield lambda steps=1, doing=None: bars.update(task, advance=steps, description=doing or description)

    @contextlib.contextmanager
    def _lines(self, description: str, total: int) -> Iterator[Advance]:
        """Print a line when some seconds have passed since the last; a short stage prints none."""
        start = spoken = time.monotonic()
        done, current = 0, description

        def advance(steps: int = 1, doing: str | None = None) -> None:
            nonlocal done, spoken, current
            done, current = done + steps, doing or current
            now = time.monotonic()
            if now - spoken >= SECONDS and 0 < done < total:
                spoken = now
                taken, left = duration(now - start), duration((now - start) * (total - done) / done)
                self.say(f"{100 * done / total:.0f} % after {taken}, about {left} left: {current}")

        yield advance


def duration(seconds: float) -> str:
    """Return a time as it is printed: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
