"""Images in folders, one file each: clean ones by class or with a list of labels, and ImageNet-C."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np

from sita_adapters.errors import InputError

from ..corruptions import CORRUPTIONS
from .dataset import CLEAN, Condition, Dataset, Selection
from .images import Fit, find_size, list_images, read_images, require_folder

_FOLDER_LAYOUT = (
    "<class>/<image>.jpg (or png, webp, bmp …), with classes.txt if the classes' order is not that of their sorted "
    "names; or labels.json, {file name: label}, with the images in a folder images"
)
_IMAGENET_C_LAYOUT = "<corruption>/<severity>/<class>/<image>.JPEG, such as fog/5/n01440764/…"


class _LabeledFiles(Dataset):
    """One file per image, of the same name in the folder of every stored condition."""

    def _select(self, folders: dict[Condition, Path], label_of: dict[str, int], selection: Selection) -> None:
        if not label_of:
            raise InputError(f"Expected at least one image in {next(iter(folders.values()))}; received none.")
        self.indices = selection.indices(len(label_of))
        self.labels = np.array(list(label_of.values()), np.int64)[self.indices]
        names = list(label_of)
        self._folders, self._names = folders, [names[index] for index in self.indices]
        self._size = find_size(self.files(), self._fit)

    def read(self, condition: Condition, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return images and labels from one position to another, under a stored condition."""
        paths = [self._folders[condition] / name for name in self._names[start:stop]]
        return read_images(paths, self._fit, self._size), self.labels[start:stop]

    def files(self) -> list[Path]:
        """Return all files of the first condition, and a few of each other: ImageNet-C has millions."""
        first, *others = self._folders.values()
        few = self._names[:: -(-len(self._names) // 16)]
        return [*(first / name for name in self._names), *(other / name for other in others for name in few)]


class ImageFolder(_LabeledFiles):
    """Clean images, one folder per class, or in one folder with a list of labels."""

    def __init__(self, name: str, folder: Path, selection: Selection, fit: Fit, known: Collection[str] = ()) -> None:
        super().__init__(name, fit)
        require_folder(folder, _FOLDER_LAYOUT)
        self.conditions = selection.conditions()
        if (folder / "labels.json").is_file():
            label_of = _read_label_list(folder)
        else:
            folders = _list_folders(folder)
            if folders == ["images"]:
                raise InputError(f"Expected labels.json next to the folder images in {folder}; there is none.")
            classes = _read_classes(folder) or (list(known) if {*folders} <= {*known} else folders)
            label_of, self.classes = _label(folder, folders, classes), len(classes)
        self._select({CLEAN: folder}, label_of, selection)


class ImageNetC(_LabeledFiles):
    """ImageNet-C: a folder for every corruption, severity and class, the same images in all of them.

    The published images were cropped to 224×224 before they were corrupted. For a model that takes another size they
    are resized and not cropped again.
    """

    stores_corruptions = True

    def __init__(self, name: str, folder: Path, selection: Selection, fit: Fit) -> None:
        super().__init__(name, replace(fit, crop=1.0))
        require_folder(folder, _IMAGENET_C_LAYOUT)
        # The published archives are one folder per family.
        found = {kind: [*folder.glob(kind), *folder.glob(f"*/{kind}")] for kind in CORRUPTIONS}
        self.conditions = selection.conditions([kind for kind, matches in found.items() if matches])
        folders = {each: found[each.corruption][0] / str(each.severity) for each in self.conditions}
        for place in folders.values():
            require_folder(place, _IMAGENET_C_LAYOUT)
        first, *others = folders.values()
        received = _list_folders(first)
        classes = _read_classes(folder) or received
        label_of = _label(first, received, classes)
        for other in others:
            if differing := label_of.keys() ^ _label(other, _list_folders(other), classes).keys():
                raise InputError(
                    f"Expected the same images in {other} and in {first}; in one of them only: {_some(differing)}. "
                    "Try: unpack both again."
                )
        self.classes = len(classes)
        self._select(folders, label_of, selection)


def _list_folders(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith(".") and entry.is_dir())


def _read_classes(folder: Path) -> list[str] | None:
    """Return the lines of classes.txt, or None if there is none."""
    file = folder / "classes.txt"
    if not file.is_file():
        return None
    classes = [line.strip() for line in file.read_text("utf-8-sig", "replace").splitlines() if line.strip()]
    if not classes or len(set(classes)) < len(classes):
        raise InputError(f"Expected one folder name per line in {file}, each once; received {_some(classes)}.")
    return classes


def _label(folder: Path, folders: list[str], classes: list[str]) -> dict[str, int]:
    """Return the label of <class>/<image>, for all images, class by class in the order of the folders' names."""
    if unknown := set(folders) - set(classes):
        raise InputError(f"Expected every folder of images to be named in classes.txt; missing: {_some(unknown)}.")
    label = {name: label for label, name in enumerate(classes)}
    return {f"{name}/{image}": label[name] for name in folders for image in list_images(folder / name)}


def _read_label_list(folder: Path) -> dict[str, int]:
    """Return the label of images/<image>, for all images, as labels.json says."""
    file = folder / "labels.json"
    require_folder(folder / "images", _FOLDER_LAYOUT)
    try:
        listed = json.loads(file.read_text(encoding="utf-8-sig"))
    except ValueError as error:
        raise InputError(f"Expected {{file name: label}} in {file}; it is not JSON: {error}.") from error
    for name, label in listed.items() if isinstance(listed, dict) else [("no dictionary", repr(listed))]:
        if type(label) is not int or label < 0:
            raise InputError(
                f"Expected {{file name: non-negative whole number}} in {file}; received {name}: {label!r}."
            )
    if differing := listed.keys() ^ set(list_images(folder / "images")):
        raise InputError(
            f"Expected the same names in {file} and in {folder / 'images'}; in one of them only: {_some(differing)}."
        )
    return {f"images/{name}": listed[name] for name in sorted(listed)}


def _some(names: Collection[str]) -> str:
    return f"{', '.join(sorted(names)[:3])}{' …' if len(names) > 3 else ''} ({len(names)})"
