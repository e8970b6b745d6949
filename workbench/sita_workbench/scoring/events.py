"""What engines report while they run, and the errors that come back from workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sita_adapters import errors
from sita_adapters.errors import SitaError

from .shard import ShardDone


@dataclass(frozen=True)
class BatchDone:
    """A batch was processed: `images` of the shard are done, by a process (of a node of Ray)."""

    number: int
    images: int
    pid: int
    node: str = ""


class Events(Protocol):
    """Hears what happens. Engines may call it from several threads."""

    def batch(self, done: BatchDone) -> None:
        """Take note of a batch."""

    def shard(self, done: ShardDone) -> None:
        """Take note of a shard whose part is on disk."""

    def say(self, message: str) -> None:
        """Tell the user."""


def to_error(kind: str, message: str) -> SitaError:
    """Return the error that a worker described."""
    known = getattr(errors, kind, None) if kind else None
    if isinstance(known, type) and issubclass(known, SitaError):
        return known(message)
    return SitaError(f"A worker failed:\n{message}")
