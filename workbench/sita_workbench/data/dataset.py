"""What a data set is to a benchmark: labelled images, the conditions to run them under, and which of them to run."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sita_adapters.errors import InputError, suggestion
from sita_adapters.recipe import Task

from ..corruptions import CORRUPTIONS, HOLDOUT, KINDS, SEVERITIES, corrupt
from .images import Fit


@dataclass(frozen=True)
class Condition:
    """What was done to the images: a kind of corruption at a severity from 1 to 5, or nothing ("clean", 0)."""

    corruption: str
    severity: int = 0

    def __str__(self) -> str:
        return f"{self.corruption}/{self.severity}" if self.severity else self.corruption


CLEAN = Condition("clean")

_SETS = ("none", "all", "all+holdout")


@dataclass(frozen=True)
class Selection:
    """The conditions and images to run, as the user gave them. Checked on construction."""

    corrupt: str = "all"
    severities: Sequence[int] = (5,)
    limit: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for severity in self.severities:
            if not is_whole(severity) or severity not in SEVERITIES:
                raise InputError(f"Expected severities from 1 to 5, whole numbers; received {severity!r}.")
        if not self.severities:
            raise InputError("Expected at least one severity from 1 to 5; received none.")
        if self.limit is not None and not is_whole(self.limit, 1):
            raise InputError(f"Expected a limit of at least 1 image, or none; received {self.limit!r}.")
        if not is_whole(self.seed):
            raise InputError(f"Expected seed as a whole number of at least 0; received {self.seed!r}.")
        if len(self._words) > 1 or self._words[0] not in _SETS:
            for word in self._words:
                _check_kind(word)

    @property
    def _words(self) -> list[str]:
        return [word.strip() for word in self.corrupt.split(",")]

    def conditions(self) -> tuple[Condition, ...]:
        """Return the conditions for clean images, which can be corrupted in every way; "all" begins with clean."""
        sets = {"none": ("clean",), "all": ("clean", *KINDS), "all+holdout": ("clean", *KINDS, *HOLDOUT)}
        return self._at_severities(sets.get(self.corrupt.strip(), self._words))

    def stored_conditions(self, stored: Collection[str], folder: Path, form: str) -> tuple[Condition, ...]:
        """Return the conditions for images that were corrupted before; `stored` are the kinds that exist.

        "all" is the fifteen kinds, "all+holdout" also those of the other four that exist. `form` says how a kind is
        stored.
        """
        held_out = [kind for kind in HOLDOUT if kind in stored]
        sets = {"none": ("clean",), "all": KINDS, "all+holdout": (*KINDS, *held_out)}
        kinds = sets.get(self.corrupt.strip(), self._words)
        missing = [kind for kind in kinds if kind not in stored]
        if missing:
            found = [kind for kind in ("clean", *CORRUPTIONS) if kind in stored]
            raise InputError(
                f"Expected {form} in {folder} for every requested corruption; missing: {', '.join(missing)}. "
                + (f"Try: --corrupt {','.join(found)}" if found else "None of the corruptions is there.")
            )
        return self._at_severities(kinds)

    def _at_severities(self, kinds: Sequence[str]) -> tuple[Condition, ...]:
        selected = [
            CLEAN if kind == CLEAN.corruption else Condition(kind, int(severity))
            for kind in kinds
            for severity in self.severities
        ]
        return tuple(dict.fromkeys(selected))

    def indices(self, count: int) -> np.ndarray:
        """Return which of `count` images to run, in order: all of them, or `limit` at even distances.

        Twice the limit selects the same images and as many more.
        """
        selected = count if self.limit is None else min(self.limit, count)
        return np.arange(selected, dtype=np.int64) * count // max(selected, 1)


def is_whole(number: object, least: int = 0) -> bool:
    """Whether this is a whole number of at least `least`."""
    return isinstance(number, (int, np.integer)) and not isinstance(number, bool) and int(number) >= least


def _check_kind(word: str) -> None:
    if word == CLEAN.corruption or word in CORRUPTIONS:
        return
    if word in _SETS:
        raise InputError(f"Expected {word!r} alone, or names of corruptions separated by commas; received both.")
    raise InputError(
        f"Expected {', '.join(map(repr, _SETS))}, or names separated by commas: clean, {', '.join(CORRUPTIONS)}; "
        f"received {word!r}.{suggestion(word, (CLEAN.corruption, *_SETS, *CORRUPTIONS))}"
    )


class Dataset(ABC):
    """Labelled images under several conditions. A subclass says where they are stored and how they are read."""

    task: Task = "classification"
    classes: int | None = None
    """How many classes there are, where the data say it."""
    ignore: int | None = None
    """Segmentation: the label of pixels that do not count."""
    stores_corruptions = False
    """Whether corrupted images are stored; otherwise they are made from the clean ones when they are loaded."""
    conditions: tuple[Condition, ...]
    indices: np.ndarray
    """The position of each selected image among all stored images."""

    def __init__(self, name: str, selection: Selection, fit: Fit) -> None:
        self.name, self._seed, self._fit = name, int(selection.seed), fit

    @abstractmethod
    def read(self, condition: Condition, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the stored images and labels from one position to another."""

    @abstractmethod
    def fingerprint(self) -> Iterator[bytes]:
        """Yield bytes that differ where the content differs, whichever conditions were selected."""

    def __len__(self) -> int:
        """Return how many images there are under each condition."""
        return len(self.indices)

    def load(self, condition: Condition, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return images (n, h, w, 3) in uint8, RGB, and labels (n,) or (n, h, w) in int64, from start to stop."""
        if condition not in self.conditions:
            raise InputError(
                f"Expected one of the conditions that {self.name} was opened with, "
                f"{', '.join(map(str, self.conditions))}; received {condition}."
            )
        if not 0 <= start < min(stop, len(self)):
            raise InputError(f"Expected places from 0 to {len(self)}, at least one; received {start} to {stop}.")
        if self.stores_corruptions or condition == CLEAN:
            return self.read(condition, start, stop)
        images, labels = self.read(CLEAN, start, stop)
        for place, index in enumerate(self.indices[start:stop]):
            images[place] = corrupt(
                images[place], condition.corruption, condition.severity, seed=self._seed, index=int(index)
            )
        return images, labels

    def digest(self) -> str:
        """Return a short hash: where it is the same, `load` returns the same for the same condition and places.

        It is cheap, not certain: it covers names, lengths, labels and some of the bytes. The name of the folder and
        the selected conditions are left out, because they do not change what `load` returns.
        """
        seed = None if self.stores_corruptions else self._seed
        contents = hashlib.sha256(repr((self.task, self.classes, self.ignore, self._fit, seed)).encode())
        contents.update(self.indices.tobytes())
        for part in self.fingerprint():
            contents.update(hashlib.sha256(part).digest())
        return contents.hexdigest()[:16]
