"""Corrupted images, with the kinds and strengths of ImageNet-C and CIFAR-10-C (Hendrycks and Dietterich, ICLR 2019).

The strengths are the published ones. The code is new, on numpy, scipy and Pillow alone. Compared with CIFAR-10-C, the
kinds without randomness differ by less than 0.1 gray levels on average, and the squared differences of the others are
within 8 % of the published ones. Two kinds differ: frost is drawn instead of photographed, and the drops of spatter
have other edges (`weather`).
"""

from __future__ import annotations

import zlib

import numpy as np

from sita_adapters.errors import InputError, suggestion

from . import digital, noise_blur, weather  # noqa: F401 (they register the kinds)
from .registry import REGISTERED, Corruption

SEVERITIES = (1, 2, 3, 4, 5)

_LARGEST_CIFAR_SIDE = 64

FAMILIES: dict[str, tuple[str, ...]] = {
    family: tuple(kind for kind, found in REGISTERED.items() if found.family == family and not found.holdout)
    for family in ("noise", "blur", "weather", "digital")
}
"""The fifteen kinds of the benchmark by family."""

KINDS = tuple(kind for kinds in FAMILIES.values() for kind in kinds)
"""The fifteen kinds over which the benchmark's results are averaged."""

HOLDOUT = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""Four more for choosing a method's settings, one of each family."""

CORRUPTIONS: dict[str, Corruption] = {kind: REGISTERED[kind] for kind in (*KINDS, *HOLDOUT)}


def corrupt(image: np.ndarray, kind: str, severity: int, *, seed: int = 0, index: int = 0) -> np.ndarray:
    """Return an image (h, w, 3) in uint8, corrupted; it may have any size.

    Random parts depend only on the seed, the kind and the image's index, so they are the same at every severity and do
    not depend on other images. The strengths are those of CIFAR-10-C for images with a side of up to 64 pixels, and
    those of ImageNet-C for larger ones.
    """
    if kind not in CORRUPTIONS:
        raise InputError(
            f"Expected a kind of corruption, one of {', '.join(CORRUPTIONS)}; received {kind!r}."
            f"{suggestion(str(kind), CORRUPTIONS)}"
        )
    if not isinstance(severity, (int, np.integer)) or severity not in SEVERITIES:
        raise InputError(f"Expected a severity from 1 to 5, a whole number; received {severity!r}.")
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] != 3 or image.size == 0:
        raise InputError(
            f"Expected an image (h, w, 3) in uint8; received shape {image.shape} in {image.dtype}. Try: for values in "
            "[0, 1], `np.round(255 * image).astype(np.uint8)`."
        )
    corruption = CORRUPTIONS[kind]
    strengths = corruption.cifar if min(image.shape[:2]) <= _LARGEST_CIFAR_SIDE else corruption.imagenet
    random = np.random.default_rng([seed, zlib.crc32(kind.encode()), index])
    distorted = corruption.distort(image / 255.0, random, *strengths[severity - 1])
    # The published arrays were truncated, not rounded. The offset keeps a value that is a rounding error below a whole
    # number.
    return np.floor(255 * np.clip(distorted, 0.0, 1.0) + 1e-4).astype(np.uint8)
