"""Corruptions against formulas, loops and libraries that do the same in another way, and against CIFAR-10-C."""

from __future__ import annotations

import colorsys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage

from sita_adapters.errors import InputError
from sita_workbench.corruptions import CORRUPTIONS, FAMILIES, HOLDOUT, KINDS, SEVERITIES, corrupt
from sita_workbench.corruptions.digital import smooth_mirrored
from sita_workbench.corruptions.noise_blur import shuffle_pixels, smear, zoom_center
from sita_workbench.corruptions.sheet import draw_sheet

WITHOUT_RANDOMNESS = {"defocus_blur", "zoom_blur", "gaussian_blur", "brightness"}
WITHOUT_RANDOMNESS |= {"contrast", "saturate", "pixelate", "jpeg_compression"}


def make_images(count: int, height: int, width: int) -> np.ndarray:
    """Color images with as much detail in every octave as photographs have."""
    random = np.random.default_rng(0)
    total = np.zeros((count, height, width, 3))
    for size in (1, 2, 4, 8, 16):
        deviations = (0, size / 2, size / 2, 0)
        total += size * ndimage.gaussian_filter(random.normal(size=total.shape), deviations, mode="wrap")
    total += total.mean(-1, keepdims=True)
    low, high = np.percentile(total, [2, 98])
    return np.clip(255 * (total - low) / (high - low), 0, 255).astype(np.uint8)


def corrupt_all(images: np.ndarray, kind: str, severity: int) -> np.ndarray:
    return np.stack([corrupt(image, kind, severity, index=index) for index, image in enumerate(images)])


IMAGES = {"cifar": make_images(8, 32, 32), "imagenet": make_images(4, 128, 160)}


def test_the_kinds_are_the_benchmarks() -> None:
    assert len(KINDS) == 15
    assert {kind for kind, one in CORRUPTIONS.items() if one.holdout} == set(HOLDOUT)
    assert [CORRUPTIONS[kind].family for kind in HOLDOUT] == list(FAMILIES)
    assert all(len(table) == 5 for one in CORRUPTIONS.values() for table in (one.cifar, one.imagenet))


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_the_seed_and_the_index_decide_what_is_random(kind: str) -> None:
    image = IMAGES["cifar"][0]
    before = image.copy()
    once = corrupt(image, kind, 5, seed=3, index=2)
    np.testing.assert_array_equal(once, corrupt(image, kind, 5, seed=3, index=2))
    np.testing.assert_array_equal(image, before)
    for other in (corrupt(image, kind, 5, seed=4, index=2), corrupt(image, kind, 5, seed=3, index=1)):
        assert np.array_equal(once, other) == (kind in WITHOUT_RANDOMNESS)


@pytest.mark.parametrize("size", [(17, 45), (70, 66), (1, 1)])
@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_every_size_keeps_its_shape(kind: str, size: tuple[int, int]) -> None:
    image = make_images(1, *size)[0]
    for severity in (1, 5):
        corrupted = corrupt(image, kind, severity)
        assert (corrupted.shape, corrupted.dtype) == (image.shape, np.uint8)


@pytest.mark.parametrize("kind", CORRUPTIONS)
@pytest.mark.parametrize("scale", ["cifar", "imagenet"])
def test_severity_increases_the_damage(scale: str, kind: str) -> None:
    """In squared differences. The published affine map of elastic_transform shrinks with the severity."""
    images = IMAGES[scale]
    damage = [np.square(corrupt_all(images, kind, severity) - images.astype(float)).mean() for severity in (1, 5)]
    assert damage[0] > 0
    assert (damage[1] > damage[0]) == (kind != "elastic_transform"), damage


@pytest.mark.parametrize(
    ("shape", "severity", "deviation", "share", "photons"),
    [
        ((64, 1400, 3), 1, 0.04, 0.01, 500),
        ((64, 1400, 3), 5, 0.10, 0.07, 50),
        ((300, 300, 3), 1, 0.08, 0.03, 60),
        ((300, 300, 3), 5, 0.38, 0.27, 3),
    ],
)
def test_noise_has_the_published_deviation(
    shape: tuple[int, ...], severity: int, deviation: float, share: float, photons: int
) -> None:
    level = 102 / 255
    gray = np.full(shape, 102, np.uint8)
    gaussian, impulses, shots = (
        corrupt(gray, f"{kind}_noise", severity) / 255 for kind in ("gaussian", "impulse", "shot")
    )
    # Quantiles, which clipping at 0 and 1 does not change; bytes are truncated, half a gray level lower on average.
    low, middle, high = np.quantile(gaussian, [0.3, 0.5, 0.7]) + 0.5 / 255
    assert middle == pytest.approx(level, abs=0.005)
    assert (high - low) / (2 * 0.5244) == pytest.approx(deviation, rel=0.06)
    assert (impulses != level).mean() == pytest.approx(share, rel=0.05)
    assert (impulses == 1).mean() == pytest.approx(share / 2, rel=0.07)
    draws = np.random.default_rng(1).poisson(level * photons, 270_000) / photons
    assert shots.mean() == pytest.approx(np.minimum(draws, 1).mean(), abs=0.004)
    assert shots.std() == pytest.approx(np.minimum(draws, 1).std(), rel=0.02)


