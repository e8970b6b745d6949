"""How a long run tells what it is doing, whoever listens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class Progress(Protocol):
    """Listens to a run."""

    def say(self, message: str) -> None:
        """Take a sentence for the user."""

    def track(self, description: str, total: int) -> AbstractContextManager[Callable[[], None]]:
        """Enter a stage of `total` steps; what is given is called after each."""


class Silence:
    """Listens to nothing."""

    def say(self, message: str) -> None:
        """Drop the sentence."""

    def track(self, description: str, total: int) -> AbstractContextManager[Callable[[], None]]:
        """Count nothing."""
        return contextlib.nullcontext(lambda: None)
