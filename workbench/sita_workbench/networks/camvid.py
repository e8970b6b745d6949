"""CamVid: road scenes seen from a car, every pixel labelled, and how well a network labels them.

DATA holds `camvid/train` and `camvid/test` (photographs), `camvid/trainannot` and `camvid/testannot` (grey PNG label
maps of the same names): 367 + 117 pairs of 480 × 360 pixels, 11 classes, 11 = void (Brostow et al. 2009, in the reduced
form of SegNet).
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from sita_adapters.errors import InputError
from sita_adapters.inputs import ENCODINGS

if TYPE_CHECKING:
    import torch

CLASSES = (
    "sky",
    "building",
    "pole",
    "road",
    "pavement",
    "tree",
    "sign",
    "fence",
    "car",
    "pedestrian",
    "bicyclist",
)
"""What a label 0–10 means."""

VOID = len(CLASSES)
"""The label of pixels that nobody labelled: never trained on and never scored."""

PALETTE = np.array(
    [
        (128, 128, 128),
        (128, 0, 0),
        (192, 192, 128),
        (128, 64, 128),
        (60, 40, 222),
        (128, 128, 0),
        (192, 128, 128),
        (64, 64, 128),
        (64, 0, 128),
        (64, 64, 0),
        (0, 128, 192),
        (0, 0, 0),
    ],
    np.uint8,
)
"""The usual colour of every label, void last: `PALETTE[labels]` is a picture."""

SIZE = (240, 180)
"""Width and height at which a network of a few minutes' training works: half of the originals'."""

VALIDATION_COUNT = 67
"""The last of the training pictures, kept out of training: whatever is to be chosen is chosen on these.

They go on with a drive of which earlier frames are trained on, and so are easier than the test pictures.
"""

Split: TypeAlias = Literal["train", "validation", "test"]

Pair: TypeAlias = tuple[Path, Path]
"""The files of a photograph and of its label map."""


def find_pairs(data: Path, split: Split) -> list[Pair]:
    """Return the pairs of a split, in the order of their names."""
    folder = "test" if split == "test" else "train"
    photographs = _files(data / "camvid" / folder)
    maps = _files(data / "camvid" / f"{folder}annot")
    unmatched = sorted(photographs.keys() ^ maps.keys())
    if unmatched:
        raise InputError(
            f"Expected a label map in camvid/{folder}annot for every photograph in camvid/{folder}, and no other; "
            f"received {len(unmatched)} without the other: {', '.join(unmatched[:3])}"
            f"{' …' if len(unmatched) > 3 else ''}. Remedy: copy both folders anew."
        )
    pairs = [(photographs[name], maps[name]) for name in sorted(photographs)]
    if split == "test":
        return pairs
    if len(pairs) <= VALIDATION_COUNT:
        raise InputError(
            f"Expected more than {VALIDATION_COUNT} pairs in camvid/train, the last {VALIDATION_COUNT} being for "
            f"validation; received {len(pairs)}."
        )
    return pairs[:-VALIDATION_COUNT] if split == "train" else pairs[-VALIDATION_COUNT:]


def _files(folder: Path) -> dict[str, Path]:
    """Return the pictures in a folder by their names without the ending."""
    if not folder.is_dir():
        raise InputError(
            f"Expected a folder {folder}; there is none. DATA is the folder that holds camvid/train, "
            "camvid/trainannot, camvid/test and camvid/testannot."
        )
    return {path.stem: path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png")}


def load_pairs(pairs: list[Pair], size: tuple[int, int] | None = SIZE) -> tuple[np.ndarray, np.ndarray]:
    """Return photographs (N, h, w, 3) and labels (N, h, w), both in uint8.

    `size` is (width, height); None keeps the files' own, which must then all be alike. Photographs are averaged over
    the pixels that fall together, labels are picked.
    """
    if not pairs:
        raise InputError("Expected at least one pair of a photograph and its label map; received none.")
    loaded = [_load_pair(pair, size) for pair in pairs]
    shapes = {labels.shape for _, labels in loaded}
    if len(shapes) > 1:
        raise InputError(f"Expected photographs of one size; received {sorted(shapes)} (height, width). Pass `size`.")
    return np.stack([image for image, _ in loaded]), np.stack([labels for _, labels in loaded])


def load_split(data: Path, split: Split, size: tuple[int, int] | None = SIZE) -> tuple[np.ndarray, np.ndarray]:
    """Return the photographs (N, h, w, 3) and labels (N, h, w) of a split, both in uint8, as `load_pairs` does."""
    return load_pairs(find_pairs(data, split), size)


def _load_pair(pair: Pair, size: tuple[int, int] | None) -> tuple[np.ndarray, np.ndarray]:
    from PIL import Image

    with Image.open(pair[0]) as photograph, Image.open(pair[1]) as label_map:
        if photograph.size != label_map.size:
            raise InputError(
                f"Expected the label map {pair[1].name} at its photograph's size, {photograph.size}; "
                f"received {label_map.size}."
            )
        # A map with a palette holds labels as well; one with colours would lose them on the way to grey.
        if label_map.mode not in ("L", "P"):
            raise InputError(
                f"Expected the label map {pair[1].name} with one label of 8 bits a pixel; "
                f"received an image of mode {label_map.mode}."
            )
        image = np.asarray(photograph.convert("RGB"))
        labels = np.asarray(label_map)
    if labels.max() > VOID:
        raise InputError(
            f"Expected labels from 0 to {VOID} ({VOID} is void) in {pair[1].name}; received {labels.max()}. "
            "Other forms of CamVid number 32 classes, or store colours."
        )
    return (image, labels) if size is None else resize(image, labels, size)


def resize(
    image: np.ndarray, labels: np.ndarray, size: tuple[int, int], box: tuple[int, int, int, int] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return a photograph (h, w, 3) and its labels (h, w) at a size (width, height).

    Where a box (left, top, right, bottom) is given, only what is inside it is taken. The photograph is interpolated
    linearly, and averaged where it shrinks, so that it does not alias; labels are those of the nearest pixel.
    """
    from PIL import Image

    return (
        np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BILINEAR, box)),
        np.asarray(Image.fromarray(labels).resize(size, Image.Resampling.NEAREST, box)),
    )


