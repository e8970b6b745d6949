"""Images in numpy files: CIFAR-10-C and CIFAR-100-C as published, and clean images in an npz or npy."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from sita_adapters.errors import InputError

from ..corruptions import CORRUPTIONS, SEVERITIES
from .dataset import CLEAN, Condition, Dataset, Selection
from .images import Fit, Size, fingerprint_file, memory_size, require_folder

_CIFAR_LAYOUT = (
    "that of CIFAR-10-C: an array of bytes (5·N, 32, 32, 3) for every corruption, such as fog.npy, its five blocks of "
    "N being severity 1 to 5, and labels.npy"
)
_NPZ_NAMES = (("images", "labels"), ("x_test", "y_test"), ("x", "y"))


class CifarC(Dataset):
    """CIFAR-10-C or CIFAR-100-C: one file per corruption, with five blocks of the same images.

    The files stay on disk; only what is requested is read.
    """

    stores_corruptions = True

    def __init__(self, name: str, folder: Path, selection: Selection, fit: Fit, *, classes: int) -> None:
        super().__init__(name, selection, fit)
        require_folder(folder, _CIFAR_LAYOUT)
        self.classes = classes
        paths = {kind: folder / f"{kind}.npy" for kind in (CLEAN.corruption, *CORRUPTIONS)}
        self._files = {kind: path for kind, path in paths.items() if path.is_file()}
        self.conditions = selection.stored_conditions(self._files, folder, "a file <corruption>.npy")
        labels_file = folder / "labels.npy"
        if not labels_file.is_file():
            raise InputError(f"Expected a file {labels_file}; there is none. The layout is {_CIFAR_LAYOUT}.")
        labels = _check_labels(_load_npy(labels_file), labels_file, classes)
        self._arrays: dict[str, np.ndarray] = {}
        for kind in dict.fromkeys(condition.corruption for condition in self.conditions):
            self._arrays[kind] = images = _load_npy(self._files[kind])
            _check_images(images, self._files[kind])
            if images.shape[1:3] != (32, 32):
                raise InputError(f"Expected images of 32×32 pixels in {self._files[kind]}; received {images.shape}.")
        self._count = self._count_images(labels, labels_file)
        self.indices = selection.indices(self._count)
        self.labels = labels[self.indices]

    def _count_images(self, labels: np.ndarray, labels_file: Path) -> int:
        """Return N, and raise unless all arrays and the labels agree on it."""
        counts = {}
        for kind, array in self._arrays.items():
            blocks = 1 if kind == CLEAN.corruption else len(SEVERITIES)
            if len(array) % blocks:
                raise InputError(
                    f"Expected five equal blocks of images in {self._files[kind]}; received {len(array)} images, "
                    "which five does not divide. Try: download the file again."
                )
            counts[kind] = len(array) // blocks
        first, count = next(iter(counts.items()))
        for kind, other in counts.items():
            if other != count:
                raise InputError(
                    f"Expected the same number of images per severity in every file; received {count} in {first}.npy "
                    f"and {other} in {kind}.npy. Try: download both files again."
                )
        if len(labels) not in (count, len(SEVERITIES) * count):
            raise InputError(
                f"Expected {count} labels, or five times as many, in {labels_file}, for {count} images per severity; "
                f"received {len(labels)}."
            )
        if len(labels) != count and np.any(labels.reshape(len(SEVERITIES), count) != labels[:count]):
            raise InputError(
                f"Expected the same labels for all five severities in {labels_file}, as the images are the same; "
                "received blocks that differ."
            )
        return count

    def read(self, condition: Condition, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return images and labels from one position to another, under a condition."""
        block = max(condition.severity - 1, 0)
        rows = block * self._count + self.indices[start:stop]
        return _resize(self._arrays[condition.corruption][rows], self._fit.size), self.labels[start:stop]

    def fingerprint(self) -> Iterator[bytes]:
        """Yield the labels and some bytes of every file."""
        yield self.labels.tobytes()
        for path in self._files.values():
            yield from fingerprint_file(path)


