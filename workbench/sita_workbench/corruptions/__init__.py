"""Corrupted images, with the kinds and strengths of ImageNet-C and CIFAR-10-C (Hendrycks and Dietterich, ICLR 2019).

The strengths are the published ones. The code is new, on numpy, scipy and Pillow alone. Compared with CIFAR-10-C, the
kinds without randomness differ by less than 0.1 grey levels on average, and the squared differences of the others are
within 8 % of the published ones. Two kinds are made differently: frost, whose photographs are replaced by drawn ice,
and the edges of the drops of spatter (`weather_digital`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from sita_adapters.errors import InputError, suggestion

from . import noise_blur, weather_digital
from .noise_blur import Strength

Scale = Literal["cifar", "imagenet"]
Family = Literal["noise", "blur", "weather", "digital"]

SEVERITIES = (1, 2, 3, 4, 5)

_LARGEST_CIFAR_SIDE = 64
_Distort = Callable[[np.ndarray, Strength, np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Corruption:
    """A kind of corruption: what it does, and its strength at severity 1 to 5 for small and for large images."""

    family: Family
    distort: _Distort
    cifar: tuple[Strength, ...]
    imagenet: tuple[Strength, ...]
    holdout: bool = False


def _each(*values: float) -> tuple[Strength, ...]:
    return tuple((value,) for value in values)


def _of_side(multiple: float, *shares: Strength) -> tuple[Strength, ...]:
    return tuple(tuple(multiple * share for share in one) for one in shares)


# Lengths are in pixels of the image, except those of elastic_transform, which are shares of its smaller side. Several
# numbers are in the order in which the kind's function unpacks them.
CORRUPTIONS: dict[str, Corruption] = {
    "gaussian_noise": Corruption(
        "noise",
        noise_blur.gaussian_noise,
        cifar=_each(0.04, 0.06, 0.08, 0.09, 0.10),
        imagenet=_each(0.08, 0.12, 0.18, 0.26, 0.38),
    ),
    "shot_noise": Corruption(
        "noise",
        noise_blur.shot_noise,
        cifar=_each(500, 250, 100, 75, 50),
        imagenet=_each(60, 25, 12, 5, 3),
    ),
    "impulse_noise": Corruption(
        "noise",
        noise_blur.impulse_noise,
        cifar=_each(0.01, 0.02, 0.03, 0.05, 0.07),
        imagenet=_each(0.03, 0.06, 0.09, 0.17, 0.27),
    ),
    "defocus_blur": Corruption(
        "blur",
        noise_blur.defocus_blur,
        cifar=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        imagenet=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    ),
    "glass_blur": Corruption(
        "blur",
        noise_blur.glass_blur,
        cifar=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        imagenet=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    ),
    "motion_blur": Corruption(
        "blur",
        noise_blur.motion_blur,
        cifar=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        imagenet=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    ),
    "zoom_blur": Corruption(
        "blur",
        noise_blur.zoom_blur,
        cifar=((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01)),
        imagenet=((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03)),
    ),
    "snow": Corruption(
        "weather",
        weather_digital.snow,
        cifar=(
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        imagenet=(
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    ),
    "frost": Corruption(
        "weather",
        weather_digital.frost,
        cifar=((1, 0.2, 3), (1, 0.3, 3), (0.9, 0.4, 3), (0.85, 0.4, 3), (0.75, 0.45, 3)),
        imagenet=((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
    ),
    "fog": Corruption(
        "weather",
        weather_digital.fog,
        cifar=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        imagenet=((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    ),
    "brightness": Corruption(
        "weather",
        weather_digital.brightness,
        cifar=_each(0.05, 0.1, 0.15, 0.2, 0.3),
        imagenet=_each(0.1, 0.2, 0.3, 0.4, 0.5),
    ),
    "contrast": Corruption(
        "digital",
        weather_digital.contrast,
        cifar=_each(0.75, 0.5, 0.4, 0.3, 0.15),
        imagenet=_each(0.4, 0.3, 0.2, 0.1, 0.05),
    ),
    "elastic_transform": Corruption(
        "digital",
        weather_digital.elastic_transform,
        cifar=((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        # The published lengths are multiples of 244 pixels, for images of 224.
        imagenet=_of_side(
            244 / 224, (2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02)
        ),
    ),
    "pixelate": Corruption(
        "digital",
        weather_digital.pixelate,
        cifar=_each(0.95, 0.9, 0.85, 0.75, 0.65),
        imagenet=_each(0.6, 0.5, 0.4, 0.3, 0.25),
    ),
    "jpeg_compression": Corruption(
        "digital",
        weather_digital.jpeg_compression,
        cifar=_each(80, 65, 58, 50, 40),
        imagenet=_each(25, 18, 15, 10, 7),
    ),
    "speckle_noise": Corruption(
        "noise",
        noise_blur.speckle_noise,
        cifar=_each(0.06, 0.1, 0.12, 0.16, 0.2),
        imagenet=_each(0.15, 0.2, 0.35, 0.45, 0.6),
        holdout=True,
    ),
    "gaussian_blur": Corruption(
        "blur",
        noise_blur.gaussian_blur,
        cifar=_each(0.4, 0.6, 0.7, 0.8, 1),
        imagenet=_each(1, 2, 3, 4, 6),
        holdout=True,
    ),
    "spatter": Corruption(
        "weather",
        weather_digital.spatter,
        cifar=(
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
        imagenet=(
            (0.65, 0.3, 4, 0.69, 0.6, 0),
            (0.65, 0.3, 3, 0.68, 0.6, 0),
            (0.65, 0.3, 2, 0.68, 0.5, 0),
            (0.65, 0.3, 1, 0.65, 1.5, 1),
            (0.67, 0.4, 1, 0.65, 1.5, 1),
        ),
        holdout=True,
    ),
    "saturate": Corruption(
        "digital",
        weather_digital.saturate,
        cifar=((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        imagenet=((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
        holdout=True,
    ),
}

KINDS = tuple(kind for kind, corruption in CORRUPTIONS.items() if not corruption.holdout)
"""The fifteen kinds over which the benchmark's results are averaged."""

