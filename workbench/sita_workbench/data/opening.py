"""Data sets by a short text such as cifar10c:FOLDER."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from sita_adapters.errors import InputError, suggestion

from .arrays import CifarC, open_npy, open_npz
from .dataset import Dataset, Selection, is_whole
from .folders import ImageFolder, ImageNetC
from .images import Fit, read_size
from .segmentation import open_camvid, open_segmentation

SPECS: dict[str, str] = {
    "cifar10c": "cifar10c:FOLDER, CIFAR-10-C as published",
    "cifar100c": "cifar100c:FOLDER, CIFAR-100-C as published",
    "imagenet-c": "imagenet-c:FOLDER, ImageNet-C as published",
    "imagefolder": "imagefolder:FOLDER, one folder of images per class, or images and labels.json",
    "npz": "npz:FILE, the arrays images and labels",
    "npy": "npy:FILE, an array of images, its labels in labels.npy beside it",
    "segmentation": "segmentation:FOLDER, photographs in images and label maps in labels; or IMAGES,LABELS",
    "camvid": "camvid:FOLDER, CamVid's test and testannot",
}
"""What `open_data` can open, by the word before the colon."""


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
    """Open a data set; `SPECS` lists them. Checks everything that can be checked without reading all of it.

    `corrupt` is "all" (the fifteen kinds of ImageNet-C, and clean where corruptions are made here), "all+holdout" (four
    more), "none" (clean only), or names separated by commas, "clean" among them. Clean data are corrupted when they are
    loaded, after resizing, from `seed` and the position of each image among all. `limit` selects that many images at
    even distances, the same ones under every condition.

    `size` is a side or (height, width). Images of an imagefolder are resized and cropped in the centre (`Fit`; `crop`
    is the share that the crop keeps). Images in arrays and of ImageNet-C were cropped before, and are only resized. In
    segmentation, photographs and label maps are resized to exactly this size. `ignore` is the label of pixels that do
    not count: by default 255, and 11 in CamVid.
    """
    kind, _, place = spec.partition(":")
    if kind not in SPECS or not place:
        hint = suggestion(kind, SPECS) if kind not in SPECS else ""
        raise InputError(f"Expected data as one of: {'; '.join(SPECS.values())}. Received {spec!r}.{hint}")
    if ignore is not None and kind not in ("segmentation", "camvid"):
        raise InputError(f"Expected a label to ignore for segmentation or camvid alone; received {ignore} for {kind}.")
    if ignore is not None and not is_whole(ignore):
        raise InputError(f"Expected ignore as a whole number of at least 0; received {ignore!r}.")
    path, fit, selection = (
        Path(place).expanduser(),
        Fit(read_size(size), crop),
        Selection(corrupt, tuple(severities), limit, seed),
    )
    if kind == "segmentation":
        return open_segmentation(spec, place, selection, fit, ignore=ignore)
    if kind == "camvid":
        return open_camvid(spec, path, selection, fit, ignore=ignore)
    return _OPENERS[kind](spec, path, selection, fit)


_OPENERS: dict[str, Callable[[str, Path, Selection, Fit], Dataset]] = {
    "cifar10c": partial(CifarC, classes=10),
    "cifar100c": partial(CifarC, classes=100),
    "imagenet-c": ImageNetC,
    "imagefolder": ImageFolder,
    "npz": open_npz,
    "npy": open_npy,
}
