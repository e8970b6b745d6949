"""How a long run tells what it is doing, whoever listens."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Protocol


class Advance(Protocol):
    """Called as a stage goes on."""

    def __call__(self, steps: int = 1, doing: str | None = None) -> None:
        """Count steps, and say what is being done now."""


class Progress(Protocol):
    """Listens to a run."""

    def say(self, message: str) -> None:
        """Take a sentence for the user."""

    def track(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """Enter a stage of `total` steps; what is given is called as they are done."""


class Silence:
    """Listens to nothing."""

    def say(self, message: str) -> None:
        """Drop the sentence."""

    def track(self, description: str, total: int) -> AbstractContextManager[Advance]:
        """Count nothing."""
        return contextlib.nullcontext(_ignore)


def _ignore(steps: int = 1, doing: str | None = None) -> None:
    pass
