"""Photographs with label maps of the same names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from sita_adapters.errors import InputError

from .dataset import Condition, Dataset, Selection
from .images import Fit, Size, find_size, list_images, opened, read_rgb, require_folder, upright_size

CAMVID_CLASSES = (
    *("sky", "building", "pole", "road", "pavement", "tree", "sign", "fence", "car", "pedestrian", "bicyclist"),
)
"""CamVid (Brostow et al. 2009) in the reduced form of SegNet: what the labels 0 to 10 mean."""

CAMVID_VOID = len(CAMVID_CLASSES)
"""The label of pixels without a class: never trained on and never scored."""

_MODES = ("1", "L", "P", "I", "I;16", "I;16L", "I;16B")


class Segmentation(Dataset):
    """Photographs, each with a label map: a PNG with one label per pixel, as a gray value or an index of the palette.

    If a size is given, photographs are interpolated, labels take the nearest pixel, and nothing is cropped.
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
    ) -> None:
        super().__init__(name, fit)
        self.conditions = selection.conditions()
        self.classes, self.ignore = classes, ignore
        pairs = _find_pairs(*folders)
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
        for position, (photograph, label_map) in enumerate(pairs):
            with opened(label_map) as file:
                labels = np.asarray(file).astype(np.int32)
            known = labels[labels != self.ignore]
            if self.classes is not None and known.size and known.max() >= self.classes:
                raise InputError(
                    f"Expected labels from 0 to {self.classes - 1}, or {self.ignore} for no class, in {label_map}; "
                    f"received {known.max()}."
                )
            images[position], maps[position] = resize(np.asarray(read_rgb(photograph)), labels, self._size)
        return images, maps

    def files(self) -> list[Path]:
        """Return the photographs and label maps."""
        return [path for pair in self._pairs for path in pair]


def resize(
    image: np.ndarray, labels: np.ndarray, size: Size, box: tuple[int, int, int, int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return a photograph (h, w, 3) and its labels (h, w) at a size (height, width).

    If a box (left, top, right, bottom) is given, only its inside is taken. The photograph is interpolated linearly, and
    averaged if it shrinks; labels are those of the nearest pixel.
    """
    sides = size[::-1]
    return (
        np.asarray(Image.fromarray(image).resize(sides, Image.Resampling.BILINEAR, box)),
        np.asarray(Image.fromarray(labels).resize(sides, Image.Resampling.NEAREST, box)),
    )


def _find_pairs(images: Path, labels: Path) -> list[tuple[Path, Path]]:
    """Return photographs and label maps of the same name, sorted by name."""
    layout = f"{images.name}/<name>.jpg (or png …) and {labels.name}/<name>.png, whose values are the labels"
    stems = []
    for folder in (images, labels):
        require_folder(folder, layout)
        paths = [folder / name for name in list_images(folder)]
        stems.append({path.stem: path for path in paths})
        if len(stems[-1]) < len(paths):
            raise InputError(f"Expected names in {folder} that differ before the extension; received some that do not.")
    if not stems[0] or stems[0].keys() != stems[1].keys():
        differing = sorted(stems[0].keys() ^ stems[1].keys())
        raise InputError(
            f"Expected files of the same names in {images} and {labels}; received {len(stems[0])} and {len(stems[1])}, "
            f"in one of them only: {', '.join(differing[:3])}. The layout is {layout}."
        )
    return [(stems[0][stem], stems[1][stem]) for stem in sorted(stems[0])]


def _check_headers(photograph: Path, label_map: Path) -> None:
    """Raise unless a label map fits its photograph; only the files' headers are read."""
    with opened(photograph) as image, opened(label_map) as labels:
        height, width = upright_size(image)
        if (height, width) != (labels.height, labels.width):
            raise InputError(
                f"Expected the label map {label_map} at its upright photograph's size, {width}×{height}; "
                f"received {labels.width}×{labels.height}."
            )
        # Pillow stretches gray values of 2 and 4 bits to 0–255, so they are no longer labels.
        few_bits = labels.mode == "L" and any(part[3] in ("L;2", "L;4") for part in getattr(labels, "tile", ()))
        if labels.mode not in _MODES or few_bits:
            raise InputError(
                f"Expected one label per pixel in {label_map}, as a gray value of 8 or 16 bits or an index of the "
                f"palette; received {'fewer bits' if few_bits else f'mode {labels.mode}'}. Try: turn it into labels."
            )
