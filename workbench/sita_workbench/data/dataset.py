"""A data set for a benchmark: labeled images, the conditions to run them under, and which images to run."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sita_adapters.errors import InputError, suggestion
from sita_adapters.recipe import Task

from ..corruptions import CORRUPTIONS, KINDS, SEVERITIES, corrupt
from .images import Fit

_SAMPLED_FILES, _SAMPLES, _SAMPLE_LENGTH = 256, 16, 512


@dataclass(frozen=True)
class Condition:
    """What was done to the images: a kind of corruption at a severity from 1 to 5, or nothing ("clean", 0)."""

    corruption: str
    severity: int = 0

    def __str__(self) -> str:
        return f"{self.corruption}/{self.severity}" if self.severity else self.corruption


CLEAN = Condition("clean")


@dataclass(frozen=True)
class Selection:
    """The conditions and images to run, as the user gave them."""

    corrupt: str = "all"
    severities: tuple[int, ...] = (5,)
    limit: int | None = None

    def __post_init__(self) -> None:
        if not self.severities or not set(self.severities) <= set(SEVERITIES):
            raise InputError(f"Expected severities from 1 to 5; received {self.severities}. Try: --severity 3,5")
        if self.limit is not None and self.limit < 1:
            raise InputError(f"Expected a limit of at least 1 image; received {self.limit}.")

    def conditions(self, stored: Collection[str] | None = None) -> tuple[Condition, ...]:
        """Return the conditions to run; `stored` are the kinds that exist, for images that were corrupted before."""
        every = ("clean", *KINDS) if stored is None else KINDS
        words = [word.strip() for word in self.corrupt.split(",")]
        kinds = {"all": every, "none": ("clean",)}.get(self.corrupt.strip(), words)
        for kind in kinds:
            if kind not in ("clean", *CORRUPTIONS):
                raise InputError(
                    f"Expected all, none, or names separated by commas: clean, {', '.join(CORRUPTIONS)}; received "
                    f"{kind!r} in {self.corrupt!r}.{suggestion(kind, ('clean', 'all', 'none', *CORRUPTIONS))}"
                )
        if stored is not None and not set(kinds) <= set(stored):
            missing = ", ".join(kind for kind in kinds if kind not in stored)
            hint = f"--corrupt {','.join(stored)}" if stored else "another folder"
            raise InputError(f"Expected every requested corruption in the data; missing: {missing}. Try: {hint}")
        severities = {kind: (0,) if kind == "clean" else dict.fromkeys(self.severities) for kind in kinds}
        return tuple(Condition(kind, severity) for kind, wanted in severities.items() for severity in wanted)

    def indices(self, count: int) -> np.ndarray:
        """Return which of `count` images to run, in order: all of them, or `limit` at even distances.

        Twice the limit selects the same images and as many more.
        """
        selected = count if self.limit is None else min(self.limit, count)
        return np.arange(selected, dtype=np.int64) * count // max(selected, 1)


class Dataset(ABC):
    """Labeled images under several conditions. A subclass says where they are stored and how they are read."""

    task: Task = "classification"
    classes: int | None = None
    """How many classes there are, if the data define it."""
    ignore: int | None = None
    """Segmentation: the label of pixels to ignore."""
    stores_corruptions = False
    """Whether corrupted images are stored; otherwise they are made from the clean ones when they are loaded."""
    conditions: tuple[Condition, ...]
    indices: np.ndarray
    """The position of each selected image among all stored images."""
    labels: np.ndarray = np.empty(0, np.int64)
    """The selected images' labels; segmentation stores them in files instead."""

    def __init__(self, name: str, fit: Fit) -> None:
        self.name, self._fit = name, fit

    @abstractmethod
    def read(self, condition: Condition, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the stored images and labels from one position to another."""

    @abstractmethod
    def files(self) -> list[Path]:
        """Return the files that the images and labels are read from, or some of very many."""

    def __len__(self) -> int:
        """Return how many images there are under each condition."""
        return len(self.indices)

    def load(self, condition: Condition, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return images (n, h, w, 3) in uint8, RGB, and labels (n,) or (n, h, w) in int64, from start to stop."""
        if condition not in self.conditions or not 0 <= start < min(stop, len(self)):
            raise InputError(
                f"Expected one of the conditions {', '.join(map(str, self.conditions))} and positions from 0 to "
                f"{len(self)}; received {condition}, {start} to {stop}."
            )
        if self.stores_corruptions or condition == CLEAN:
            return self.read(condition, start, stop)
        images, labels = self.read(CLEAN, start, stop)
        for position, index in enumerate(self.indices[start:stop]):
            images[position] = corrupt(images[position], condition.corruption, condition.severity, index=int(index))
        return images, labels

    def digest(self) -> str:
        """Return a short hash of what `load` returns.

        It is cheap but not complete: it covers labels, the files' names and lengths, and samples of their bytes.
        """
        contents = hashlib.sha256(repr((self.task, self.classes, self.ignore, self._fit)).encode())
        contents.update(self.indices.tobytes() + self.labels.tobytes())
        files = self.files()
        for file in files:
            contents.update(os.fsencode(file.name) + b"\0" + str(file.stat().st_size).encode() + b"\n")
        for file in files[:: -(-len(files) // _SAMPLED_FILES)]:
            last = max(file.stat().st_size - _SAMPLE_LENGTH, 0)
            with file.open("rb") as stream:
                for sample in range(_SAMPLES):
                    stream.seek(sample * last // (_SAMPLES - 1))
                    contents.update(stream.read(_SAMPLE_LENGTH))
        return contents.hexdigest()[:16]
