"""The table of corruptions, which the functions in `noise_blur`, `weather` and `digital` fill."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

Strength = tuple[float, ...]
Distort = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Corruption:
    """A kind of corruption: what it does, and its strength at severity 1 to 5 for small and for large images."""

    family: str
    distort: Distort
    cifar: tuple[Strength, ...]
    imagenet: tuple[Strength, ...]
    holdout: bool


REGISTERED: dict[str, Corruption] = {}


def corruption(
    family: str, *, cifar: Iterable[float | Strength], imagenet: Iterable[float | Strength], holdout: bool = False
) -> Callable[[Distort], Distort]:
    """Register a function as a kind of corruption.

    The function takes an image (h, w, 3) in [0, 1], float64, a generator, and the numbers of its strength. It returns
    the corrupted image, which may leave [0, 1].
    """

    def register(distort: Distort) -> Distort:
        tables = [tuple(one if isinstance(one, tuple) else (one,) for one in table) for table in (cifar, imagenet)]
        REGISTERED[distort.__name__] = Corruption(family, distort, tables[0], tables[1], holdout)
        return distort

    return register