class CleanArray(Dataset):
    """Clean images in an array (N, h, w, 3), which may stay on disk, and a label for each."""

    def __init__(
        self, name: str, file: Path, arrays: tuple[np.ndarray, np.ndarray], selection: Selection, fit: Fit
    ) -> None:
        super().__init__(name, selection, fit)
        images, labels = arrays
        _check_images(images, file)
        labels = _check_labels(labels, file, None)
        if len(images) != len(labels):
            raise InputError(f"Expected a label for every image of {file}; received {len(images)} and {len(labels)}.")
        self.conditions = selection.conditions()
        self._images, self._file = images, file
        self.indices = selection.indices(len(images))
        self.labels = labels[self.indices]

    def read(self, condition: Condition, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return clean images and labels from one position to another."""
        return _resize(self._images[self.indices[start:stop]], self._fit.size), self.labels[start:stop]

    def fingerprint(self) -> Iterator[bytes]:
        """Yield the labels and some bytes of the file."""
        yield self.labels.tobytes()
        yield from fingerprint_file(self._file)


def open_npz(name: str, file: Path, selection: Selection, fit: Fit) -> CleanArray:
    """Open the images and labels of an npz. They are read into memory; for very large data use an npy."""
    _require_file(file, "an npz with the arrays images and labels, or x_test and y_test, or x and y")
    with _naming(file), np.load(file) as stored:
        if not isinstance(stored, np.lib.npyio.NpzFile):
            raise InputError(f"Expected an npz in {file}; received a single array. Try: npy:{file}")
        for images, labels in _NPZ_NAMES:
            if images in stored and labels in stored:
                _check_header(stored, images, file)
                return CleanArray(name, file, (stored[images], stored[labels]), selection, fit)
        received = ", ".join(stored.files) or "none"
    expected = " or ".join(f"{images}, {labels}" for images, labels in _NPZ_NAMES)
    raise InputError(f"Expected arrays named {expected} in {file}; received {received}.")


def _check_header(stored: Any, name: str, file: Path) -> None:
    """Check an array by its header, before it is decompressed: zeros take a thousandth of their size in an npz."""
    with stored.zip.open(f"{name}.npy") as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    _check_images(np.broadcast_to(np.zeros((), dtype), shape), file)
    size, memory = math.prod(shape) * dtype.itemsize, memory_size()
    if size > memory // 2:
        raise InputError(
            f"Expected images that fit half of the memory ({memory / 2e9:.1f} GB) in {file}; received "
            f"{size / 1e9:.1f} GB. Try: npy:FILE, which stays on disk."
        )


def open_npy(name: str, file: Path, selection: Selection, fit: Fit) -> CleanArray:
    """Open the images of an npy, which stay on disk, with the labels beside it."""
    layout = "images in an npy, their labels beside it in <its name>_labels.npy or labels.npy"
    _require_file(file, layout)
    beside = [file.with_name(f"{file.stem}_labels.npy"), file.with_name("labels.npy")]
    found = [path for path in beside if path.is_file() and path != file]
    if not found:
        raise InputError(f"Expected labels in {beside[0]} or {beside[1]}; neither is there. The layout is {layout}.")
    return CleanArray(name, file, (_load_npy(file), _load_npy(found[0])), selection, fit)


def _require_file(file: Path, layout: str) -> None:
    if not file.is_file():
        received = "a folder" if file.is_dir() else "nothing there"
        raise InputError(f"Expected a file {file}; received {received}. The layout is {layout}.")


@contextmanager
def _naming(file: Path) -> Iterator[None]:
    """Name the file in what numpy raises where it cannot read it."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        if str(error).startswith("Object arrays"):
            raise InputError(
                f"Expected numpy arrays of numbers in {file}; received an array of objects, such as images of several "
                "sizes. Try: bring them to one size, and save np.stack(images)."
            ) from error
        # Of whatever is no array numpy says how to have it executed.
        reason = "it is no file of numpy's" if "allow_pickle" in str(error) else error
        raise InputError(
            f"Expected numpy arrays of numbers in {file}; it cannot be read: {reason}. Try: download the file again."
        ) from error


def _load_npy(file: Path) -> np.ndarray:
    with _naming(file):
        stored: Any = np.load(file, mmap_mode="r")
    if not isinstance(stored, np.ndarray):
        raise InputError(f"Expected a single array in {file}; received an npz. Try: npz:{file}")
    return stored


def _check_images(images: np.ndarray, file: Path) -> None:
    if images.dtype != np.uint8:
        raise InputError(
            f"Expected images in bytes (uint8, 0 to 255) in {file}; received {images.dtype}. Try: of values in "
            "[0, 1], `np.round(255 * images).astype(np.uint8)` makes bytes; of values up to 255, "
            "`images.astype(np.uint8)`."
        )
    if images.ndim != 4 or images.shape[-1] != 3 or 0 in images.shape[1:]:
        remedies = {
            3: " Try: of grey images, `np.repeat(images[..., None], 3, -1)` makes colour ones.",
            4: " Try: `images.transpose(0, 2, 3, 1)` puts channels last." if images.shape[1:2] == (3,) else "",
        }
        raise InputError(
            f"Expected images of shape (N, height, width, 3) in {file}; received {images.shape}."
            f"{remedies.get(images.ndim, '')}"
        )
    if len(images) == 0:
        raise InputError(f"Expected at least one image in {file}; received none.")


def _check_labels(labels: np.ndarray, file: Path, classes: int | None) -> np.ndarray:
    """Return labels as (N,) in int64; Keras stores them as (N, 1)."""
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        remedy = " Try: `labels.argmax(1)`, if there is a column for every class." if labels.ndim == 2 else ""
        raise InputError(f"Expected one label per image in {file}; received labels of shape {labels.shape}.{remedy}")
    if not np.issubdtype(labels.dtype, np.integer):
        raise InputError(
            f"Expected labels that are whole numbers (an integer dtype) in {file}; received {labels.dtype}. "
            "Try: `labels.astype(np.int64)`, if they are."
        )
    if len(labels) and (labels.min() < 0 or (classes is not None and labels.max() >= classes)):
        expected = "of at least 0" if classes is None else f"from 0 to {classes - 1}"
        raise InputError(f"Expected labels {expected} in {file}; received {labels.min()} to {labels.max()}.")
    return labels.astype(np.int64)


def _resize(images: np.ndarray, size: Size | None) -> np.ndarray:
    """Return images at a size. Images in arrays were cropped before: only another aspect ratio crops them again."""
    if size is None or images.shape[1:3] == size:
        return np.array(images, subok=False)
    from PIL import Image

    fit = Fit(size, crop=1.0)
    return np.stack([np.asarray(fit.apply(Image.fromarray(image))) for image in images])
