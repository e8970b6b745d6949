"""Open data sets by names such as cifar10c:FOLDER."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sita_adapters.errors import InputError, suggestion

from .arrays import CifarC, Npz
from .dataset import Dataset, Selection
from .folders import ImageFolder, ImageNetC
from .images import Fit
from .segmentation import CAMVID_CLASSES, CAMVID_VOID, Segmentation

SPECS: dict[str, str] = {
    "cifar10c": "cifar10c:FOLDER, CIFAR-10-C as published",
    "cifar100c": "cifar100c:FOLDER, CIFAR-100-C as published",
    "imagenet-c": "imagenet-c:FOLDER, ImageNet-C as published",
    "imagefolder": "imagefolder:FOLDER, one folder of images per class, or labels.json and images",
    "npz": "npz:FILE, the arrays images and labels",
    "segmentation": "segmentation:FOLDER, photographs in images and label maps in labels",
    "camvid": "camvid:FOLDER, CamVid's test and testannot",
}
"""What `open_data` can open, by the word before the colon."""


def open_data(
    spec: str,
    *,
    corrupt: str = "all",
    severities: Sequence[int] = (5,),
    limit: int | None = None,
    size: int | tuple[int, int] | None = None,
    crop: float = 0.875,
    ignore: int | None = None,
    names: Sequence[str] = (),
) -> Dataset:
    """Open a data set, one of `SPECS`.

    `corrupt` is "all" (the fifteen kinds of ImageNet-C, and clean unless corruptions are stored), "none" (clean only),
    or names separated by commas, which may include "clean". Clean data are corrupted when they are loaded, after
    resizing. `limit` selects this many images, evenly spaced, and the same ones under every condition.

    `size` is a side or (height, width). Images of an imagefolder are resized and cropped (`Fit`). Images in arrays and
    of ImageNet-C were cropped before, and are only resized. In segmentation, photographs and label maps are resized to
    exactly this size. `ignore` is the label of pixels to ignore (255). Folders may have the `names` of classes.
    """
    kind, _, place = spec.partition(":")
    if kind not in SPECS or not place:
        hint = suggestion(kind, SPECS) if kind not in SPECS else ""
        raise InputError(f"Expected data as one of: {'; '.join(SPECS.values())}. Received {spec!r}.{hint}")
    if ignore is not None and (kind != "segmentation" or ignore < 0):
        raise InputError(f"Expected a label to ignore, 0 or more, for segmentation only; received {ignore} for {kind}.")
    path, selection = Path(place).expanduser(), Selection(corrupt, tuple(severities), limit)
    fit = Fit((size, size) if isinstance(size, int) else size, crop)
    match kind:
        case "cifar10c" | "cifar100c":
            return CifarC(spec, path, selection, fit, classes=10 if kind == "cifar10c" else 100)
        case "imagenet-c":
            return ImageNetC(spec, path, selection, fit)
        case "imagefolder":
            return ImageFolder(spec, path, selection, fit, names)
        case "npz":
            return Npz(spec, path, selection, fit)
        case "segmentation":
            folders = (path / "images", path / "labels")
            return Segmentation(spec, folders, selection, fit, ignore=255 if ignore is None else ignore)
    folders = (path / "test", path / "testannot")
    return Segmentation(spec, folders, selection, fit, ignore=CAMVID_VOID, classes=len(CAMVID_CLASSES))
