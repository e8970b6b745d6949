"""Photographs with label maps of the same names: any such pair of folders, and CamVid's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from sita_adapters.errors import InputError

from ..networks import camvid
from .choice import Choice, Condition
from .images import Fit, Size, find_size, fingerprint_files, list_images, opened, require_folder

_LAYOUT = "images/<name>.jpg (or png …) and labels/<name>.png, a grey or palette image whose values are the labels"
_CAMVID_LAYOUT = "that of CamVid: test/<name>.jpg (or png) and testannot/<name>.png"
_NOBODYS = 255
_MODES = ("1", "L", "P", "I", "I;16", "I;16L", "I;16B")


class Segmentation:
    """Photographs, each with a label map: a PNG of one label a pixel, as a grey value or a place in the palette.

    Where a size is given, photographs are interpolated to it and labels picked, and nothing is cropped.
    """

    task: Literal["segmentation"] = "segmentation"
    made = True

    def __init__(
        self,
        folders: tuple[Path, Path],
        choice: Choice,
        size: Size | None,
        *,
        ignore: int,
        classes: int | None = None,
        layout: str = _LAYOUT,
    ) -> None:
        self.conditions = choice.conditions()
        self.classes, self.ignore = classes, ignore
        pairs = _find_pairs(folders, layout)
        self.indices = choice.indices(len(pairs))
        self._pairs = [pairs[index] for index in self.indices]
        for pair in self._pairs:
            _check_heads(*pair)
        self._size = find_size([image for image, _ in self._pairs], Fit(size))

    def read(self, condition: Condition, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return photographs and label maps from one place to another; the condition can only be clean."""
        pairs = self._pairs[start:stop]
        images = np.empty((len(pairs), *self._size, 3), np.uint8)
        maps = np.empty((len(pairs), *self._size), np.int64)
        for place, (photograph, label_map) in enumerate(pairs):
            with opened(photograph) as file:
                image = np.asarray(file.convert("RGB"))
            with opened(label_map) as file:
                labels = np.asarray(file).astype(np.int32)
            self._check_labels(labels, label_map)
            images[place], maps[place] = camvid.resize(image, labels, self._size[::-1])
        return images, maps

    def _check_labels(self, labels: np.ndarray, file: Path) -> None:
        if self.classes is None:
            return
        known = labels[labels != self.ignore]
        if known.size and known.max() >= self.classes:
            raise InputError(
                f"Expected labels from 0 to {self.classes - 1}, or {self.ignore} where nobody labelled, in {file}; "
                f"received {known.max()}."
            )

    def fingerprint(self) -> Iterator[bytes]:
        """Yield what tells this content from other content."""
        yield "\n".join(f"{image.name}\n{label_map.name}" for image, label_map in self._pairs).encode()
        for column in (0, 1):
            yield from fingerprint_files([pair[column] for pair in self._pairs])


def open_segmentation(place: str, choice: Choice, size: Size | None, ignore: int | None) -> Segmentation:
    """Return the pairs of DIR/images and DIR/labels, or of two folders with a comma between."""
    folder = Path(place).expanduser()
    if "," in place and not folder.is_dir():
        images, _, labels = place.partition(",")
        folders = (Path(images.strip()).expanduser(), Path(labels.strip()).expanduser())
    else:
        require_folder(folder, _LAYOUT)
        folders = (folder / "images", folder / "labels")
    return Segmentation(folders, choice, size, ignore=_NOBODYS if ignore is None else ignore)


def open_camvid(folder: Path, choice: Choice, size: Size | None, ignore: int | None) -> Segmentation:
    """Return the test pairs of CamVid."""
    if ignore not in (None, camvid.VOID):
        raise InputError(f"Expected no other label than {camvid.VOID} to be ignored in CamVid; received {ignore}.")
    require_folder(folder, _CAMVID_LAYOUT)
    folders = (folder / "test", folder / "testannot")
    return Segmentation(folders, choice, size, ignore=camvid.VOID, classes=len(camvid.CLASSES), layout=_CAMVID_LAYOUT)


def _find_pairs(folders: tuple[Path, Path], layout: str) -> list[camvid.Pair]:
    """Return photographs and label maps of one name, in the order of the names."""
    photographs, maps = (_by_stem(folder, layout) for folder in folders)
    for folder, unmatched in ((folders[1], photographs.keys() - maps), (folders[0], maps.keys() - photographs)):
        if unmatched:
            raise InputError(
                f"Expected a file of the same name in {folders[0]} and {folders[1]}, which have {len(photographs)} and "
                f"{len(maps)}; {folder.name} has none for {', '.join(sorted(unmatched)[:3])}"
                f"{' …' if len(unmatched) > 3 else ''}. The layout is {layout}."
            )
    if not photographs:
        raise InputError(f"Expected at least one image in {folders[0]}; received none. The layout is {layout}.")
    return [(photographs[stem], maps[stem]) for stem in sorted(photographs)]


def _by_stem(folder: Path, layout: str) -> dict[str, Path]:
    require_folder(folder, layout)
    paths: dict[str, Path] = {}
    for name in list_images(folder):
        path = folder / name
        if path.stem in paths:
            raise InputError(
                f"Expected names in {folder} that differ before the ending; received "
                f"{paths[path.stem].name} and {name}."
            )
        paths[path.stem] = path
    return paths


def _check_heads(photograph: Path, label_map: Path) -> None:
    """Raise unless a label map fits its photograph; only the heads of the files are read."""
    with opened(photograph) as image, opened(label_map) as labels:
        if image.size != labels.size:
            raise InputError(
                f"Expected the label map {label_map} at its photograph's size, {image.width}×{image.height}; "
                f"received {labels.width}×{labels.height}."
            )
        if labels.mode not in _MODES:
            raise InputError(
                f"Expected one label a pixel in {label_map}, as a grey value or a place in the palette; received an "
                f"image of mode {labels.mode}. Remedy: turn its colours into labels."
            )
        # Pillow stretches grey values of 2 and 4 bits to 0–255, so that they no longer are labels.
        if labels.mode == "L" and any(part[3] in ("L;2", "L;4") for part in getattr(labels, "tile", ())):
            raise InputError(f"Expected grey values of 8 or 16 bits in {label_map}; received fewer bits a pixel.")
