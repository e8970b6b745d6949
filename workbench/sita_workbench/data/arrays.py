"""Images in numpy files: CIFAR-10-C and CIFAR-100-C as published, and clean images in an npz."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from sita_adapters.errors import InputError

from ..corruptions import CORRUPTIONS, SEVERITIES
from .dataset import Condition, Dataset, Selection
from .images import Fit, Size, memory_size, require_folder

_CIFAR_LAYOUT = "fog.npy and others, bytes (5·N, 32, 32, 3), N for each severity from 1 to 5, and labels.npy (5·N,)"
_NPZ_NAMES = (("images", "labels"), ("x_test", "y_test"), ("x", "y"))


class CifarC(Dataset):
    """CIFAR-10-C or CIFAR-100-C: one file per corruption, with five blocks of the same images.

    The files stay on disk; only what is requested is read.
    """

    stores_corruptions = True

    def __init__(self, name: str, folder: Path, selection: Selection, fit: Fit, *, classes: int) -> None:
        super().__init__(name, fit)
        require_folder(folder, _CIFAR_LAYOUT)
        self.classes, self._folder = classes, folder
        self.conditions = selection.conditions([kind for kind in CORRUPTIONS if (folder / f"{kind}.npy").exists()])
        labels = _check_labels(self._open("labels"), folder / "labels.npy", classes)
        self._count = len(labels) // len(SEVERITIES)
        if not np.array_equal(labels, np.tile(labels[: self._count], len(SEVERITIES))):
            raise InputError(
                f"Expected the same labels for all five severities in {folder / 'labels.npy'}; received {len(labels)} "
                f"in blocks that differ. The layout is {_CIFAR_LAYOUT}. Try: download the file again."
            )
        self._arrays = {condition.corruption: self._open(condition.corruption) for condition in self.conditions}
        for kind, images in self._arrays.items():
            _check_images(images, folder / f"{kind}.npy", (len(labels), 32, 32, 3))
        self.indices = selection.indices(self._count)
        self.labels = labels[self.indices]

    def _open(self, name: str) -> np.ndarray:
        file = self._folder / f"{name}.npy"
        with _reading(file):
            return np.lib.format.open_memmap(file, mode="r")

    def read(self, condition: Condition, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return images and labels from one position to another, under a condition."""
        rows = (condition.severity - 1) * self._count + self.indices[start:stop]
        return _resize(self._arrays[condition.corruption][rows], self._fit.size), self.labels[start:stop]

    def files(self) -> list[Path]:
        """Return the arrays' files."""
        return [self._folder / f"{kind}.npy" for kind in ("labels", *self._arrays)]


class Npz(Dataset):
    """Clean images (N, h, w, 3) and a label for each, in an npz. They are read into memory."""

    def __init__(self, name: str, file: Path, selection: Selection, fit: Fit) -> None:
        super().__init__(name, fit)
        self.conditions, self._file = selection.conditions(), file
        with _reading(file), file.open("rb") as stream, np.lib.npyio.NpzFile(stream) as stored:
            pairs = [pair for pair in _NPZ_NAMES if set(pair) <= set(stored.files)]
            if not pairs:
                expected = " or ".join(map(", ".join, _NPZ_NAMES))
                raise InputError(f"Expected arrays named {expected} in {file}; received {', '.join(stored.files)}.")
            # Zeros take a thousandth of their size in an npz: check before it is decompressed.
            size = sum(stored.zip.getinfo(f"{array}.npy").file_size for array in pairs[0])
            if size > memory_size() // 2:
                raise InputError(
                    f"Expected arrays that fit half of the memory ({memory_size() / 2e9:.1f} GB) in {file}; received "
                    f"{size / 1e9:.1f} GB. Try: fewer images, or imagefolder:DIR."
                )
            self._images, labels = (stored[array] for array in pairs[0])
        _check_images(self._images, file)
        labels = _check_labels(labels, file, None)
        if len(self._images) != len(labels):
            raise InputError(
                f"Expected a label for every image of {file}; received {len(labels)} for {len(self._images)} images."
            )
        self.indices = selection.indices(len(labels))
        self.labels = labels[self.indices]

    def read(self, condition: Condition, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return clean images and labels from one position to another."""
        return _resize(self._images[self.indices[start:stop]], self._fit.size), self.labels[start:stop]

    def files(self) -> list[Path]:
        """Return the file."""
        return [self._file]


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Name the file if numpy cannot read it."""
    if not file.is_file():
        raise InputError(f"Expected a file {file}; there is none. Try: another path.")
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile) as error:
        # numpy's message about objects says how to have a pickle executed.
        reason = "it holds Python objects" if "pickle" in str(error) else error
        raise InputError(
            f"Expected numpy arrays of numbers in {file}; it cannot be read: {reason}. Try: download the file again, "
            "or save np.stack(images) of images of one size."
        ) from error


def _check_images(images: np.ndarray, file: Path, shape: tuple[int, ...] | None = None) -> None:
    if images.dtype != np.uint8:
        raise InputError(
            f"Expected images in bytes (uint8, 0 to 255) in {file}; received {images.dtype}. Try: for values in "
            "[0, 1], `np.round(255 * images).astype(np.uint8)`; for values up to 255, `images.astype(np.uint8)`."
        )
    if images.ndim != 4 or images.shape[-1] != 3 or images.size == 0 or shape not in (None, images.shape):
        raise InputError(
            f"Expected images of shape {shape or '(N, height, width, 3)'} in {file}, at least one; received "
            f"{images.shape}. Try: `np.repeat(images[..., None], 3, -1)` for gray images, "
            "`images.transpose(0, 2, 3, 1)` for channels that come first."
        )


def _check_labels(labels: np.ndarray, file: Path, classes: int | None) -> np.ndarray:
    """Return labels as (N,) in int64; Keras stores them as (N, 1)."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1 or not np.issubdtype(labels.dtype, np.integer):
        raise InputError(
            f"Expected one label per image, of an integer dtype, in {file}; received {labels.shape} in {labels.dtype}. "
            "Try: `labels.astype(np.int64)`, or `labels.argmax(1)` if there is a column for every class."
        )
    if len(labels) and (labels.min() < 0 or (classes is not None and labels.max() >= classes)):
        expected = "of at least 0" if classes is None else f"from 0 to {classes - 1}"
        raise InputError(f"Expected labels {expected} in {file}; received {labels.min()} to {labels.max()}.")
    return labels.astype(np.int64)


def _resize(images: np.ndarray, size: Size | None) -> np.ndarray:
    """Return images at a size. Images in arrays were cropped before: only another aspect ratio crops them again."""
    if size is None or images.shape[1:3] == size:
        return np.array(images, subok=False)
    fit = Fit(size, crop=1.0)
    return np.stack([np.asarray(fit.apply(Image.fromarray(image))) for image in images])
