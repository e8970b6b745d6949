"""Image files as a command is given them: found, checked, and read at the size that a model takes."""

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
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(
            file
            for file in path.rglob("*")
            if file.suffix.lower() in ENDINGS and not file.name.startswith(".") and file.is_file()
        )
        if not inside:
            raise InputError(
                f"Expected images in the folder {path}; there is no file that ends in {', '.join(ENDINGS)}."
            )
        found += inside
    return found


def check_images(paths: Sequence[Path]) -> None:
    """Decode every file, so that a damaged one is reported before a model has run for minutes."""
    for path in paths:
        check_image(path)


def check_image(path: Path) -> None:
    """Decode a file; raise where that fails."""
    read_rgb(path)


def find_damaged(paths: Sequence[Path]) -> dict[Path, str]:
    """Return what is wrong with each file that cannot be decoded; raise where all of them cannot."""
    damaged: dict[Path, str] = {}
    for path in paths:
        try:
            check_image(path)
        except InputError as error:
            damaged[path] = str(error)
            if len(damaged) == len(paths) == 1:
                raise
    if len(damaged) == len(paths):
        raise InputError(f"None of {len(paths)} images can be read. The first: {next(iter(damaged.values()))}")
    return damaged


def read_image(path: Path, loaded: LoadedModel) -> np.ndarray:
    """Return an image in bytes (h, w, 3), at the size that the model takes."""
    return loaded.fit(read_rgb(path, loaded.max_pixels))
