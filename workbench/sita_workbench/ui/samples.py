"""Images to start from: digits for the digit reader, photographs that come with scikit-learn, or the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..models.digits import as_pictures, reads_digits

if TYPE_CHECKING:
    from ..models.loaded import LoadedModel

_MOST = 30


@dataclass(frozen=True, eq=False)
class Sample:
    """An image in bytes (h, w, 3), at the size that the model takes, its caption, and its label where it is known."""

    pixels: np.ndarray
    caption: str
    label: int | None = None


def load_samples(loaded: LoadedModel, folder: Path | None, names: Sequence[str]) -> tuple[Sample, ...]:
    """Return the images of a folder, or those that suit the model."""
    if folder is not None:
        return _from_folder(loaded, folder, names)
    return _digits() if reads_digits(loaded) else _photographs(loaded)


def _digits() -> tuple[Sample, ...]:
    """Return a test digit of every class, which the network was not trained on."""
    from ..demo.digits import load_digits

    _, test = load_digits()
    pictures = as_pictures(test.images)
    places = [int(np.flatnonzero(test.labels == label)[0]) for label in range(10)]
    return tuple(Sample(pictures[place], str(label), label) for label, place in enumerate(places))


def _photographs(loaded: LoadedModel) -> tuple[Sample, ...]:
    from PIL import Image
    from sklearn.datasets import load_sample_image

    files = {"a temple": "china.jpg", "a flower": "flower.jpg"}
    pictures = {caption: Image.fromarray(np.asarray(load_sample_image(file))) for caption, file in files.items()}
    return tuple(Sample(loaded.fit(picture), caption) for caption, picture in pictures.items())


def _from_folder(loaded: LoadedModel, folder: Path, names: Sequence[str]) -> tuple[Sample, ...]:
    """Return the first images of a folder; one that is in a folder named as a class has that label."""
    from ..commands.image_files import find_images, read_image

    paths = find_images([folder])[:_MOST]
    known = {name: label for label, name in enumerate(names)}
    return tuple(Sample(read_image(path, loaded), path.name, known.get(path.parent.name)) for path in paths)
