"""Weather: what the air, the light and drops on the lens do to an image. Lengths are in pixels of the image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from scipy import ndimage

from .noise_blur import smear, zoom_center
from .registry import corruption

_LUMA = np.array([0.299, 0.587, 0.114])
_WATER = np.array([175, 238, 238]) / 255
_MUD = np.array([63, 42, 20]) / 255


@corruption(
    "weather",
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
)
def snow(image: np.ndarray, random: Generator, *strength: float) -> np.ndarray:
    """y = fade · x + (1 − fade) · max(x, 1.5 · gray(x) + 0.5) + flakes + flakes turned by 180°.

    Flakes are enlarged Gaussian noise, of which the brightest part is kept and smeared in the direction of the fall.
    """
    mean, deviation, zoom, threshold, radius, trail, fade = strength
    flakes = zoom_center(random.normal(mean, deviation, image.shape[:2]), zoom)
    flakes = np.where(flakes < threshold, 0.0, np.clip(flakes, 0.0, 1.0))
    flakes = smear(flakes, radius, trail, random.uniform(-3 * np.pi / 4, -np.pi / 4))
    whitened = np.maximum(image, 1.5 * (image @ _LUMA)[..., None] + 0.5)
    return np.asarray(fade * image + (1 - fade) * whitened + (flakes + flakes[::-1, ::-1])[..., None])


@corruption(
    "weather",
    cifar=((1, 0.2, 3), (1, 0.3, 3), (0.9, 0.4, 3), (0.85, 0.4, 3), (0.75, 0.45, 3)),
    imagenet=((1, 0.4, 1), (0.8, 0.6, 1), (0.7, 0.7, 1), (0.65, 0.7, 1), (0.6, 0.75, 1)),
)
def frost(image: np.ndarray, random: Generator, image_weight: float, frost_weight: float, shrink: int) -> np.ndarray:
    """y = image_weight · x + frost_weight · ice.

    This kind differs from the published one, which blends parts of five photographs of frost with the image. Here the
    ice is drawn (`ice_texture`): its mean brightness, the variation of that between images, its contrast and its tint
    match CIFAR-10-C; its structure is only similar.
    """
    ice = ice_texture(image.shape[0], image.shape[1], shrink, random)
    return np.asarray(image_weight * image + frost_weight * ice)


@corruption(
    "weather",
    cifar=((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
    imagenet=((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
)
def fog(image: np.ndarray, random: Generator, density: float, decay: float) -> np.ndarray:
    """y = (x + density · clouds) · m / (m + density),  m = max(x)."""
    brightest = image.max()
    clouds = plasma_fractal(image.shape[0], image.shape[1], decay, random)
    return np.asarray((image + density * clouds[..., None]) * brightest / (brightest + density))


@corruption("weather", cifar=(0.05, 0.1, 0.15, 0.2, 0.3), imagenet=(0.1, 0.2, 0.3, 0.4, 0.5))
def brightness(image: np.ndarray, _: Generator, light: float) -> np.ndarray:
    """y = x · min(v + light, 1) / v,  v = max over channels: hue and saturation stay, the HSV value grows."""
    value = image.max(-1, keepdims=True)
    brighter = np.minimum(value + light, 1.0)
    # Black has no hue and becomes gray.
    return np.asarray(np.where(value > 0, image * brighter / np.where(value > 0, value, 1.0), brighter))


@corruption(
    "weather",
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
)
def spatter(image: np.ndarray, random: Generator, *strength: float) -> np.ndarray:
    """Drops of water, which light the image up, or (`is_mud`) of mud, which hide it.

    Drops are where smoothed noise is above a threshold. Water is shaded by the distance from the drops' edges. The
    published edges are those of a Canny detector; here they are the outermost pixels of the drops.
    """
    mean, deviation, smoothness, threshold, weight, is_mud = strength
    liquid = random.normal(mean, deviation, image.shape[:2])
    liquid = np.asarray(ndimage.gaussian_filter(liquid, smoothness, mode="nearest", truncate=4.0))
    drops = liquid > threshold
    if is_mud:
        cover = np.asarray(ndimage.gaussian_filter(drops.astype(np.float64), weight, mode="nearest", truncate=4.0))
        cover = np.where(cover < 0.8, 0.0, cover)[..., None]
        return np.asarray((1 - cover) * image + cover * _MUD)
    shine = np.where(drops, liquid, 0.0) * _relief(drops)
    return np.asarray(image + weight * (shine / max(shine.max(), 1e-12))[..., None] * _WATER)


def plasma_fractal(height: int, width: int, decay: float, random: Generator) -> np.ndarray:
    """Return clouds (height, width) in [0, 1]: diamond-square on a torus whose side is the next power of two.

    A point is the mean of its four neighbors, `step` apart, plus noise from U(−a, a); a = decay^(−2k) after the step
    was halved k times. (The published code squares its amplitude, and therefore its decay.) The least and the greatest
    value of the whole torus become 0 and 1.
    """
    side = 1 << (max(height, width, 2) - 1).bit_length()
    heights = np.zeros((1, 1))
    amplitude = 1.0
    while len(heights) < side:
        corners = heights
        count = len(corners)
        heights = np.empty((2 * count, 2 * count))

        def perturbed(sum_of_four: np.ndarray, amplitude: float = amplitude) -> np.ndarray:
            return sum_of_four / 4 + random.uniform(-amplitude, amplitude, sum_of_four.shape)

        right, below = np.roll(corners, -1, 1), np.roll(corners, -1, 0)
        middles = perturbed(corners + right + below + np.roll(right, -1, 0))
        heights[::2, ::2] = corners
        heights[1::2, 1::2] = middles
        heights[::2, 1::2] = perturbed(corners + right + middles + np.roll(middles, 1, 0))
        heights[1::2, ::2] = perturbed(corners + below + middles + np.roll(middles, 1, 1))
        amplitude /= decay**2
    heights -= heights.min()
    return np.asarray((heights / heights.max())[:height, :width])


def ice_texture(height: int, width: int, shrink: int, random: Generator) -> np.ndarray:
    """Return ice on a window, (height, width, 3) in [0, 1]: ferns of needles over uneven haze, in a bluish tint.

    The ferns are drawn `shrink` times larger and averaged: small images show more of them.
    """
    needles = 1 - np.exp(-_grow_ferns(height * shrink, width * shrink, random))
    needles = np.asarray(ndimage.gaussian_filter(needles, 0.6)).reshape(height, shrink, width, shrink).mean((1, 3))
    haze = plasma_fractal(height, width, 1.35, random)
    relief = _standardized(_standardized(needles) * (0.4 + haze) + 0.5 * _standardized(haze))
    gray = random.uniform(0.38, 0.94) + 0.13 * relief
    tint = 1 + random.uniform(0.0, 1.0) * np.array([-0.28, 0.02, 0.13])
    return np.clip(gray[..., None] * tint, 0.0, 1.0)


@dataclass(frozen=True)
class _Lines:
    """Straight lines: where they start (n, 2), in which direction (0 is to the right), and how long they are."""

    starts: np.ndarray
    angles: np.ndarray
    lengths: np.ndarray

    def branch(self, children: int, share: float, random: Generator) -> _Lines:
        """Return the lines that grow from these at 60°, shorter towards the tip, to either side in turn."""
        along = (np.arange(children) + random.uniform(0.0, 1.0, (len(self.starts), children))) / children
        sides = np.where(np.arange(children) % 2, 1.0, -1.0)
        directions = np.stack([np.sin(self.angles), np.cos(self.angles)], -1)
        starts = self.starts[:, None] + (along * self.lengths[:, None])[..., None] * directions[:, None]
        angles = self.angles[:, None] + sides * np.pi / 3 + random.normal(0.0, 0.08, along.shape)
        lengths = share * self.lengths[:, None] * (1 - along) * random.uniform(0.6, 1.0, along.shape)
        return _Lines(starts.reshape(-1, 2), angles.ravel(), lengths.ravel())

    def count_hits(self, height: int, width: int) -> np.ndarray:
        """Return (height, width): how many lines' points, a pixel apart, fall on every pixel."""
        points = np.maximum(np.ceil(self.lengths), 1).astype(int)
        line = np.repeat(np.arange(len(points)), points)
        step = np.arange(points.sum()) - np.repeat(np.cumsum(points) - points, points)
        rows = np.round(self.starts[line, 0] + step * np.sin(self.angles[line])).astype(int)
        columns = np.round(self.starts[line, 1] + step * np.cos(self.angles[line])).astype(int)
        inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
        hits = np.bincount((rows * width + columns)[inside], minlength=height * width)
        return hits.reshape(height, width)


