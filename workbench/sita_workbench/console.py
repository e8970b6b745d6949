"""Progress on a console."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from .progress import Advance

if TYPE_CHECKING:
    from rich.console import Console


class ConsoleProgress:
    """Sentences and bars on a console; into a pipe, sentences only."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, message: str) -> None:
        """Print a sentence."""
        self.console.print(Text(message), soft_wrap=True)

    @contextlib.contextmanager
    def track(self, description: str, total: int) -> Iterator[Advance]:
        """Show a bar with the time left, and take it away at the end."""
        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Bars(*columns, console=self.console, transient=True, disable=not self.console.is_terminal) as bars:
            task = bars.add_task(description, total=total)

            def advance(steps: int = 1, doing: str | None = None) -> None:
                bars.update(task, advance=steps, description=doing or description)

            yield advance
