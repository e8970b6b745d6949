"""Noise and blur: what a sensor, a lens or a moving hand does to an image.

Lengths are in pixels of the image.
"""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from scipy import ndimage, signal

from .registry import corruption


@corruption("noise", cifar=(0.04, 0.06, 0.08, 0.09, 0.10), imagenet=(0.08, 0.12, 0.18, 0.26, 0.38))
def gaussian_noise(image: np.ndarray, random: Generator, deviation: float) -> np.ndarray:
    """y = x + n,  n ~ N(0, deviation²)."""
    return image + random.normal(0.0, deviation, image.shape)


@corruption("noise", cifar=(500, 250, 100, 75, 50), imagenet=(60, 25, 12, 5, 3))
def shot_noise(image: np.ndarray, random: Generator, photons: float) -> np.ndarray:
    """y = k / photons,  k ~ Poisson(photons · x): few photons, much noise."""
    return random.poisson(image * photons) / photons


@corruption("noise", cifar=(0.01, 0.02, 0.03, 0.05, 0.07), imagenet=(0.03, 0.06, 0.09, 0.17, 0.27))
def impulse_noise(image: np.ndarray, random: Generator, share: float) -> np.ndarray:
    """A share of all values, independently in each channel, becomes 0 or 1 with equal chance."""
    hit = random.random(image.shape) < share
    return np.where(hit, random.integers(0, 2, image.shape), image)


@corruption("noise", cifar=(0.06, 0.1, 0.12, 0.16, 0.2), imagenet=(0.15, 0.2, 0.35, 0.45, 0.6), holdout=True)
def speckle_noise(image: np.ndarray, random: Generator, deviation: float) -> np.ndarray:
    """y = x + x · n,  n ~ N(0, deviation²)."""
    return image + image * random.normal(0.0, deviation, image.shape)


@corruption("blur", cifar=(0.4, 0.6, 0.7, 0.8, 1), imagenet=(1, 2, 3, 4, 6), holdout=True)
def gaussian_blur(image: np.ndarray, _: Generator | None, deviation: float) -> np.ndarray:
    """Convolve with a Gaussian, truncated at four deviations; the edge pixel is repeated outside."""
    return np.asarray(ndimage.gaussian_filter(image, (deviation, deviation, 0), mode="nearest", truncate=4.0))