def digest(pairs: list[Pair]) -> str:
    """Return a hash of the files' contents."""
    contents = hashlib.sha256()
    for pair in pairs:
        for path in pair:
            contents.update(hashlib.sha256(path.read_bytes()).digest())
    return contents.hexdigest()


def encode(images: np.ndarray) -> torch.Tensor:
    """Return photographs (N, h, w, 3) in uint8 as a network takes them: (N, 3, h, w), (x / 255 − mean) / std.

    Mean and std are ImageNet's, which `sita.adapt(…, inputs="imagenet")` is told by.
    """
    import torch

    encoding = ENCODINGS["imagenet"]
    pixels = torch.tensor(images).permute(0, 3, 1, 2).float() / 255
    return (pixels - torch.tensor(encoding.mean).view(3, 1, 1)) / torch.tensor(encoding.std).view(3, 1, 1)


def count_confusions(predictions: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return how often each class was taken for each, image by image: (N, true class, predicted class).

    Both are label maps (N, h, w); pixels labelled void are left out. The sum over any choice of images is that choice's
    confusion matrix, so that images can be resampled without predicting again.
    """
    classes = len(CLASSES)
    if predictions.shape != labels.shape or labels.ndim != 3:
        raise InputError(
            f"Expected predictions and labels of one shape (N, h, w); received {predictions.shape} and {labels.shape}."
        )
    if predictions.size and not 0 <= predictions.min() <= predictions.max() < classes:
        raise InputError(
            f"Expected predicted classes from 0 to {classes - 1}; received {predictions.min()} to {predictions.max()}."
        )
    counts = np.empty((len(labels), classes, classes), np.int64)
    for index, (predicted, truth) in enumerate(zip(predictions, labels, strict=True)):
        known = truth != VOID
        joint = truth[known].astype(np.int64) * classes + predicted[known].astype(np.int64)
        counts[index] = np.bincount(joint, minlength=classes**2).reshape(classes, classes)
    return counts


def class_ious(confusion: np.ndarray) -> np.ndarray:
    """IoU = right / (true + predicted − right), (…, classes), of confusion matrices (…, true class, predicted class).

    A class that is neither there nor predicted is NaN.
    """
    right = np.diagonal(confusion, axis1=-2, axis2=-1).astype(np.float64)
    union = confusion.sum(-1) + confusion.sum(-2) - right
    return np.asarray(np.divide(right, union, out=np.full(right.shape, np.nan), where=union > 0))


def mean_iou(predictions: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean over classes of the IoU over all images' pixels together; both are label maps (N, h, w)."""
    return float(np.nanmean(class_ious(count_confusions(predictions, labels).sum(0))))
