"""Noise and blur: what a sensor, a lens or a moving hand does to an image.

Every function takes an image (h, w, 3) in [0, 1], float64, its strength from the table in `corruptions`, and a
generator. It returns the corrupted image, which may leave [0, 1].
"""

from __future__ import annotations

import numpy as np
from scipy import ndimage, signal

Strength = tuple[float, ...]


def gaussian_noise(image: np.ndarray, strength: Strength, random: np.random.Generator) -> np.ndarray:
    """y = x + n,  n ~ N(0, deviation²)."""
    (deviation,) = strength
    return image + random.normal(0.0, deviation, image.shape)


def shot_noise(image: np.ndarray, strength: Strength, random: np.random.Generator) -> np.ndarray:
    """y = k / photons,  k ~ Poisson(photons · x): few photons, much noise."""
    (photons,) = strength
    return random.poisson(image * photons) / photons


def impulse_noise(image: np.ndarray, strength: Strength, random: np.random.Generator) -> np.ndarray:
    """A share of all values, each channel on its own, becomes 0 or 1 with equal chance."""
    (share,) = strength
    hit = random.random(image.shape) < share
    return np.where(hit, random.integers(0, 2, image.shape), image)


def speckle_noise(image: np.ndarray, strength: Strength, random: np.random.Generator) -> np.ndarray:
    """y = x + x · n,  n ~ N(0, deviation²)."""
    (deviation,) = strength
    return image + image * random.normal(0.0, deviation, image.shape)


def gaussian_blur(image: np.ndarray, strength: Strength, _: np.random.Generator) -> np.ndarray:
    """Convolve with a Gaussian, truncated at four deviations; the edge pixel is repeated outside."""
    (deviation,) = strength
    return _smooth(image, deviation)


def defocus_blur(image: np.ndarray, strength: Strength, _: np.random.Generator) -> np.ndarray:
    """Convolve with the disk of a lens out of focus; the image is mirrored at its edges."""
    radius, softness = strength
    kernel = disk(radius, softness)
    border = len(kernel) // 2
    padded = np.pad(image, ((border, border), (border, border), (0, 0)), mode="reflect")
    return np.asarray(signal.fftconvolve(padded, kernel[..., None], mode="valid", axes=(0, 1)))


def glass_blur(image: np.ndarray, strength: Strength, random: np.random.Generator) -> np.ndarray:
    """Blur, let every pixel take the value of a random near one, `rounds` times, and blur again.

    The published loop is meant to swap two pixels, but both sides of its assignment are views of one array: the pixel
    takes its neighbour's value, and the neighbour keeps it. CIFAR-10-C and ImageNet-C were made so.
    """
    deviation, reach, rounds = strength
    # The published procedure shuffles bytes: fractions are lost before the second blur.
    shuffled = np.floor(255 * _smooth(image, deviation) + 1e-4) / 255
    for _ in range(int(rounds)):
        shuffled = shuffle_pixels(shuffled, int(reach), random)
    return _smooth(shuffled, deviation)


def motion_blur(image: np.ndarray, strength: Strength, random: np.random.Generator) -> np.ndarray:
    """Smear the image along a line within 45° of the horizontal."""
    radius, deviation = strength
    return smear(image, radius, deviation, random.uniform(-np.pi / 4, np.pi / 4))


def zoom_blur(image: np.ndarray, strength: Strength, _: np.random.Generator) -> np.ndarray:
    """y = (x + Σ zoom(x, 1 + i · step)) / (count + 1),  i = 0 … count − 1: a camera that moves towards its subject."""
    count, step = strength
    # Single precision, as published, and several times as fast.
    image = image.astype(np.float32)
    total = image.copy()
    for number in range(int(count)):
        total += zoom_centre(image, 1 + number * step)
    return np.asarray(total / np.float32(count + 1))


def disk(radius: float, softness: float) -> np.ndarray:
    """Return an odd square kernel of sum 1: the grid points within `radius`, their edge softened by a small Gaussian.

    The Gaussian has the deviation `softness` and 3 × 3 points, or 5 × 5 beyond a radius of 8.
    """
    reach = 1 if radius <= 8 else 2
    # Up to radius 8, the published grid is 17 × 17, so that the softened edge of the disk of radius 8 is mirrored.
    size = min(int(radius) + reach + 1, 8) if radius <= 8 else int(radius)
    places = np.arange(-size, size + 1)
    inside = (np.add.outer(places**2, places**2) <= radius**2).astype(np.float64)
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

    Half a Gaussian; places are rounded to whole pixels, and the edge pixel is repeated outside.
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


def zoom_centre(image: np.ndarray, factor: float) -> np.ndarray:
    """Return the middle of the image, `factor` times as large and as large as the image, interpolated linearly."""
    for axis in (0, 1):
        size = image.shape[axis]
        kept = int(np.ceil(size / factor))
        zoomed = int(kept * factor + 0.5)
        start, trim = (size - kept) // 2, (zoomed - size) // 2
        # The first and the last pixel that are kept become the first and the last of the zoomed image.
        places = start + (trim + np.arange(size)) * (kept - 1) / max(zoomed - 1, 1)
        before = np.floor(places).astype(int)
        after = np.minimum(before + 1, size - 1)
        share = np.expand_dims(places - before, [other for other in range(image.ndim) if other != axis])
        share = share.astype(image.dtype)
        first, second = image.take(before, axis), image.take(after, axis)
        image = first + share * (second - first)
    return image


def _smooth(image: np.ndarray, deviation: float) -> np.ndarray:
    return np.asarray(ndimage.gaussian_filter(image, (deviation, deviation, 0), mode="nearest", truncate=4.0))
