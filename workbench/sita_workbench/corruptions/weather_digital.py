"""Weather and digital processing: what the air, the light and a file format do to an image.

Every function takes an image (h, w, 3) in [0, 1], float64, its strength from the table in `corruptions`, and a
generator. It returns the corrupted image, which may leave [0, 1].
"""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

import numpy as np
from scipy import fft, ndimage

from .noise_blur import Strength, smear, zoom_centre

_LUMA = np.array([0.299, 0.587, 0.114])
_WATER = np.array([175, 238, 238]) / 255
_MUD = np.array([63, 42, 20]) / 255


def snow(image: np.ndarray, strength: Strength, random: np.random.Generator) -> np.ndarray:
    """y = fade · x + (1 − fade) · max(x, 1.5 · grey(x) + 0.5) + flakes + flakes turned by 180°.

    Flakes are enlarged Gaussian noise, of which the brightest part is kept and smeared in the direction of the fall.
    """
    mean, deviation, zoom, threshold, radius, trail, fade = strength
    flakes = zoom_centre(random.normal(mean, deviation, image.shape[:2]), zoom)
    flakes = np.where(flakes < threshold, 0.0, np.clip(flakes, 0.0, 1.0))
    flakes = smear(flakes, radius, trail, random.uniform(-3 * np.pi / 4, -np.pi / 4))
    whitened = np.maximum(image, 1.5 * (image @ _LUMA)[..., None] + 0.5)
    return np.asarray(fade * image + (1 - fade) * whitened + (flakes + flakes[::-1, ::-1])[..., None])


def frost(image: np.ndarray, strength: Strength, random: np.random.Generator) -> np.ndarray:
    """y = image_weight · x + frost_weight · ice.

    This kind differs from the published one, which blends parts of five photographs of frost with the image. Here the
    ice is drawn (`ice_texture`): its mean brightness, the variation of that between images, its contrast and its tint
    match CIFAR-10-C; its structure is only similar.
    """
    image_weight, frost_weight, shrink = strength
    ice = ice_texture(image.shape[0], image.shape[1], int(shrink), random)
    return np.asarray(image_weight * image + frost_weight * ice)


def fog(image: np.ndarray, strength: Strength, random: np.random.Generator) -> np.ndarray:
    """y = (x + density · clouds) · m / (m + density),  m = max(x)."""
    density, decay = strength
    brightest = image.max()
    clouds = plasma_fractal(image.shape[0], image.shape[1], decay, random)
    return np.asarray((image + density * clouds[..., None]) * brightest / (brightest + density))


def brightness(image: np.ndarray, strength: Strength, _: np.random.Generator) -> np.ndarray:
    """y = x · min(v + light, 1) / v,  v = max over channels: hue and saturation stay, the HSV value grows."""
    (light,) = strength
    value = image.max(-1, keepdims=True)
    brighter = np.minimum(value + light, 1.0)
    # Black has no hue and becomes grey.
    return np.asarray(np.where(value > 0, image * brighter / np.where(value > 0, value, 1.0), brighter))


def spatter(image: np.ndarray, strength: Strength, random: np.random.Generator) -> np.ndarray:
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


def contrast(image: np.ndarray, strength: Strength, _: np.random.Generator) -> np.ndarray:
    """y = m + kept · (x − m),  m = the mean of each channel."""
    (kept,) = strength
    mean = image.mean((0, 1))
    return np.asarray(mean + kept * (image - mean))


def saturate(image: np.ndarray, strength: Strength, _: np.random.Generator) -> np.ndarray:
    """y = v − (v − x) · s' / s,  s' = clip(factor · s + shift, 0, 1),  with HSV's value v and saturation s.

    Grey has no hue and counts as red, as in the published procedure: a shift tints it.
    """
    factor, shift = strength
    value = image.max(-1, keepdims=True)
    spread = value - image.min(-1, keepdims=True)
    saturation = spread / np.where(value > 0, value, 1.0)
    wanted = np.clip(factor * saturation + shift, 0.0, 1.0)
    # (v − x) / (v · s): how far each channel is below v, 0 for the highest and 1 for the lowest.
    depth = np.where(spread > 0, (value - image) / np.where(spread > 0, spread, 1.0), np.array([0.0, 1.0, 1.0]))
    return np.asarray(value * (1 - wanted * depth))