@pytest.mark.parametrize(
    ("size", "severity", "kept", "light", "factor", "shift"),
    [
        ((64, 70), 1, 0.75, 0.05, 0.3, 0),
        ((70, 64), 3, 0.4, 0.15, 1.5, 0),
        ((64, 64), 5, 0.15, 0.3, 2.5, 0.2),
        ((65, 65), 1, 0.4, 0.1, 0.3, 0),
        ((65, 70), 5, 0.05, 0.5, 20, 0.2),
    ],
)
def test_colors_equal_their_formulas(
    *, size: tuple[int, int], severity: int, kept: float, light: float, factor: float, shift: float
) -> None:
    """The smaller side chooses the published strengths: those of CIFAR-10-C up to 64 pixels."""
    image = make_images(1, *size)[0]
    image[0, :3] = [[0, 0, 0], [255, 255, 255], [90, 90, 90]]
    exact = image / 255
    expected = {
        "contrast": exact.mean((0, 1)) * (1 - kept) + exact * kept,
        "brightness": np.empty_like(exact),
        "saturate": np.empty_like(exact),
    }
    for position in np.ndindex(size):
        hue, saturation, value = colorsys.rgb_to_hsv(*exact[position])
        expected["brightness"][position] = colorsys.hsv_to_rgb(hue, saturation, min(value + light, 1))
        expected["saturate"][position] = colorsys.hsv_to_rgb(hue, min(factor * saturation + shift, 1), value)
    for kind, values in expected.items():
        # Bytes are the whole part of 255 times the expected value, give or take a rounding error.
        lost = 255 * np.clip(values, 0, 1) - corrupt(image, kind, severity)
        assert -1e-3 < lost.min() <= lost.max() < 1 + 1e-3


def test_jpeg_equals_pillows() -> None:
    for scale, qualities in (("cifar", (80, 65, 58, 50, 40)), ("imagenet", (25, 18, 15, 10, 7))):
        image = IMAGES[scale][0]
        for severity, quality in zip(SEVERITIES, qualities, strict=True):
            file = BytesIO()
            Image.fromarray(image).save(file, "JPEG", quality=quality)
            np.testing.assert_array_equal(corrupt(image, "jpeg_compression", severity), np.asarray(Image.open(file)))


@pytest.mark.parametrize("kind", [*FAMILIES["blur"], "gaussian_blur", "contrast", "elastic_transform", "pixelate"])
def test_a_plain_image_stays_as_it_is(kind: str) -> None:
    for side, level in ((32, 255), (32, 100), (96, 255), (96, 7)):
        image = np.full((side, side, 3), level, np.uint8)
        for severity in SEVERITIES:
            np.testing.assert_array_equal(corrupt(image, kind, severity), image)


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_shuffling_equals_a_loop_over_pixels(reach: int) -> None:
    image = np.random.default_rng(0).random((23, 31, 3))
    height, width = image.shape[:2]
    rows, columns = range(height - reach, reach, -1), range(width - reach, reach, -1)
    down, right = np.random.default_rng(5).integers(-reach, reach, (2, len(rows), len(columns)))
    expected = image.copy()
    for row in rows:
        for column in columns:
            position = row - reach - 1, column - reach - 1
            expected[row, column] = expected[row + down[position], column + right[position]]
    np.testing.assert_array_equal(shuffle_pixels(image, reach, np.random.default_rng(5)), expected)


@pytest.mark.parametrize("deviation", [0.7, 4.0, 60.0])
def test_smoothing_cosine_waves_equals_the_convolution(deviation: float) -> None:
    field = np.random.default_rng(0).normal(size=(2, 30, 41))
    expected = ndimage.gaussian_filter(field, (0, deviation, deviation), mode="reflect", truncate=3.0)
    np.testing.assert_allclose(smooth_mirrored(field, deviation, truncate=3.0), expected, atol=1e-12)