@corruption(
    "blur",
    cifar=((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    imagenet=((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
)
def defocus_blur(image: np.ndarray, _: Generator, radius: float, softness: float) -> np.ndarray:
    """Convolve with the disk of a lens out of focus; the image is mirrored at its edges."""
    kernel = disk(radius, softness)
    border = len(kernel) // 2
    padded = np.pad(image, ((border, border), (border, border), (0, 0)), mode="reflect")
    return np.asarray(signal.fftconvolve(padded, kernel[..., None], mode="valid", axes=(0, 1)))


@corruption(
    "blur",
    cifar=((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
    imagenet=((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
)
def glass_blur(image: np.ndarray, random: Generator, deviation: float, reach: int, rounds: int) -> np.ndarray:
    """Blur, let every pixel take the value of a random near one, `rounds` times, and blur again.

    The published loop is meant to swap two pixels, but both sides of its assignment are views of one array: the pixel
    takes its neighbor's value, and the neighbor keeps it. CIFAR-10-C and ImageNet-C were made this way.
    """
    # The published procedure shuffles bytes: fractions are lost before the second blur.
    shuffled = np.floor(255 * gaussian_blur(image, None, deviation) + 1e-4) / 255
    for _ in range(rounds):
        shuffled = shuffle_pixels(shuffled, reach, random)
    return gaussian_blur(shuffled, None, deviation)


@corruption(
    "blur",
    cifar=((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
    imagenet=((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
)
def motion_blur(image: np.ndarray, random: Generator, radius: float, deviation: float) -> np.ndarray:
    """Smear the image along a line within 45° of the horizontal."""
    return smear(image, radius, deviation, random.uniform(-np.pi / 4, np.pi / 4))


@corruption(
    "blur",
    cifar=((7, 0.01), (12, 0.01), (16, 0.01), (21, 0.01), (26, 0.01)),
    imagenet=((12, 0.01), (16, 0.01), (11, 0.02), (13, 0.02), (11, 0.03)),
)
def zoom_blur(image: np.ndarray, _: Generator, count: int, step: float) -> np.ndarray:
    """y = (x + Σ zoom(x, 1 + i · step)) / (count + 1),  i = 0 … count − 1: a camera that moves towards its subject."""
    # Single precision, as published, and several times as fast.
    image = image.astype(np.float32)
    total = image.copy()
    for number in range(count):
        total += zoom_center(image, 1 + number * step)
    return np.asarray(total / np.float32(count + 1))


def disk(radius: float, softness: float) -> np.ndarray:
    """Return an odd square kernel of sum 1: the grid points within `radius`, their edge softened by a small Gaussian.

    The Gaussian has the deviation `softness` and 3 × 3 points, or 5 × 5 beyond a radius of 8.
    """
    reach = 1 if radius <= 8 else 2
    # Up to radius 8, the published grid is 17 × 17, which mirrors the softened edge of the disk of radius 8.
    size = min(int(radius) + reach + 1, 8) if radius <= 8 else int(radius)
    positions = np.arange(-size, size + 1)
    inside = (np.add.outer(positions**2, positions**2) <= radius**2).astype(np.float64)
    profile = np.exp(-(np.arange(-reach, reach + 1) ** 2) / (2 * softness**2))
    for axis in (0, 1):
        inside = ndimage.correlate1d(inside, profile / profile.sum(), axis, mode="mirror")
    return np.asarray(inside / inside.sum())


def shuffle_pixels(image: np.ndarray, reach: int, random: np.random.Generator) -> np.ndarray:
    """Let pixels, one after the other from the last to the first, take the value of one up to `reach` away.

    Offsets are from −reach to reach − 1, and rows and columns from reach + 1 to size − reach take part. A pixel that
    points at an earlier one gets what that one got: its value is at the end of a chain. Chains are followed for all
    pixels at once, twice as far at every step, with the same result as the loop over pixels.
    """
    height, width = image.shape[:2]
    core = (slice(reach + 1, height - reach + 1), slice(reach + 1, width - reach + 1))
    numbers = np.arange(height * width)
    takes_part = np.zeros((height, width), bool)
    takes_part[core] = True
    down, right = random.integers(-reach, reach, (2, *takes_part[core].shape))
    source = numbers.copy()
    source.reshape(height, width)[core] += down * width + right

    had_its_turn = takes_part.ravel()[source] & (source > numbers)
    end = np.where(had_its_turn, source, numbers)
    while not np.array_equal(further := end[end], end):
        end = further
    return np.asarray(image.reshape(height * width, -1)[source[end]].reshape(image.shape))


def smear(image: np.ndarray, radius: float, deviation: float, angle: float) -> np.ndarray:
    """Return y(p) = Σ g(i) · x(p + i · direction),  g(i) ∝ exp(−i² / (2 deviation²)),  i = 0 … 2 ⌈radius⌉.

    Half a Gaussian; positions are rounded to whole pixels, and the edge pixel is repeated outside.
    """
    steps = np.arange(2 * int(np.ceil(radius)) + 1)
    weights = np.exp(-(steps**2) / (2 * deviation**2))
    weights /= weights.sum()
    down, right = (np.ceil(steps * share - 0.5).astype(int) for share in (np.sin(angle), np.cos(angle)))
    height, width = image.shape[:2]
    top, left = -min(down.min(), 0), -min(right.min(), 0)
    borders = [(top, max(down.max(), 0)), (left, max(right.max(), 0))] + [(0, 0)] * (image.ndim - 2)
    padded = np.pad(image, borders, mode="edge")
    smeared = np.zeros_like(image)
    for weight, y, x in zip(weights, top + down, left + right, strict=True):
        smeared += weight * padded[y : y + height, x : x + width]
    return smeared


def zoom_center(image: np.ndarray, factor: float) -> np.ndarray:
    """Return the middle of the image, `factor` times as large and as large as the image, interpolated linearly."""
    for axis in (0, 1):
        size = image.shape[axis]
        kept = int(np.ceil(size / factor))
        zoomed = int(kept * factor + 0.5)
        start, trim = (size - kept) // 2, (zoomed - size) // 2
        # The first and the last pixel that are kept become the first and the last of the zoomed image.
        positions = start + (trim + np.arange(size)) * (kept - 1) / max(zoomed - 1, 1)
        before = np.floor(positions).astype(int)
        after = np.minimum(before + 1, size - 1)
        share = np.expand_dims(positions - before, [other for other in range(image.ndim) if other != axis])
        share = share.astype(image.dtype)
        first, second = image.take(before, axis), image.take(after, axis)
        image = first + share * (second - first)
    return image
