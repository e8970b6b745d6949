"""The sample images of the page, and the corruptions that suit the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..corruptions import CORRUPTIONS, corrupt
from ..demo.digits import load_digits
from ..demo.digits_corruptions import CORRUPTIONS as DIGIT_CORRUPTIONS
from ..models.digits import SPECS, as_pictures

if TYPE_CHECKING:
    from ..demo.digits_corruptions import Corruption
    from ..models.loaded import LoadedModel

Corrupt: TypeAlias = Callable[..., np.ndarray]
"""Takes an image in bytes (h, w, 3) and `severity=`, from 1 to 5, and returns it corrupted."""

_MAX_SAMPLES = 30


@dataclass(frozen=True, eq=False)
class Sample:
    """An image in bytes (h, w, 3), at the size that the model takes, its caption, and its label if it is known."""

    pixels: np.ndarray
    caption: str
    label: int | None = None


def load_samples(loaded: LoadedModel, folder: Path | None, names: Sequence[str]) -> tuple[Sample, ...]:
    """Return the first images of a folder, or a test digit of every class, or photographs from scikit-learn.

    If an image's folder is named after a class, the image has that label.
    """
    if folder is not None:
        from ..commands.image_files import find_images, read_image

        known = {name: label for label, name in enumerate(names)}
        paths = find_images([folder])[:_MAX_SAMPLES]
        return tuple(Sample(read_image(path, loaded), path.name, known.get(path.parent.name)) for path in paths)
    if loaded.spec in SPECS:
        test = load_digits()[1]
        chosen = [int(np.flatnonzero(test.labels == label)[0]) for label in range(10)]
        pictures = as_pictures(test.images[chosen])
        return tuple(Sample(pixels, str(label), label) for label, pixels in enumerate(pictures))
    from PIL import Image
    from sklearn.datasets import load_sample_image

    files = {"a temple": "china.jpg", "a flower": "flower.jpg"}
    photographs = {caption: Image.fromarray(load_sample_image(file)) for caption, file in files.items()}
    return tuple(Sample(loaded.fit(picture), caption) for caption, picture in photographs.items())


def corruptions_for(loaded: LoadedModel) -> Mapping[str, Corrupt]:
    """Return the kinds of corruption by name: those of `sita corruptions`, or for digits those of the demo.

    The published strengths are for photographs. They hardly affect digits, which are large and clear.
    """
    if loaded.spec in SPECS:
        return {each.name: partial(_corrupt_digit, each) for each in DIGIT_CORRUPTIONS}
    return {kind.replace("_", " "): partial(corrupt, kind=kind) for kind in CORRUPTIONS}


def _corrupt_digit(kind: Corruption, pixels: np.ndarray, severity: int) -> np.ndarray:
    """Corrupt a digit; severity 3 is the demo's strength."""
    factor = 3 / severity if kind.name == "pixelation" else severity / 3  # the more cells, the less is lost
    stronger = replace(kind, strength=kind.strength * factor)
    return np.asarray(as_pictures(stronger.apply(pixels.mean(axis=-1) / 255)[None])[0])
