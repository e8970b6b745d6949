"""The augmentations of MEMO, MixNorm and TTT, as published, on RGB pixels in numpy.

Everything is drawn from a seed and the image's content: the same image always gets the same views, in every framework
and whatever ran before it. `decode` and `encode` translate to a model's encoding.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

import numpy as np
from PIL import Image, ImageOps
from PIL.Image import Resampling, Transform

from sita_adapters.errors import InputError
from sita_adapters.inputs import Inputs

from .settings import SMALL_SIDE

WIDTH, DEPTH = 3, (1, 3)
"""AugMix: the number of chains, and of operations in each (at least, at most). Both its coefficients α are 1."""

_FILL = 128
"""The color of what moves in from outside. MEMO's code hands Pillow this number, which means dark red in RGB."""


def decode(x: np.ndarray, inputs: Inputs) -> np.ndarray:
    """Return RGB bytes (…, h, w, 3) of encoded images, channels last: u = (x · std + mean) / white."""
    if x.shape[-1] != 3:
        raise InputError(f"memo, mixnorm and ttt augment RGB images; received {x.shape[-1]} channels. Try: without.")
    u = (x * np.array(inputs.std) + np.array(inputs.mean)) / inputs.white
    pixels: np.ndarray = np.clip(np.rint(255 * u), 0, 255).astype(np.uint8)
    return pixels if inputs.order == "rgb" else pixels[..., ::-1]


def encode(u: np.ndarray, inputs: Inputs) -> np.ndarray:
    """Return intensities (…, h, w, 3) in [0, 1], or RGB bytes, as a model takes them, in float32, channels last."""
    u = u / 255 if u.dtype == np.uint8 else u
    ordered = u if inputs.order == "rgb" else u[..., ::-1]
    x = (ordered * inputs.white - np.array(inputs.mean)) / np.array(inputs.std)
    return np.ascontiguousarray(x, np.float32)


def random_of(pixels: np.ndarray, seed: int) -> np.random.Generator:
    """Return the random numbers of one image (h, w, 3) in bytes: they depend on its content and the seed alone."""
    content = hashlib.sha256(np.ascontiguousarray(pixels).tobytes() + str(pixels.shape).encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(content, "little")])


