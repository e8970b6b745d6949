"""Image files as a command receives them: found, and read at the size that a model takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sita_adapters.errors import InputError

from ..data.images import ENDINGS, read_rgb

if TYPE_CHECKING:
    from ..models.loaded import LoadedModel


def find_images(given: Sequence[Path]) -> list[Path]:
    """Return the files, those in folders sorted by name."""
    found: list[Path] = []
    for path in given:
        files = [path]
        if path.is_dir():
            images = (file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
            files = sorted(file for file in images if not file.name.startswith("."))
        if not files:
            raise InputError(f"Expected images in the folder {path}; no file ends in {', '.join(ENDINGS)}.")
        found += files
    return found


def read_image(path: Path, loaded: LoadedModel) -> np.ndarray:
    """Return an image in bytes (h, w, 3), at the size that the model takes."""
    return loaded.fit(read_rgb(path, loaded.max_pixels))
