"""Digital processing: what an editor, a warp and a file format do to an image.

The lengths of elastic_transform are shares of the image's smaller side.
"""

from __future__ import annotations

from io import BytesIO

import numpy as np
from numpy.random import Generator
from PIL import Image
from scipy import fft, ndimage

from .registry import corruption

_OF_SIDE = 244 / 224
"""The published lengths of elastic_transform are multiples of 244 pixels, for images of 224."""


@corruption("digital", cifar=(0.75, 0.5, 0.4, 0.3, 0.15), imagenet=(0.4, 0.3, 0.2, 0.1, 0.05))
def contrast(image: np.ndarray, _: Generator, kept: float) -> np.ndarray:
    """y = m + kept · (x − m),  m = the mean of each channel."""
    mean = image.mean((0, 1))
    return np.asarray(mean + kept * (image - mean))


@corruption(
    "digital",
    cifar=((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
    imagenet=((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    holdout=True,
)
def saturate(image: np.ndarray, _: Generator, factor: float, shift: float) -> np.ndarray:
    """y = v − (v − x) · s' / s,  s' = clip(factor · s + shift, 0, 1),  with HSV's value v and saturation s.

    Gray has no hue and counts as red, as in the published procedure: a shift tints it.
    """
    value = image.max(-1, keepdims=True)
    spread = value - image.min(-1, keepdims=True)
    saturation = spread / np.where(value > 0, value, 1.0)
    wanted = np.clip(factor * saturation + shift, 0.0, 1.0)
    # (v − x) / (v · s): how far each channel is below v, 0 for the highest and 1 for the lowest.
    depth = np.where(spread > 0, (value - image) / np.where(spread > 0, spread, 1.0), np.array([0.0, 1.0, 1.0]))
    return np.asarray(value * (1 - wanted * depth))


@corruption(
    "digital",
    cifar=((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    imagenet=(
        tuple(_OF_SIDE * share for share in shares)
        for shares in ((2, 0.7, 0.1), (2, 0.08, 0.2), (0.05, 0.01, 0.02), (0.07, 0.01, 0.02), (0.12, 0.01, 0.02))
    ),
)
def elastic_transform(image: np.ndarray, random: Generator, *shares: float) -> np.ndarray:
    """Move three points of the image (an affine map), then every pixel by a smooth random field.

    The shares are the field's amplitude before it is smoothed, the deviation of the Gaussian that smooths it, and how
    far a point is moved at most.
    """
    height, width = image.shape[:2]
    side = min(height, width)
    amplitude, smoothness, shift = (side * share for share in shares)
    center, arm = np.array([height // 2, width // 2]), max(side // 3, 1)
    points = center + arm * np.array([[1, 1], [-1, 1], [-1, -1]])
    moved = points + random.uniform(-shift, shift, points.shape)
    to_source = np.linalg.solve(np.column_stack([moved, np.ones(3)]), points)
    grid = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"))
    turned = np.tensordot(to_source[:2].T, grid, 1) + to_source[2][:, None, None]
    image = _sample(image, turned, mode="mirror")

    if amplitude == 0:
        return image
    field = random.uniform(-1.0, 1.0, (2, height, width))
    return _sample(image, grid + amplitude * smooth_mirrored(field, smoothness, truncate=3.0), mode="reflect")


@corruption("digital", cifar=(0.95, 0.9, 0.85, 0.75, 0.65), imagenet=(0.6, 0.5, 0.4, 0.3, 0.25))
def pixelate(image: np.ndarray, _: Generator, share: float) -> np.ndarray:
    """Shrink the image to `share` of its sides and enlarge it again, averaging over boxes."""
    height, width = image.shape[:2]
    small = (max(int(width * share), 1), max(int(height * share), 1))
    picture = Image.fromarray(np.round(255 * image).astype(np.uint8)).resize(small, Image.Resampling.BOX)
    return np.asarray(picture.resize((width, height), Image.Resampling.BOX)) / 255


@corruption("digital", cifar=(80, 65, 58, 50, 40), imagenet=(25, 18, 15, 10, 7))
def jpeg_compression(image: np.ndarray, _: Generator, quality: int) -> np.ndarray:
    """Write the image as a JPEG file of this quality, as Pillow does, and read it again."""
    file = BytesIO()
    Image.fromarray(np.round(255 * image).astype(np.uint8)).save(file, "JPEG", quality=quality)
    with Image.open(file) as picture:
        return np.asarray(picture.convert("RGB")) / 255


def smooth_mirrored(field: np.ndarray, deviation: float, truncate: float) -> np.ndarray:
    """Convolve the last two axes with a truncated Gaussian g, the field mirrored about the outer edges of its pixels.

    Cosine waves cos(π k (j + ½) / n) keep their form: each is multiplied by Σ g(i) cos(π k i / n). Unlike the
    convolution itself, this is not slower for a Gaussian that is wider than the image.
    """
    reach = np.arange(-int(truncate * deviation + 0.5), int(truncate * deviation + 0.5) + 1)
    weights = np.exp(-(reach**2) / (2 * deviation**2))
    weights /= weights.sum()
    waves = np.asarray(fft.dctn(field, axes=(-2, -1)))
    for axis in (-2, -1):
        size = field.shape[axis]
        # A mirrored field has period 2 n, so the Gaussian is wrapped to it.
        wound = np.bincount(reach % (2 * size), weights, 2 * size)
        gains = np.asarray(fft.rfft(wound)).real[:size]
        waves *= gains[:, None] if axis == -2 else gains
    return np.asarray(fft.idctn(waves, axes=(-2, -1)))


def _sample(image: np.ndarray, positions: np.ndarray, mode: str) -> np.ndarray:
    """Return the image at positions (2, h, w), interpolated linearly."""
    channels = [ndimage.map_coordinates(image[..., channel], positions, order=1, mode=mode) for channel in range(3)]
    return np.stack(channels, -1)