def _grow_ferns(height: int, width: int, random: Generator) -> np.ndarray:
    """Return how much ice is on every pixel: stems, their branches, and the branches' twigs."""
    margin = 40.0
    count = max(int((height + 2 * margin) * (width + 2 * margin) / 1500), 8)
    stems = _Lines(
        starts=random.uniform(-margin, [height + margin, width + margin], (count, 2)),
        angles=random.uniform(0.0, 2 * np.pi, count),
        lengths=random.uniform(25.0, 90.0, count),
    )
    branches = stems.branch(22, 0.38, random)
    twigs = branches.branch(9, 0.35, random)
    weighted = ((0.9, stems), (0.6, branches), (0.45, twigs))
    return np.asarray(sum(weight * lines.count_hits(height, width) for weight, lines in weighted))


def _relief(drops: np.ndarray) -> np.ndarray:
    """Shade drops as if light came from one corner: the distance from their edges, equalized, and its slope."""
    edges = drops & ~np.asarray(ndimage.binary_erosion(drops, np.ones((3, 3)), border_value=1))
    distance = np.asarray(ndimage.distance_transform_edt(~edges)) if edges.any() else np.full(drops.shape, 20.0)
    distance = np.asarray(ndimage.uniform_filter(np.minimum(distance, 20.0), 3, mode="mirror")).astype(np.uint8)
    counts = np.bincount(distance.ravel(), minlength=256)
    ranks = counts.cumsum() - counts[distance.min()]
    equalized = 255.0 * ranks.clip(0) / max(ranks[-1], 1)
    slope = np.array([[-2.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [0.0, 1.0, 2.0]])
    shaded = np.asarray(ndimage.correlate(equalized[distance], slope, mode="mirror"))
    return np.asarray(ndimage.uniform_filter(np.clip(shaded, 0.0, 255.0), 3, mode="mirror"))


def _standardized(values: np.ndarray) -> np.ndarray:
    return np.asarray((values - values.mean()) / (values.std() + 1e-12))
