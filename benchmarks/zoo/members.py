"""What the zoo is made of: the smallest model of each family with BatchNorm; and what its checks find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Member:
    """A model with random weights. `shapes` are those of one image, smallest first: the first that runs is taken."""

    library: str
    name: str
    build: Callable[[], Any]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def key(self) -> str:
        """Its name in the log."""
        return f"{self.library}/{self.name}"


def squares(*sizes: int, channels: int = 3) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of square images with channels first."""
    return tuple((channels, size, size) for size in sizes)


class Wrong(Exception):
    """A promise that does not hold."""


@dataclass
class Outcome:
    """What the checks of one member found."""

    verdict: str = "right"
    """"right", "refused: …", "WRONG: …" or "crash: …"."""
    shape: tuple[int, ...] = ()
    layers: int = 0
    """How many BatchNorm layers are adapted."""
    errors: dict[str, float] = field(default_factory=dict)
    """The largest differences that were seen, relative to the largest output."""
    note: str = ""
    seconds: float = 0.0

    @property
    def kind(self) -> str:
        """The first word of the verdict: what it is counted as."""
        return self.verdict.partition(":")[0]

    def compare(self, what: str, error: float, tolerance: float) -> None:
        """Record a difference, and raise where it is larger than the tolerance."""
        self.errors[what] = error
        if not error <= tolerance:
            raise Wrong(f"{what}: off by {error:.1e} of the largest output, more than {tolerance:.1e}.")
