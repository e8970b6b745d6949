"""The augmentations of MEMO, MixNorm and TTT against properties of the published ones, and their settings."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from sita_workbench.baselines import settings, views
from sita_workbench.baselines.views import OPERATIONS, augmix_views, random_of, rotated_views, spatial_views

BY_NAME = {operation.__name__.strip("_"): operation for operation in OPERATIONS}


def picture(height: int = 32, width: int = 32) -> np.ndarray:
    return np.random.default_rng(0).integers(256, size=(height, width, 3), dtype=np.uint8)


def results(name: str, pixels: np.ndarray, count: int = 60) -> list[np.ndarray]:
    random = np.random.default_rng(1)
    return [np.asarray(BY_NAME[name](Image.fromarray(pixels), random)) for _ in range(count)]


def test_augmix_has_nine_operations() -> None:
    expected = {"autocontrast", "equalize", "rotate", "solarize", "shear_x", "shear_y", "translate_x", "translate_y"}
    assert set(BY_NAME) == expected | {"posterize"}


@pytest.mark.parametrize(("side", "most"), [(32, 1), (224, 7)])
@pytest.mark.parametrize(("name", "axis"), [("translate_x", 1), ("translate_y", 0)])
def test_translations_are_whole_pixels_up_to_a_thirtieth(name: str, axis: int, side: int, most: int) -> None:
    pixels, found = picture(side, side), set()
    for result in results(name, pixels):
        inner = tuple(slice(most, -most) for _ in range(2))
        shifts = range(-most, most + 1)
        fits = [shift for shift in shifts if (np.roll(pixels, shift, axis)[inner] == result[inner]).all()]
        assert len(fits) == 1
        found.add(fits[0])
    assert (min(found), max(found)) == (-most, most)


@pytest.mark.parametrize(("name", "most"), [("rotate", 0.035), ("shear_x", 0.03), ("shear_y", 0.03)])
def test_rotations_and_shears_are_small(name: str, most: float) -> None:
    """A vertical and a horizontal ramp say how far every pixel moved."""
    ramp = np.arange(64) * 3.0 + 20
    pixels = np.stack(np.broadcast_arrays(ramp[:, None], ramp[None], 0.0), -1).astype(np.uint8)
    moved = [
        np.abs(result[16:48, 16:48].astype(float) - pixels[16:48, 16:48]).max() / 3 for result in results(name, pixels)
    ]
    reach = 48 if name.startswith("shear") else 16 * 2**0.5 + 1  # shears turn about the corner, rotations the center
    assert 0.2 < max(moved) < most * reach + 0.5  # half a step: bytes are rounded


def test_solarize_inverts_only_the_brightest() -> None:
    pixels, thresholds = picture(), set()
    for result in results("solarize", pixels):
        changed = result != pixels
        assert (result[changed] == 255 - pixels[changed]).all()
        thresholds.add(pixels[changed].min() if changed.any() else 256)
    assert 231 <= min(thresholds) < 245


def test_posterize_keeps_four_bits() -> None:
    pixels = picture()
    assert all((result == pixels // 16 * 16).all() for result in results("posterize", pixels, 5))


def test_autocontrast_stretches_every_channel() -> None:
    (result,) = results("autocontrast", picture() // 2 + 40, 1)
    assert (result.min((0, 1)) == 0).all()
    assert (result.max((0, 1)) == 255).all()


def test_a_view_mixes_its_base_with_three_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Image.Image] = []

    def black(image: Image.Image, _: np.random.Generator) -> Image.Image:
        calls.append(image)
        return Image.new("RGB", image.size)

    pixels = np.full((32, 32, 3), 200, np.uint8)
    monkeypatch.setattr(views, "OPERATIONS", (black,))
    monkeypatch.setattr(views, "crop_and_flip", lambda image, _: image)
    shares = augmix_views(pixels, 400, 0)[:, 0, 0, 0] * 255 / 200  # m, because the chains are black
    assert (np.histogram(shares, 4, (0, 1))[0] > 70).all()  # Beta(1, 1) is uniform
    assert len(calls) / 400 == pytest.approx(3 * 2, abs=0.2)  # three chains of one to three operations
    monkeypatch.setattr(views, "OPERATIONS", (lambda image, _: image,))
    np.testing.assert_allclose(augmix_views(pixels, 5, 0), 200 / 255, rtol=1e-6)  # all weights sum to 1


def test_small_images_are_cropped_from_a_border_of_four() -> None:
    rows, columns = np.mgrid[:32, :32]
    pixels = np.stack([rows + 1, columns + 1, np.ones_like(rows)], -1).astype(np.uint8)
    offsets, mirrored = set(), 0
    for seed in range(300):
        view = views.crop_and_flip(pixels, np.random.default_rng(seed))
        mirrored += int(view[16, 20, 1] < view[16, 12, 1])
        view = view if view[16, 20, 1] > view[16, 12, 1] else view[:, ::-1]
        down, right = int(view[16, 16, 0]) - 17, int(view[16, 16, 1]) - 17
        offsets.add((down, right))
        padded = np.pad(pixels, ((4, 4), (4, 4), (0, 0)))
        np.testing.assert_array_equal(view, padded[4 + down : 36 + down, 4 + right : 36 + right])
    assert max(map(max, offsets)) == 4
    assert min(map(min, offsets)) == -4
    assert 100 < mirrored < 200


def test_large_images_are_resized_crops() -> None:
    side = 96
    ramp = np.broadcast_to(np.linspace(0, 255, side)[None, :, None], (side, side, 3)).astype(np.uint8)
    widths = []
    for seed in range(200):
        view = views.resized_crop(ramp, np.random.default_rng(seed), (0.25, 0.5))
        assert view.shape == ramp.shape
        widths.append((float(view[0, -1, 0]) - float(view[0, 0, 0])) / 255)
    assert 0.25**0.5 * 0.75**0.5 - 0.03 < min(widths) < max(widths) < 0.5**0.5 * (4 / 3) ** 0.5 + 0.03
    assert 0.9 * 0.375 < np.mean(np.square(widths)) < 1.15 * 0.375


def test_views_are_drawn_from_the_image_and_the_seed() -> None:
    first, other = picture(), picture()[::-1]
    for draw in (
        lambda pixels, seed: augmix_views(pixels, 4, seed),
        lambda pixels, seed: spatial_views(pixels, 4, seed, (0.3, 1), (0.75, 1.33)),
        lambda pixels, seed: rotated_views(pixels, 4, random_of(pixels, seed))[0],
    ):
        drawn = draw(first, 0)
        assert drawn.shape == (4, 32, 32, 3)
        np.testing.assert_array_equal(drawn, draw(first.copy(order="F"), 0))
        assert len({view.tobytes() for view in drawn}) == 4
        assert not np.array_equal(drawn, draw(first, 1))
        assert not np.array_equal(drawn[:, ::-1], draw(other, 0))  # other content, other draws
    assert spatial_views(first, 0, 0, (0.3, 1), (1, 1)).shape == (0, 32, 32, 3)


def test_rotations_are_of_the_same_crops(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels = picture()
    monkeypatch.setattr(views, "crop_and_flip", lambda image, _: image)
    turned, turns = rotated_views(pixels, 200, np.random.default_rng(0))
    assert (np.bincount(turns, minlength=4) > 30).all()
    for view, turn in zip(turned, turns, strict=True):
        np.testing.assert_array_equal(np.rot90(view, -turn), pixels)


def test_settings_are_chosen_by_size_and_architecture() -> None:
    assert settings.memo_settings((32, 32)).views == 32
    assert settings.memo_settings((32, 32), "timm:resnext101_32x8d") == settings.MEMO_CIFAR
    large = (224, 224)
    assert settings.memo_settings(large, "timm:resnet50") == settings.MEMO_IMAGENET
    assert settings.memo_settings(large, "timm:resnext101_32x8d").optimizer == "adamw"
    assert settings.memo_settings(large, "timm:vit_small_patch16_224").views == 64
    assert settings.tent_settings(large) == settings.tent_settings((32, 32))
    assert settings.mixnorm_settings(large) != settings.mixnorm_settings((32, 32))
    assert settings.ttt_settings(large) != settings.ttt_settings((32, 32))