@pytest.mark.parametrize("factor", [1.0, 1.01, 1.13, 1.75, 2.5])
def test_zooming_equals_scipys(factor: float) -> None:
    image = np.random.default_rng(0).random((40, 40, 3))
    kept = int(np.ceil(40 / factor))
    first = (40 - kept) // 2
    zoomed = ndimage.zoom(image[first : first + kept, first : first + kept], (factor, factor, 1), order=1)
    trim = (len(zoomed) - 40) // 2
    np.testing.assert_allclose(zoom_center(image, factor), zoomed[trim : trim + 40, trim : trim + 40], atol=1e-12)


def test_a_point_is_smeared_into_half_a_gaussian() -> None:
    point = np.zeros((21, 21))
    point[10, 10] = 1.0
    gaussian = np.exp(-(np.arange(7) ** 2) / (2 * 2.0**2))
    for angle, (down, right) in {0: (0, 1), 90: (1, 0), -45: (-1, 1), 180: (0, -1)}.items():
        smeared = smear(point, 3, 2.0, np.deg2rad(angle))
        steps = np.round(np.arange(7) * (0.70710678 if angle == -45 else 1.0)).astype(int)
        expected = np.zeros_like(point)
        np.add.at(expected, (10 - steps * down, 10 - steps * right), gaussian / gaussian.sum())
        np.testing.assert_allclose(smeared, expected, atol=1e-12)


def test_wrong_arguments_are_refused() -> None:
    image = IMAGES["cifar"][0]
    with pytest.raises(InputError, match=r"received 'motion_blurr'\. Did you mean 'motion_blur'\?"):
        corrupt(image, "motion_blurr", 1)
    for severity in (0, 6, -1, 2.0, None):
        with pytest.raises(InputError, match=f"severity from 1 to 5, a whole number; received {severity}"):
            corrupt(image, "fog", severity)  # type: ignore[arg-type]
    for wrong in (image / 255, image[..., :2], image[..., 0], image[None], image[:0], image.transpose(2, 0, 1)):
        with pytest.raises(InputError, match=r"Expected an image \(h, w, 3\) in uint8; received shape"):
            corrupt(wrong, "fog", 1)


def test_the_sheet_shows_every_kind_and_severity() -> None:
    image = make_images(1, 24, 32)[0]
    axes = draw_sheet(image).get_axes()
    labels = [one.get_ylabel().split("\n(")[0].replace("\n", "_") for one in axes if one.get_ylabel()]
    assert labels == ["clean", *CORRUPTIONS]
    shown = [np.asarray(one.images[0].get_array()) for one in axes]
    expected = [image] * 5 + [corrupt(image, kind, severity) for kind in CORRUPTIONS for severity in SEVERITIES]
    np.testing.assert_array_equal(shown, expected)


# Mean absolute differences in gray levels; measured at most 0.07 (defocus_blur), 0.04 (brightness), 0.005 (others).
DIFFERENCE = {"defocus_blur": 0.1, "zoom_blur": 0.02, "brightness": 0.06, "contrast": 0.02}
DIFFERENCE |= {"pixelate": 0.0, "jpeg_compression": 0.02}
# How far the ratio of the squared differences from the clean images, ours to the published, may be from 1. Measured at
# most: noise and glass_blur 1.3 %, fog 2.9 %, snow 3.2 %, frost 4.8 %, motion_blur 5.2 %, elastic_transform 7.3 %.
RATIO = {"gaussian_noise": 0.02, "shot_noise": 0.02, "impulse_noise": 0.03, "glass_blur": 0.03, "motion_blur": 0.08}
RATIO |= {"snow": 0.06, "frost": 0.10, "fog": 0.06, "elastic_transform": 0.10}


@pytest.mark.real
@pytest.mark.parametrize("severity", [*(pytest.param(s, marks=pytest.mark.slow) for s in (1, 2, 3, 4)), 5])
@pytest.mark.parametrize("kind", KINDS)
def test_corruptions_are_those_of_cifar10c(kind: str, severity: int, data: Path) -> None:
    with np.load(data / "cifar10" / "test_1000.npz") as stored:
        clean = stored["images"][:200]
    published = np.load(data / "cifar10c" / f"{kind}.npy")[200 * (severity - 1) : 200 * severity].astype(float)
    ours = corrupt_all(clean, kind, severity).astype(float)
    if kind in DIFFERENCE:
        assert np.abs(ours - published).mean() <= DIFFERENCE[kind]
    else:
        ratio = np.square(ours - clean).mean() / np.square(published - clean).mean()
        assert ratio == pytest.approx(1, abs=RATIO[kind])