def augmix_views(pixels: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return MEMO's views (count, h, w, 3) in [0, 1] of RGB bytes (h, w, 3).

        view = m · base + (1 − m) · Σ_i w_i · chain_i(base),    w ~ Dirichlet(1, 1, 1), m ~ Beta(1, 1)

    `base` is a random crop of the image, perhaps mirrored; a chain is one to three random operations of `OPERATIONS`.
    """
    random = random_of(pixels, seed)
    return np.stack([_augmix(pixels, random) for _ in range(count)])


def _augmix(pixels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return one view."""
    base = Image.fromarray(crop_and_flip(pixels, random))
    weights, share = random.dirichlet(np.ones(WIDTH)), random.beta(1, 1)
    mixed = np.zeros(pixels.shape)
    for weight in weights:
        image = base
        for _ in range(random.integers(DEPTH[0], DEPTH[1] + 1)):
            image = OPERATIONS[random.integers(len(OPERATIONS))](image, random)
        mixed += weight * np.asarray(image)
    return np.asarray((share * np.asarray(base) + (1 - share) * mixed) / 255)


def crop_and_flip(pixels: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return a random crop, mirrored with probability ½: of the padded image if it is small, else a resized one."""
    cropped = padded_crop(pixels, random) if max(pixels.shape[:2]) <= SMALL_SIDE else resized_crop(pixels, random)
    return cropped[:, ::-1] if random.random() < 0.5 else cropped


def padded_crop(pixels: np.ndarray, random: np.random.Generator, padding: int = 4) -> np.ndarray:
    """Return a crop (h, w, 3) of the image with a black border (torchvision's RandomCrop)."""
    height, width = pixels.shape[:2]
    padded = np.pad(pixels, ((padding, padding), (padding, padding), (0, 0)))
    top, left = random.integers(2 * padding + 1, size=2)
    return padded[top : top + height, left : left + width]


def resized_crop(
    pixels: np.ndarray,
    random: np.random.Generator,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> np.ndarray:
    """Return a crop of random area and aspect ratio, resized to the image's size (torchvision's RandomResizedCrop)."""
    height, width = pixels.shape[:2]
    for _ in range(10):
        area = height * width * random.uniform(*scale)
        aspect = math.exp(random.uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top, left = random.integers(height - h + 1), random.integers(width - w + 1)
            box = (left, top, left + w, top + h)
            resized = Image.fromarray(pixels).resize((width, height), Resampling.BILINEAR, box=box)
            return np.asarray(resized)
    return pixels


def spatial_views(
    pixels: np.ndarray, count: int, seed: int, scale: tuple[float, float], ratio: tuple[float, float]
) -> np.ndarray:
    """Return MixNorm's views (count, h, w, 3) of RGB bytes: resized crops, mirrored with probability ½."""
    random, views = random_of(pixels, seed), []
    for _ in range(count):
        cropped = resized_crop(pixels, random, scale, ratio)
        views.append(cropped[:, ::-1] if random.random() < 0.5 else cropped)
    return np.stack(views) if views else np.zeros((0, *pixels.shape), pixels.dtype)


def rotated_views(pixels: np.ndarray, count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return TTT's batch: crops (count, h, w, 3) of square RGB bytes, turned by 0, 1, 2 or 3 quarters, and how many.

    Take `random` from `random_of`, and the next batch from the same generator.
    """
    turns = random.integers(4, size=count)
    views = [np.rot90(crop_and_flip(pixels, random), turn) for turn in turns]
    return np.stack(views), turns


def _level(random: np.random.Generator, largest: float) -> float:
    """Return the strength of an operation: severity 1 of 10, as MEMO's code draws it."""
    return random.uniform(0.1, 1.0) * largest / 10


def _signed(random: np.random.Generator, value: float) -> float:
    return -value if random.random() < 0.5 else value


def _affine(image: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    return image.transform(image.size, Transform.AFFINE, matrix, Resampling.BILINEAR, fillcolor=_FILL)


def _autocontrast(image: Image.Image, random: np.random.Generator) -> Image.Image:
    return ImageOps.autocontrast(image)


def _equalize(image: Image.Image, random: np.random.Generator) -> Image.Image:
    return ImageOps.equalize(image)


def _rotate(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Up to 2 whole degrees."""
    degrees = _signed(random, int(_level(random, 30)))
    return image.rotate(degrees, Resampling.BILINEAR, fillcolor=_FILL)


def _solarize(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Invert what is at least as bright as 256 minus up to 25."""
    return ImageOps.solarize(image, 256 - int(_level(random, 256)))


def _shear_x(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Up to 0.03."""
    return _affine(image, (1, _signed(random, _level(random, 0.3)), 0, 0, 1, 0))


def _shear_y(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Up to 0.03."""
    return _affine(image, (1, 0, 0, _signed(random, _level(random, 0.3)), 1, 0))


def _translate_x(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Up to a thirtieth of the width, in whole pixels: 1 of 32, 7 of 224."""
    return _affine(image, (1, 0, _signed(random, int(_level(random, image.width / 3))), 0, 1, 0))


def _translate_y(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Up to a thirtieth of the height, in whole pixels."""
    return _affine(image, (1, 0, 0, 0, 1, _signed(random, int(_level(random, image.height / 3)))))


def _posterize(image: Image.Image, random: np.random.Generator) -> Image.Image:
    """Keep 4 bits: at this severity, MEMO's code takes off int(up to 0.4) = 0 of them."""
    return ImageOps.posterize(image, 4 - int(_level(random, 4)))


OPERATIONS: tuple[Callable[[Image.Image, np.random.Generator], Image.Image], ...] = (
    _autocontrast,
    _equalize,
    _rotate,
    _solarize,
    _shear_x,
    _shear_y,
    _translate_x,
    _translate_y,
    _posterize,
)
"""AugMix's operations without those that resemble CIFAR-10-C's corruptions, as in github.com/zhangmarvin/memo."""
