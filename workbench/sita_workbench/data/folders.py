"""Images in folders, one file each: clean ones by class or with a list of labels, and ImageNet-C."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from sita_adapters.errors import InputError

from ..corruptions import CORRUPTIONS, SEVERITIES
from .dataset import CLEAN, Condition, Dataset, Selection
from .images import (
    Fit,
    find_size,
    fingerprint_files,
    list_folders,
    list_images,
    pick_few,
    read_images,
    require_folder,
)

_FOLDER_LAYOUT = (
    "<class>/<image>.jpg (or png, webp, bmp …), with classes.txt where the classes' order is not that of their sorted "
    "names; or labels.json, {file name: label}, with the images beside it or in a folder images"
)
_IMAGENET_C_LAYOUT = "that of ImageNet-C: <corruption>/<severity>/<class>/<image>.JPEG, such as fog/5/n01440764/…"
_IMAGENET_CLASSES = 1000


class ImageFolder(Dataset):
    """Clean images, one folder per class, or in one folder with a list of labels."""

    def __init__(self, name: str, folder: Path, selection: Selection, fit: Fit) -> None:
        super().__init__(name, selection, fit)
        require_folder(folder, _FOLDER_LAYOUT)
        self.conditions = selection.conditions()
        if (folder / "labels.json").is_file():
            names, labels, self._folder = _read_label_list(folder)
        else:
            by_class = _list_by_class(folder)
            if list(by_class) == ["images"]:
                raise InputError(f"Expected labels.json beside the folder images in {folder}; there is none.")
            classes = _read_classes(folder) or sorted(by_class)
            names, labels = _label(by_class, classes, folder)
            self._folder, self.classes = folder, len(classes)
        if not names:
            raise InputError(f"Expected at least one image in {folder}; received none. The layout is {_FOLDER_LAYOUT}.")
        self.indices = selection.indices(len(names))
        self.labels = labels[self.indices]
        self._names = [names[index] for index in self.indices]
        self._size = find_size(self._paths(), fit)

    def _paths(self, start: int = 0, stop: int | None = None) -> list[Path]:
        return [self._folder / name for name in self._names[start:stop]]

    def read(self, condition: Condition, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return clean images and labels from one position to another."""
        return read_images(self._paths(start, stop), self._fit, self._size), self.labels[start:stop]

    def fingerprint(self) -> Iterator[bytes]:
        """Yield the labels, the names and some bytes of the files."""
        yield self.labels.tobytes()
        yield "\n".join(self._names).encode()
        yield from fingerprint_files(self._paths())