HOLDOUT = tuple(kind for kind, corruption in CORRUPTIONS.items() if corruption.holdout)
"""Four more for choosing a method's settings, one of each family, in the order of the families."""

FAMILIES: dict[str, tuple[str, ...]] = {
    family: tuple(kind for kind in KINDS if CORRUPTIONS[kind].family == family)
    for family in ("noise", "blur", "weather", "digital")
}
"""The fifteen kinds by family."""


def corrupt(
    image: np.ndarray, kind: str, severity: int, *, seed: int = 0, index: int = 0, scale: Scale | None = None
) -> np.ndarray:
    """Return an image (h, w, 3) in uint8, corrupted; it may have any size.

    Random parts depend only on the seed, the kind and the image's index, so they are the same at every severity and do
    not depend on other images. The strengths are those of CIFAR-10-C for images with a side of up to
    64 pixels, and those of ImageNet-C for larger ones; `scale` chooses otherwise.
    """
    _check(image, kind, severity, scale, dimensions=3)
    scale = scale or ("cifar" if min(image.shape[:2]) <= _LARGEST_CIFAR_SIDE else "imagenet")
    corruption = CORRUPTIONS[kind]
    strengths = corruption.cifar if scale == "cifar" else corruption.imagenet
    random = np.random.default_rng([seed, zlib.crc32(kind.encode()), index])
    distorted = corruption.distort(image / 255.0, strengths[severity - 1], random)
    # The published arrays were truncated, not rounded. The offset keeps a value that is a rounding error below a whole
    # number.
    return np.floor(255 * np.clip(distorted, 0.0, 1.0) + 1e-4).astype(np.uint8)


def corrupt_all(
    images: np.ndarray, kind: str, severity: int, seed: int = 0, *, scale: Scale | None = None
) -> np.ndarray:
    """Return images (N, h, w, 3) in uint8, each corrupted with its place as index."""
    _check(images, kind, severity, scale, dimensions=4)
    corrupted = np.empty_like(images)
    for index, image in enumerate(images):
        corrupted[index] = corrupt(image, kind, severity, seed=seed, index=index, scale=scale)
    return corrupted


def _check(images: np.ndarray, kind: str, severity: int, scale: Scale | None, *, dimensions: int) -> None:
    if kind not in CORRUPTIONS:
        raise InputError(
            f"Expected a kind of corruption, one of {', '.join(CORRUPTIONS)}; received {kind!r}."
            f"{suggestion(str(kind), CORRUPTIONS)}"
        )
    if not isinstance(severity, (int, np.integer)) or severity not in SEVERITIES:
        raise InputError(f"Expected a severity from 1 to 5, a whole number; received {severity!r}.")
    if scale not in (None, "cifar", "imagenet"):
        raise InputError(f"Expected scale 'cifar', 'imagenet' or None, by the image's size; received {scale!r}.")
    form = "(h, w, 3)" if dimensions == 3 else "(N, h, w, 3)"
    if not isinstance(images, np.ndarray):
        raise InputError(f"Expected a numpy array {form} in uint8; received {type(images).__name__}.")
    if images.dtype != np.uint8:
        raise InputError(
            f"Expected bytes (uint8, 0 to 255); received {images.dtype}. Of values in [0, 1], "
            "`np.round(255 * values).astype(np.uint8)` makes bytes."
        )
    if images.ndim != dimensions or images.shape[-1] != 3 or 0 in images.shape[-3:]:
        raise InputError(f"Expected shape {form}, channels last; received {images.shape}.")
