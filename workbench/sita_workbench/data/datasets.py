"""Labelled images for a benchmark, opened by a short text such as cifar10c:FOLDER, and read chunk by chunk."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from sita_adapters.errors import InputError, suggestion

from ..corruptions import corrupt as corrupt_image
from .arrays import CifarC, open_npy, open_npz
from .choice import CLEAN, Choice, Condition
from .folders import ImageFolder, ImageNetC
from .images import Fit, read_size
from .segmentation import open_camvid, open_segmentation

__all__ = ["CLEAN", "SPECS", "Condition", "Dataset", "open_data"]

SPECS: dict[str, str] = {
    "cifar10c": "cifar10c:FOLDER, CIFAR-10-C as published",
    "cifar100c": "cifar100c:FOLDER, CIFAR-100-C as published",
    "imagenet-c": "imagenet-c:FOLDER, ImageNet-C as published",
    "imagefolder": "imagefolder:FOLDER, a folder of images for every class, or images and labels.json",
    "npz": "npz:FILE, the arrays images and labels",
    "npy": "npy:FILE, an array of images, its labels in labels.npy beside it",
    "segmentation": "segmentation:FOLDER, photographs in images and label maps in labels; or IMAGES,LABELS",
    "camvid": "camvid:FOLDER, CamVid's test and testannot",
}
"""What `open_data` can open, by the word before the colon."""

_SEGMENTATION = ("segmentation", "camvid")


class Dataset(Protocol):
    """Labelled images under conditions: what a run needs to know of its data."""

    @property
    def name(self) -> str:
        """The text that it was opened by."""

    @property
    def task(self) -> Literal["classification", "segmentation"]:
        """What the labels are: one an image, or one a pixel."""

    @property
    def classes(self) -> int | None:
        """How many classes there are, where the data say it."""

    @property
    def ignore(self) -> int | None:
        """The label of pixels that do not count, in segmentation."""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """What the images can be loaded under."""

    def __len__(self) -> int:
        """Return how many images there are under each condition."""

    def load(self, condition: Condition, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return images (n, h, w, 3) in uint8, RGB, and labels (n,) or (n, h, w) in int64, of places start to stop."""

    def digest(self) -> str:
        """Return a short hash: where it is the same, `load` gives the same for the same condition and places.

        Cheap rather than certain: it looks at names, lengths, labels and some of the bytes.
        """


class _Stored(Protocol):
    """Images as they lie on disk, as many as were asked for."""

    @property
    def task(self) -> Literal["classification", "segmentation"]: ...
    @property
    def classes(self) -> int | None: ...
    @property
    def ignore(self) -> int | None: ...
    @property
    def conditions(self) -> tuple[Condition, ...]: ...

    @property
    def made(self) -> bool:
        """Whether only clean images are stored, and the corrupted ones made of them."""

    @property
    def indices(self) -> np.ndarray:
        """The place of each image among all that are stored."""

    def read(self, condition: Condition, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]: ...
    def fingerprint(self) -> Iterator[bytes]: ...


@dataclass(frozen=True)
class _Opened:
    """What is stored, corrupted as it is loaded where that is asked for."""

    name: str
    stored: _Stored
    fit: Fit
    seed: int

    @property
    def task(self) -> Literal["classification", "segmentation"]:
        return self.stored.task

    @property
    def classes(self) -> int | None:
        return self.stored.classes

    @property
    def ignore(self) -> int | None:
        return self.stored.ignore

    @property
    def conditions(self) -> tuple[Condition, ...]:
        return self.stored.conditions

    def __len__(self) -> int:
        return len(self.stored.indices)

    def load(self, condition: Condition, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        if condition not in self.conditions:
            raise InputError(
                f"Expected one of the conditions that {self.name} was opened with, "
                f"{', '.join(map(str, self.conditions))}; received {condition}."
            )
        if not 0 <= start < min(stop, len(self)):
            raise InputError(f"Expected places from 0 to {len(self)}, at least one; received {start} to {stop}.")
        if not self.stored.made or condition == CLEAN:
            return self.stored.read(condition, start, stop)
        images, labels = self.stored.read(CLEAN, start, stop)
        for place, index in enumerate(self.stored.indices[start:stop]):
            images[place] = corrupt_image(
                images[place], condition.corruption, condition.severity, seed=self.seed, index=int(index)
            )
        return images, labels

    def digest(self) -> str:
        # The name of a folder may change, and conditions may be added: neither changes what `load` gives.
        settings = (self.task, self.classes, self.ignore, self.fit, self.seed if self.stored.made else None)
        contents = hashlib.sha256(repr(settings).encode())
        contents.update(self.stored.indices.tobytes())
        for part in self.stored.fingerprint():
            contents.update(hashlib.sha256(part).digest())
        return contents.hexdigest()[:16]


def open_data(
    spec: str,
    *,
    corrupt: str = "all",
    severities: Sequence[int] = (5,),
    limit: int | None = None,
    seed: int = 0,
    size: int | tuple[int, int] | None = None,
    crop: float = 0.875,
    ignore: int | None = None,
) -> Dataset:
    """Open a data set; `SPECS` says which there are. Everything that can be checked without reading it all is checked.

    `corrupt` is "all" (the fifteen of ImageNet-C, and clean where corruptions are made here), "all+holdout" (four
    more), "none" (clean alone), or names with commas between, "clean" among them. In clean data the corruptions are
    made as images are loaded, after they were brought to `size`, from `seed` and the place of each image among all.
    `limit` takes so many images, at even distances, the same under every condition.

    `size` is a side or (height, width). Images of an imagefolder are resized, and their centre is cut out (`Fit`;
    `crop` is the share that the cut keeps). Those in arrays and of ImageNet-C were cut before, and are resized alone.
    In segmentation, photographs and label maps are resized to exactly this size. `ignore` is the label of pixels that
    do not count: 255 where none is given, and 11 in CamVid.
    """
    kind, _, place = spec.partition(":")
    if kind not in SPECS or not place:
        hint = suggestion(kind, SPECS) if kind not in SPECS else ""
        raise InputError(f"Expected data as one of: {'; '.join(SPECS.values())}. Received {spec!r}.{hint}")
    if ignore is not None and kind not in _SEGMENTATION:
        raise InputError(f"Expected a label to ignore for segmentation or camvid alone; received {ignore} for {kind}.")
    for name, number in (("seed", seed), ("ignore", 0 if ignore is None else ignore)):
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)) or number < 0:
            raise InputError(f"Expected {name} as a whole number of at least 0; received {number!r}.")
    fit = Fit(read_size(size), crop)
    stored = _open(kind, place, Choice(corrupt, tuple(severities), limit), fit, ignore)
    return _Opened(spec, stored, fit, int(seed))


def _open(kind: str, place: str, choice: Choice, fit: Fit, ignore: int | None) -> _Stored:
    path, size = Path(place).expanduser(), fit.size
    stored: _Stored
    match kind:
        case "cifar10c" | "cifar100c":
            stored = CifarC(path, 10 if kind == "cifar10c" else 100, choice, size)
        case "imagenet-c":
            stored = ImageNetC(path, choice, fit)
        case "imagefolder":
            stored = ImageFolder(path, choice, fit)
        case "npz":
            stored = open_npz(path, choice, size)
        case "npy":
            stored = open_npy(path, choice, size)
        case "camvid":
            stored = open_camvid(path, choice, size, ignore)
        case _:
            stored = open_segmentation(place, choice, size, ignore)
    return stored