class ImageNetC(Dataset):
    """ImageNet-C: a folder for every corruption, severity and class, the same images in all of them.

    The published images were cropped to 224×224 before they were corrupted. For a model that takes another size they
    are resized and not cropped again.
    """

    stores_corruptions = True

    def __init__(self, name: str, folder: Path, selection: Selection, fit: Fit) -> None:
        super().__init__(name, selection, fit)
        require_folder(folder, _IMAGENET_C_LAYOUT)
        self._stored = _find_corruptions(folder)
        self.conditions = selection.stored_conditions(self._stored, folder, "a folder <corruption>/<severity>")
        by_class = self._list_same()
        classes = _read_classes(folder)
        if classes is None and len(by_class) != _IMAGENET_CLASSES:
            raise InputError(
                f"Expected {_IMAGENET_CLASSES} folders of classes in {self._place(self.conditions[0])}; received "
                f"{len(by_class)}, so the model's labels are not known. Try: a file {folder / 'classes.txt'} "
                "with all folder names in the model's order, one per line."
            )
        classes = classes or sorted(by_class)
        names, labels = _label(by_class, classes, folder)
        self.classes = len(classes)
        self.indices = selection.indices(len(names))
        self.labels = labels[self.indices]
        self._names = [names[index] for index in self.indices]
        # Reading the headers of millions of files would take minutes: all of one condition, and one of each other.
        one_each = [self._paths(condition, 0, 1)[0] for condition in self.conditions[1:]]
        self._size = find_size(self._paths(self.conditions[0]) + one_each, fit)

    def _place(self, condition: Condition) -> Path:
        kind = self._stored[condition.corruption]
        return kind / str(condition.severity) if condition.severity else kind

    def _paths(self, condition: Condition, start: int = 0, stop: int | None = None) -> list[Path]:
        place = self._place(condition)
        return [place / name for name in self._names[start:stop]]

    def _list_same(self) -> dict[str, list[str]]:
        """Return the images of the first condition by class, and raise unless all others have the same."""
        first: dict[str, list[str]] | None = None
        for condition in self.conditions:
            place = self._place(condition)
            require_folder(place, _IMAGENET_C_LAYOUT)
            listed = _list_by_class(place)
            if not any(listed.values()):
                raise InputError(f"Expected images in {place}; received none. The layout is {_IMAGENET_C_LAYOUT}.")
            first = first or listed
            if listed != first:
                expected, received = (
                    {f"{name}/{image}" for name, images in one.items() for image in images} for one in (first, listed)
                )
                differing = sorted(expected ^ received) or sorted(first.keys() ^ listed.keys())
                raise InputError(
                    f"Expected the same images in {place} and in {self._place(self.conditions[0])}; {len(differing)} "
                    f"are in one alone: {', '.join(differing[:3])}{' …' if len(differing) > 3 else ''}. "
                    "Try: unpack both again."
                )
        assert first is not None
        return first

    def read(self, condition: Condition, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return images and labels from one position to another, under a condition."""
        paths = self._paths(condition, start, stop)
        # A clean folder holds either original photographs, or the crops that the corrupted images were made from.
        fit = replace(self._fit, keep=True) if condition == CLEAN else replace(self._fit, crop=1.0)
        return read_images(paths, fit, self._size), self.labels[start:stop]

    def fingerprint(self) -> Iterator[bytes]:
        """Yield the labels, the names, and some bytes of a few files in every folder: the whole set has millions."""
        yield self.labels.tobytes()
        yield "\n".join(self._names).encode()
        few = pick_few(self._names)
        for kind, folder in self._stored.items():
            for place in [folder] if kind == CLEAN.corruption else _severities(folder):
                yield f"{kind}/{place.name}".encode()
                yield from fingerprint_files([place / name for name in few if (place / name).is_file()])


def _severities(folder: Path) -> list[Path]:
    return [folder / str(severity) for severity in SEVERITIES if (folder / str(severity)).is_dir()]


def _find_corruptions(folder: Path) -> dict[str, Path]:
    """Return the folders of corruptions, in this folder or, as in the published archives, in folders per family."""
    known = (CLEAN.corruption, *CORRUPTIONS)
    found = {name: folder / name for name in list_folders(folder) if name in known}
    for group in list_folders(folder):
        if group not in known:
            for name in list_folders(folder / group):
                if name in known:
                    found.setdefault(name, folder / group / name)
    return {name: found[name] for name in known if name in found}


def _list_by_class(folder: Path) -> dict[str, list[str]]:
    return {name: list_images(folder / name) for name in list_folders(folder)}


def _read_classes(folder: Path) -> list[str] | None:
    """Return the lines of classes.txt, or None where there is none."""
    file = folder / "classes.txt"
    if not file.is_file():
        return None
    classes = [line.strip() for line in file.read_text("utf-8-sig", "replace").splitlines() if line.strip()]
    twice = [name for name in dict.fromkeys(classes) if classes.count(name) > 1]
    if twice or not classes:
        raise InputError(
            f"Expected one folder name per line in {file}, each once; received "
            + (f"several times: {', '.join(twice[:3])}." if twice else "an empty file.")
        )
    return classes


def _label(by_class: dict[str, list[str]], classes: list[str], folder: Path) -> tuple[list[str], np.ndarray]:
    """Return <class>/<image> of all images, class by class in the order of the folders' names, and their labels."""
    unknown = sorted(by_class.keys() - set(classes))
    if unknown:
        raise InputError(
            f"Expected every folder of images to be named in {folder / 'classes.txt'}; received "
            f"{len(unknown)} that are not: {', '.join(unknown[:3])}{' …' if len(unknown) > 3 else ''}."
        )
    label_of = {name: label for label, name in enumerate(classes)}
    names = [f"{name}/{image}" for name in sorted(by_class) for image in by_class[name]]
    labels = [label_of[name] for name in sorted(by_class) for _ in by_class[name]]
    return names, np.array(labels, np.int64)


def _read_label_list(folder: Path) -> tuple[list[str], np.ndarray, Path]:
    """Return the names and labels of labels.json, and the folder that the images are in."""
    file = folder / "labels.json"
    try:
        listed = json.loads(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise InputError(f"Expected {{file name: label}} in {file}; it is not JSON: {error}.") from error
    if not isinstance(listed, dict):
        raise InputError(f"Expected {{file name: label}} in {file}; received a {type(listed).__name__}.")
    for name, label in listed.items():
        if isinstance(label, bool) or not isinstance(label, int) or label < 0:
            raise InputError(f"Expected labels that are whole numbers from 0 on in {file}; {name} has {label!r}.")
    place = folder / "images" if (folder / "images").is_dir() else folder
    there = set(list_images(place))
    for wrong, words in ((listed.keys() - there, "have no image"), (there - listed.keys(), "have no label")):
        if wrong:
            raise InputError(
                f"Expected the same names in {file} and in {place}, whose {len(listed)} labels and {len(there)} images "
                f"differ; {len(wrong)} {words}: {', '.join(sorted(wrong)[:3])}{' …' if len(wrong) > 3 else ''}."
            )
    names = sorted(listed)
    return names, np.array([listed[name] for name in names], np.int64), place
