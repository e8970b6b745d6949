"""What of a data set is run: under which conditions, and which of its images."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sita_adapters.errors import InputError, suggestion

from ..corruptions import CORRUPTIONS, HOLDOUT, KINDS, SEVERITIES


@dataclass(frozen=True)
class Condition:
    """What was done to the images: a kind of corruption at a severity from 1 to 5, or nothing ("clean", 0)."""

    corruption: str
    severity: int = 0

    def __str__(self) -> str:
        return f"{self.corruption}/{self.severity}" if self.severity else self.corruption


CLEAN = Condition("clean")


@dataclass(frozen=True)
class Choice:
    """The conditions and images that a caller asks for, as text and numbers; checked when it is made."""

    corrupt: str = "all"
    severities: Sequence[int] = (5,)
    limit: int | None = None

    def __post_init__(self) -> None:
        for severity in self.severities:
            if isinstance(severity, bool) or not isinstance(severity, (int, np.integer)) or severity not in SEVERITIES:
                raise InputError(f"Expected severities from 1 to 5, whole numbers; received {severity!r}.")
        if not self.severities:
            raise InputError("Expected at least one severity from 1 to 5; received none.")
        if self.limit is not None and not _is_count(self.limit):
            raise InputError(f"Expected a limit of at least 1 image, or none; received {self.limit!r}.")
        if self._words not in (["none"], ["all"], ["all+holdout"]):
            for word in self._words:
                _check_kind(word)

    @property
    def _words(self) -> list[str]:
        return [word.strip() for word in self.corrupt.split(",")]

    def conditions(self) -> tuple[Condition, ...]:
        """Return the conditions for clean images, of which every kind can be made; "all" begins with clean."""
        standing = {"none": ("clean",), "all": ("clean", *KINDS), "all+holdout": ("clean", *KINDS, *HOLDOUT)}
        return self._at_severities(standing.get(self.corrupt.strip(), self._words))

    def stored_conditions(self, stored: Collection[str], place: Path, form: str) -> tuple[Condition, ...]:
        """Return the conditions for images that were corrupted before, of which there are the kinds `stored`.

        "all" is the fifteen, "all+holdout" also what is there of the other four. `form` says how one is stored.
        """
        held_out = [kind for kind in HOLDOUT if kind in stored]
        standing = {"none": ("clean",), "all": KINDS, "all+holdout": (*KINDS, *held_out)}
        kinds = standing.get(self.corrupt.strip(), self._words)
        missing = [kind for kind in kinds if kind not in stored]
        if missing:
            there = [kind for kind in ("clean", *CORRUPTIONS) if kind in stored]
            raise InputError(
                f"Expected {form} in {place} for every corruption that is asked for; missing: {', '.join(missing)}. "
                + (f"Remedy: --corrupt {','.join(there)}" if there else "None of the corruptions is there.")
            )
        return self._at_severities(kinds)

    def _at_severities(self, kinds: Sequence[str]) -> tuple[Condition, ...]:
        chosen = [
            CLEAN if kind == CLEAN.corruption else Condition(kind, int(severity))
            for kind in kinds
            for severity in self.severities
        ]
        return tuple(dict.fromkeys(chosen))

    def indices(self, count: int) -> np.ndarray:
        """Return which of so many images are run, in order: all, or `limit` of them at even distances.

        Of two limits of which one is a multiple of the other, the larger has all images of the smaller.
        """
        chosen = count if self.limit is None else min(self.limit, count)
        return np.arange(chosen, dtype=np.int64) * count // max(chosen, 1)


def _is_count(number: object) -> bool:
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool) and int(number) >= 1


def _check_kind(word: str) -> None:
    if word == CLEAN.corruption or word in CORRUPTIONS:
        return
    alone = ("none", "all", "all+holdout")
    if word in alone:
        raise InputError(f"Expected {word!r} alone, or names of corruptions with commas between; received both.")
    raise InputError(
        f"Expected {', '.join(map(repr, alone))}, or names with commas between: clean, {', '.join(CORRUPTIONS)}; "
        f"received {word!r}.{suggestion(word, (CLEAN.corruption, *alone, *CORRUPTIONS))}"
    )
