"""Photographs with label maps of the same names: any such pair of folders, and CamVid's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sita_adapters.errors import InputError

from .dataset import Condition, Dataset, Selection
from .images import Fit, find_size, fingerprint_files, list_images, opened, read_rgb, require_folder, upright_size

CAMVID_CLASSES = (
    *("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist"),
)
"""CamVid (Brostow et al. 2009) in the reduced form of SegNet: what the labels 0 to 10 mean."""

CAMVID_VOID = len(CAMVID_CLASSES)
"""The label of pixels without a class: never trained on and never scored."""

_LAYOUT = "images/<name>.jpg (or png …) and labels/<name>.png, a grey or palette image whose values are the labels"
_IGNORE = 255
_MODES = ("1", "L", "P", "I", "I;16", "I;16L", "I;16B")


class Segmentation(Dataset):
    """Photographs, each with a label map: a PNG with one label per pixel, as a grey value or an index of the palette.

    Where a size is given, photographs are interpolated, labels take the nearest pixel, and nothing is cropped.
    """

    task = "segmentation"

    def __init__(
        self,
        name: str,
        folders: tuple[Path, Path],
        selection: Selection,
        fit: Fit,
        *,
        ignore: int,
        classes: int | None = None,
        layout: str = _LAYOUT,
    ) -> None:
        super().__init__(name, selection, fit)
        self.conditions = selection.conditions()
        self.classes, self.ignore = classes, ignore
        pairs = _find_pairs(folders, layout)
        self.indices = selection.indices(len(pairs))
        self._pairs = [pairs[index] for index in self.indices]
        for pair in self._pairs:
            _check_headers(*pair)
        self._size = find_size([image for image, _ in self._pairs], fit)

    def read(self, condition: Condition, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return clean photographs and label maps from one position to another."""
        pairs = self._pairs[start:stop]
        images = np.empty((len(pairs), *self._size, 3), np.uint8)
        maps = np.empty((len(pairs), *self._size), np.int64)
        for place, (photograph, label_map) in enumerate(pairs):
            image = np.asarray(read_rgb(photograph))
            with opened(label_map) as file:
                labels = np.asarray(file).astype(np.int32)
            self._check_labels(labels, label_map)
            images[place], maps[place] = resize(image, labels, self._size)
        return images, maps

    def _check_labels(self, labels: np.ndarray, file: Path) -> None:
        if self.classes is None:
            return
        known = labels[labels != self.ignore]
        if known.size and known.max() >= self.classes:
            raise InputError(
                f"Expected labels from 0 to {self.classes - 1}, or {self.ignore} for no class, in {file}; "
                f"received {known.max()}."
            )

    def fingerprint(self) -> Iterator[bytes]:
        """Yield the names and some bytes of the files."""
        yield "\n".join(f"{image.name}\n{label_map.name}" for image, label_map in self._pairs).encode()
        for column in (0, 1):
            yield from fingerprint_files([pair[column] for pair in self._pairs])


def open_segmentation(name: str, place: str, selection: Selection, fit: Fit, *, ignore: int | None) -> Segmentation:
    """Open the pairs of FOLDER/images and FOLDER/labels, or of two folders separated by a comma."""
    folder = Path(place).expanduser()
    if "," in place and not folder.is_dir():
        images, _, labels = place.partition(",")
        folders = (Path(images.strip()).expanduser(), Path(labels.strip()).expanduser())
    else:
        require_folder(folder, _LAYOUT)
        folders = (folder / "images", folder / "labels")
    return Segmentation(name, folders, selection, fit, ignore=_IGNORE if ignore is None else ignore)


def open_camvid(
    name: str, folder: Path, selection: Selection, fit: Fit, *, ignore: int | None = None, split: str = "test"
) -> Segmentation:
    """Open the pairs of CamVid's test (or train) folder."""
    if ignore not in (None, CAMVID_VOID):
        raise InputError(f"Expected no other label than {CAMVID_VOID} to be ignored in CamVid; received {ignore}.")
    layout = f"that of CamVid: {split}/<name>.jpg (or png) and {split}annot/<name>.png"
    require_folder(folder, layout)
    folders, classes = (folder / split, folder / f"{split}annot"), len(CAMVID_CLASSES)
    return Segmentation(name, folders, selection, fit, ignore=CAMVID_VOID, classes=classes, layout=layout)


def resize(
    image: np.ndarray, labels: np.ndarray, size: tuple[int, int], box: tuple[int, int, int, int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return a photograph (h, w, 3) and its labels (h, w) at a size (height, width).

    Where a box (left, top, right, bottom) is given, only its inside is taken. The photograph is interpolated linearly,
    and averaged where it shrinks, so that it does not alias; labels are those of the nearest pixel.
    """
    from PIL import Image

    sides = size[::-1]
    return (
        np.asarray(Image.fromarray(image).resize(sides, Image.Resampling.BILINEAR, box)),
        np.asarray(Image.fromarray(labels).resize(sides, Image.Resampling.NEAREST, box)),
    )


def _find_pairs(folders: tuple[Path, Path], layout: str) -> list[tuple[Path, Path]]:
    """Return photographs and label maps of the same name, sorted by name."""
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


def _check_headers(photograph: Path, label_map: Path) -> None:
    """Raise unless a label map fits its photograph; only the files' headers are read."""
    with opened(photograph) as image, opened(label_map) as labels:
        height, width = upright_size(image)
        if (height, width) != (labels.height, labels.width):
            raise InputError(
                f"Expected the label map {label_map} at its upright photograph's size, {width}×{height}; "
                f"received {labels.width}×{labels.height}."
            )
        if labels.mode not in _MODES:
            raise InputError(
                f"Expected one label per pixel in {label_map}, as a grey value or an index of the palette; received an "
                f"image of mode {labels.mode}. Try: turn its colours into labels."
            )
        # Pillow stretches grey values of 2 and 4 bits to 0–255, so they are no longer labels.
        if labels.mode == "L" and any(part[3] in ("L;2", "L;4") for part in getattr(labels, "tile", ())):
            raise InputError(f"Expected grey values of 8 or 16 bits in {label_map}; received fewer bits per pixel.")
