"""Messages and progress bars of a long run: on a console, or nowhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console


class Advance(Protocol):
    """Moves a progress bar on."""

    def __call__(self, steps: int = 1, doing: str | None = None) -> None:
        """Count steps, and show what is being done now."""


class Progress(Protocol):
    """Where a run reports its progress."""

    def say(self, message: str) -> None:
        """Show a message to the user."""

    def track(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """Start a stage of `total` steps; call what is yielded as they are done."""


class NoProgress:
    """Shows nothing."""

    def say(self, message: str) -> None:
        """Drop the message."""

    def track(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """Count nothing."""
        return contextlib.nullcontext(lambda steps=1, doing=None: None)


class ConsoleProgress:
    """Shows messages and bars on a console; without a terminal, messages only."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, message: str) -> None:
        """Print a message."""
        from rich.text import Text

        self.console.print(Text(message), soft_wrap=True)

    @contextlib.contextmanager
    def track(self, description: str, total: int) -> Iterator[Advance]:
        """Show a bar with the time left, and remove it at the end."""
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Bars(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as bars:
            task = bars.add_task(description, total=total)

            def advance(steps: int = 1, doing: str | None = None) -> None:
                bars.update(task, advance=steps, description=doing or description)

            yield advance