def elastic_transform(image: np.ndarray, strength: Strength, random: np.random.Generator) -> np.ndarray:
    """Move three points of the image (an affine map), then every pixel by a smooth random field.

    All lengths are shares of the smaller side: the field's amplitude before it is smoothed, the deviation of the
    Gaussian that smooths it, and how far a point is moved at most.
    """
    height, width = image.shape[:2]
    side = min(height, width)
    amplitude, smoothness, shift = (side * share for share in strength)
    centre, arm = np.array([height // 2, width // 2]), max(side // 3, 1)
    points = centre + arm * np.array([[1, 1], [-1, 1], [-1, -1]])
    moved = points + random.uniform(-shift, shift, points.shape)
    to_source = np.linalg.solve(np.column_stack([moved, np.ones(3)]), points)
    grid = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"))
    turned = np.tensordot(to_source[:2].T, grid, 1) + to_source[2][:, None, None]
    image = _sample(image, turned, mode="mirror")

    if amplitude == 0:
        return image
    field = random.uniform(-1.0, 1.0, (2, height, width))
    return _sample(image, grid + amplitude * smooth_mirrored(field, smoothness, truncate=3.0), mode="reflect")


def pixelate(image: np.ndarray, strength: Strength, _: np.random.Generator) -> np.ndarray:
    """Shrink the image to `share` of its sides and enlarge it again, averaging over boxes."""
    from PIL import Image

    (share,) = strength
    height, width = image.shape[:2]
    small = (max(int(width * share), 1), max(int(height * share), 1))
    picture = Image.fromarray(_to_bytes(image)).resize(small, Image.Resampling.BOX)
    return np.asarray(picture.resize((width, height), Image.Resampling.BOX)) / 255


def jpeg_compression(image: np.ndarray, strength: Strength, _: np.random.Generator) -> np.ndarray:
    """Write the image as a JPEG file of this quality, as Pillow does, and read it again."""
    from PIL import Image

    (quality,) = strength
    file = BytesIO()
    Image.fromarray(_to_bytes(image)).save(file, "JPEG", quality=int(quality))
    with Image.open(file) as picture:
        return np.asarray(picture.convert("RGB")) / 255


def plasma_fractal(height: int, width: int, decay: float, random: np.random.Generator) -> np.ndarray:
    """Return clouds (height, width) in [0, 1]: diamond-square on a torus whose side is the next power of two.

    A point is the mean of its four neighbours, `step` apart, plus noise from U(−a, a); a = decay^(−2k) after the step
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

        def shaken(sum_of_four: np.ndarray, amplitude: float = amplitude) -> np.ndarray:
            return sum_of_four / 4 + random.uniform(-amplitude, amplitude, sum_of_four.shape)

        right, below = np.roll(corners, -1, 1), np.roll(corners, -1, 0)
        middles = shaken(corners + right + below + np.roll(right, -1, 0))
        heights[::2, ::2] = corners
        heights[1::2, 1::2] = middles
        heights[::2, 1::2] = shaken(corners + right + middles + np.roll(middles, 1, 0))
        heights[1::2, ::2] = shaken(corners + below + middles + np.roll(middles, 1, 1))
        amplitude /= decay**2
    heights -= heights.min()
    return np.asarray((heights / heights.max())[:height, :width])


def ice_texture(height: int, width: int, shrink: int, random: np.random.Generator) -> np.ndarray:
    """Return ice on a window, (height, width, 3) in [0, 1]: ferns of needles over uneven haze, in a bluish tint.

    The ferns are drawn `shrink` times larger and averaged, so that small images show more of them.
    """
    needles = 1 - np.exp(-_grow_ferns(height * shrink, width * shrink, random))
    needles = np.asarray(ndimage.gaussian_filter(needles, 0.6)).reshape(height, shrink, width, shrink).mean((1, 3))
    haze = plasma_fractal(height, width, 1.35, random)
    relief = _standardised(_standardised(needles) * (0.4 + haze) + 0.5 * _standardised(haze))
    grey = random.uniform(0.38, 0.94) + 0.13 * relief
    tint = 1 + random.uniform(0.0, 1.0) * np.array([-0.28, 0.02, 0.13])
    return np.clip(grey[..., None] * tint, 0.0, 1.0)


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


@dataclass(frozen=True)
class _Lines:
    """Straight lines: where they start (n, 2), in which direction (0 is to the right), and how long they are."""

    starts: np.ndarray
    angles: np.ndarray
    lengths: np.ndarray

    def branch(self, children: int, share: float, random: np.random.Generator) -> _Lines:
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


def _grow_ferns(height: int, width: int, random: np.random.Generator) -> np.ndarray:
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
    """Shade drops as if light came from one corner: the distance from their edges, equalised, and its slope."""
    edges = drops & ~np.asarray(ndimage.binary_erosion(drops, np.ones((3, 3)), border_value=1))
    distance = np.asarray(ndimage.distance_transform_edt(~edges)) if edges.any() else np.full(drops.shape, 20.0)
    distance = np.asarray(ndimage.uniform_filter(np.minimum(distance, 20.0), 3, mode="mirror")).astype(np.uint8)
    counts = np.bincount(distance.ravel(), minlength=256)
    ranks = counts.cumsum() - counts[distance.min()]
    equalised = 255.0 * ranks.clip(0) / max(ranks[-1], 1)
    slope = np.array([[-2.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [0.0, 1.0, 2.0]])
    shaded = np.asarray(ndimage.correlate(equalised[distance], slope, mode="mirror"))
    return np.asarray(ndimage.uniform_filter(np.clip(shaded, 0.0, 255.0), 3, mode="mirror"))


def _standardised(values: np.ndarray) -> np.ndarray:
    return np.asarray((values - values.mean()) / (values.std() + 1e-12))


def _sample(image: np.ndarray, places: np.ndarray, mode: str) -> np.ndarray:
    """Return the image at places (2, h, w), interpolated linearly."""
    channels = [ndimage.map_coordinates(image[..., channel], places, order=1, mode=mode) for channel in range(3)]
    return np.stack(channels, -1)


def _to_bytes(image: np.ndarray) -> np.ndarray:
    return np.round(255 * image).astype(np.uint8)
