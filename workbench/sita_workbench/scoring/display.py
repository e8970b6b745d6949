"""How far a run is: a bar with images per second and the time left; without a terminal, a line every few seconds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from ..progress import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Task

_SECONDS = 5.0
"""Between two lines."""


class Display(Protocol):
    """Shows how far a run is."""

    def say(self, message: str) -> None:
        """Show a message to the user."""

    def show(self, images: int, failed: int) -> None:
        """Show that so many images are done, of which some failed."""

    def track(self, images: int, total: int) -> contextlib.AbstractContextManager[None]:
        """Show a run of `total` images, of which some are done already."""


class NoDisplay:
    """Shows nothing."""

    def say(self, message: str) -> None:
        """Drop the message."""

    def show(self, images: int, failed: int) -> None:
        """Drop the number."""

    def track(self, images: int, total: int) -> contextlib.AbstractContextManager[None]:
        """Track nothing."""
        return contextlib.nullcontext()


class ConsoleDisplay:
    """Shows a bar on a terminal, lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._pace = Pace(0, 0)
        self._update: _Update | None = None
        self._spoken = 0.0

    def say(self, message: str) -> None:
        """Print a message."""
        from rich.text import Text

        self._console.print(Text(message), soft_wrap=True)

    def show(self, images: int, failed: int) -> None:
        """Move the bar, or print a line if the last was some seconds ago."""
        self._pace.note(images)
        note = f", {failed} failed" if failed else ""
        if self._update is not None:
            self._update(images, note)
        elif time.monotonic() - self._spoken >= _SECONDS:
            self._spoken = time.monotonic()
            self.say(f"{self._pace}{note}")

    @contextlib.contextmanager
    def track(self, images: int, total: int) -> Iterator[None]:
        """Show a run of `total` images, of which some are done already."""
        self._pace, self._spoken = Pace(images, total), time.monotonic()
        if not self._console.is_terminal:
            yield
            return
        from rich.progress import BarColumn, Progress, ProgressColumn
        from rich.text import Text

        pace = self._pace

        class PaceColumn(ProgressColumn):
            def render(self, task: Task) -> Text:
                return Text(f"{pace.brief()}{task.description}", no_wrap=True)

        with Progress(BarColumn(bar_width=24), PaceColumn(), console=self._console, transient=True) as bars:
            bar = bars.add_task("", total=total, completed=images)
            self._update = lambda done, note: bars.update(bar, completed=done, description=note)
            try:
                yield
            finally:
                self._update = None


class _Update(Protocol):
    def __call__(self, done: int, note: str) -> None: ...


class Pace:
    """How many images are done, how fast, and how long the rest takes; counted from the first batch on.

    Until then workers load their models, which says nothing about the pace.
    """

    def __init__(self, images: int, total: int) -> None:
        self._images, self._total = images, total
        self._first: tuple[int, float] | None = None
        self._now = 0.0

    def note(self, images: int) -> None:
        """Take note that so many images are done."""
        self._images, self._now = images, time.monotonic()
        if self._first is None:
            self._first = images, self._now

    @property
    def rate(self) -> float | None:
        """Images per second; None as long as that is not known."""
        if self._first is None or self._now <= self._first[1] or self._images <= self._first[0]:
            return None
        return (self._images - self._first[0]) / (self._now - self._first[1])

    def __str__(self) -> str:
        return f"{self._images:,} of {self._total:,} images, {self.brief()}"

    def brief(self) -> str:
        """Return share, pace and time left: what fits beside a bar on 80 columns."""
        share = f"{100 * self._images / max(1, self._total):.1f} %"
        if self.rate is None:
            return share
        return f"{share}, {self.rate:.3g} images/s, {duration((self._total - self._images) / self.rate)} left"
