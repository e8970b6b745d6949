"""What the zoo is made of: one member of each family, and how it is built."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

LIBRARIES = ("timm", "torchvision", "segmentation_models_pytorch", "transformers", "keras.applications")


@dataclass(frozen=True)
class Member:
    """A family's smallest member. `shapes` are those of one image, smallest first: the first that runs is taken."""

    library: str
    family: str
    name: str
    build: Callable[[], Any] | None
    """Makes the model with random weights; None where no model of the family has BatchNorm."""
    shapes: tuple[tuple[int, ...], ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of a call: numbers and texts, the same for any batch."""

    @property
    def key(self) -> str:
        """Its name in the log."""
        return f"{self.library}/{self.family}"


def squares(*sizes: int, channels: int = 3) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of square images with channels first."""
    return tuple((channels, size, size) for size in sizes)


@functools.cache
def members_of(library: str) -> dict[str, Member]:
    """Return a library's members by key. Its module is imported here: not every process needs every library."""
    module = importlib.import_module(f"{__package__}.{library.replace('.', '_')}_members")
    members: list[Member] = module.members()
    by_key = {member.key: member for member in members}
    if len(by_key) != len(members):
        raise ValueError(f"{library}: a family is there twice.")
    return by_key


@dataclass
class Outcome:
    """What the checks of one member found."""

    verdict: str
    """"right", "refused: …", "WRONG: …", "crash: …" or "no BatchNorm"."""
    member: str
    shape: tuple[int, ...] = ()
    layers: int = 0
    """How many BatchNorm layers are adapted."""
    errors: dict[str, float] = field(default_factory=dict)
    """The largest differences that were seen, relative to the largest output."""
    note: str = ""
    seconds: float = 0.0
