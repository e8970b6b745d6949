"""The corruptions that the page offers: those of `sita corruptions`, or for the digit reader those of the demo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..models.digits import as_pictures, reads_digits

if TYPE_CHECKING:
    from ..demo.digits_corruptions import Corruption
    from ..models.loaded import LoadedModel

Corrupt: TypeAlias = Callable[[np.ndarray, int], np.ndarray]
"""Takes an image in bytes (h, w, 3) and a severity from 1 to 5, and returns it corrupted."""

_MIDDLE = 3
"""The severity at which the demo's corruptions have the strength that they have there."""


def corruptions_for(loaded: LoadedModel) -> Mapping[str, Corrupt]:
    """Return the kinds of corruption by the names that a reader knows them by.

    The published strengths are for photographs: digits, which are large and clear, hardly suffer from them.
    """
    if reads_digits(loaded):
        from ..demo.digits_corruptions import CORRUPTIONS as OF_DIGITS

        return {each.name: partial(_corrupt_digit, each) for each in OF_DIGITS}
    from ..corruptions import CORRUPTIONS, corrupt

    def of_kind(kind: str) -> Corrupt:
        return lambda pixels, severity: corrupt(pixels, kind, severity)

    return {kind.replace("_", " "): of_kind(kind) for kind in CORRUPTIONS}


def _corrupt_digit(kind: Corruption, pixels: np.ndarray, severity: int) -> np.ndarray:
    factor = severity / _MIDDLE
    if kind.name == "pixelation":  # the more cells, the less is lost
        factor = 1 / factor
    grey = pixels.mean(axis=-1) / 255
    stronger = replace(kind, strength=kind.strength * factor)
    return np.asarray(as_pictures(stronger.apply(grey, index=0)[None])[0])
