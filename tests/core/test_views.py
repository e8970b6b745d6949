"""Views against numpy's and scipy's own functions, on every kind of array, channels first and last."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.ndimage
from namespaces import FRAMEWORK, make_namespace

from sita_adapters.errors import InputError
from sita_adapters.filters import blur, blur_matrix, median, sharpen
from sita_adapters.inputs import ENCODINGS, ImageLayout, Inputs
from sita_adapters.views import (
    NAMES,
    SYMMETRIES,
    View,
    color,
    make_views,
    rotate,
    rotation_taps,
    spatial_kind,
)

SQUARE, RECTANGLE, SIGNAL = "square", "rectangle", "signal"
ARRANGEMENTS = ("numpy-first", "numpy-last", f"{FRAMEWORK}-{'first' if FRAMEWORK == 'torch' else 'last'}")
UNIT = ENCODINGS["unit"]
IMAGE = np.random.default_rng(0).uniform(size=(2, 3, 12, 12)).astype(np.float32)

NUMPY_SYMMETRIES = {
    "rot90": lambda x: np.rot90(x, 1, (-2, -1)),
    "rot270": lambda x: np.rot90(x, 3, (-2, -1)),
    "transpose": lambda x: np.swapaxes(x, -2, -1),
    "vflip": lambda x: x[..., ::-1, :],
    "hflip": lambda x: x[..., ::-1],
    "rot180": lambda x: np.rot90(x, 2, (-2, -1)),
    "antitranspose": lambda x: np.rot90(np.swapaxes(x, -2, -1), 2, (-2, -1)),
}


def run(*steps: object, arrangement: str, image: np.ndarray = IMAGE, inputs: Inputs | None = UNIT) -> np.ndarray:
    """Apply a view of these steps in this layout, and return the result with channels first."""
    name, _, layout = arrangement.rpartition("-")
    last, namespace = layout == "last", make_namespace(name)
    axes = (-1, (-3, -2)) if last else (-3, (-2, -1))
    x = np.moveaxis(image, 1, -1).copy() if last else image
    image_layout = ImageLayout(namespace.ops, *axes, inputs)
    made = namespace.numpy(View("steps", steps).apply(namespace.own(x), image_layout))
    return np.moveaxis(made, -1, 1) if last else made


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("name", SYMMETRIES)
def test_symmetries_are_numpys(name: str, arrangement: str) -> None:
    np.testing.assert_array_equal(run(*SYMMETRIES[name], arrangement=arrangement), NUMPY_SYMMETRIES[name](IMAGE))
    assert View(name, SYMMETRIES[name]).lossless


def test_symmetries_are_all_seven_and_distinct() -> None:
    views = [run(*steps, arrangement="numpy-first").tobytes() for steps in SYMMETRIES.values()]
    assert len({IMAGE.tobytes(), *views}) == 8


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("degrees", [0.0, 17.0, 90.0, 133.3, 270.0, 359.0])
@pytest.mark.parametrize("shape", [(2, 3, 12, 12), (1, 3, 9, 14), (1, 1, 5, 1)])
def test_rotation_is_scipys(degrees: float, arrangement: str, shape: tuple[int, ...]) -> None:
    image = np.random.default_rng(1).uniform(size=shape).astype(np.float32)
    height, width = shape[-2:]
    centre = np.array([(height - 1) / 2, (width - 1) / 2])
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    matrix = np.array([[cosine, sine], [-sine, cosine]])
    expected = np.empty(shape)
    for b, c in np.ndindex(shape[:2]):
        expected[b, c] = scipy.ndimage.affine_transform(
            image[b, c].astype(np.float64), matrix, centre - matrix @ centre, order=1, mode="mirror"
        )
    np.testing.assert_allclose(run((rotate, degrees), arrangement=arrangement, image=image), expected, atol=1e-5)


def test_quarter_turns_are_rotations() -> None:
    turned = run((rotate, 90.0), arrangement="numpy-first")
    np.testing.assert_allclose(turned, np.rot90(IMAGE, 1, (-2, -1)), atol=1e-6)
    _, weights = rotation_taps(7, 9, 31.0)
    np.testing.assert_allclose(weights.sum(0), 1, atol=1e-6)
    assert (weights >= -1e-6).all()


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0])
def test_blur_is_scipys(sigma: float, arrangement: str) -> None:
    # scipy rounds its radius; where that equals ours the two agree to rounding.
    radius = max(1, int(np.ceil(4 * sigma)))
    expected = scipy.ndimage.gaussian_filter(
        IMAGE.astype(np.float64), (0, 0, sigma, sigma), mode="mirror", radius=(0, 0, radius, radius)
    )
    np.testing.assert_allclose(run((blur, sigma), arrangement=arrangement), expected, atol=2e-6)
    np.testing.assert_allclose(blur_matrix(12, sigma)[0].sum(0), 1, atol=1e-6)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("shape", [(2, 3, 12, 12), (1, 2, 70, 9), (1, 1, 5, 1), (1, 3, 2, 3)], ids=str)
def test_median_is_scipys(shape: tuple[int, ...], arrangement: str) -> None:
    image = np.random.default_rng(2).normal(size=shape).astype(np.float32)
    expected = scipy.ndimage.median_filter(image, size=(1, 1, 3, 3), mode="mirror")
    np.testing.assert_array_equal(run((median,), arrangement=arrangement, image=image), expected)


def sharpened(image: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """In float64, by scipy's blur."""
    image = image.astype(np.float64)
    blurred = scipy.ndimage.gaussian_filter(image, (0, 0, 1, 1), mode="mirror", radius=(0, 0, 4, 4))
    return np.clip(image + 0.7 * (image - blurred), low, high)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("size", [(12, 12), (9, 70)], ids=str)
def test_sharpening_is_clipped_to_the_pixel_range(size: tuple[int, int], encoding: str, arrangement: str) -> None:
    inputs = ENCODINGS[encoding]
    mean, std = (np.reshape(values, (-1, 1, 1)) for values in (inputs.mean, inputs.std))
    low, high = (0 - mean) / std, (inputs.white - mean) / std
    image = (np.random.default_rng(3).uniform(size=(2, 3, *size)) * (high - low) + low).astype(np.float32)
    expected = sharpened(image, low, high)
    assert ((expected == low) | (expected == high)).mean() > 0.05
    made = run((sharpen,), arrangement=arrangement, image=image, inputs=inputs)
    np.testing.assert_allclose(made, expected, atol=3e-6 * float((high - low).max()))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_sharpening_in_an_unknown_encoding_keeps_the_range_of_each_image(arrangement: str) -> None:
    image = IMAGE * np.reshape([1, 3, 9], (3, 1, 1)).astype(np.float32)
    expected = sharpened(image, *(f(image, axis=(2, 3), keepdims=True) for f in (np.min, np.max)))
    made = run((sharpen,), arrangement=arrangement, image=image, inputs=None)
    np.testing.assert_allclose(made, expected, atol=3e-5)


def test_sharpening_needs_an_encoding_of_its_channels() -> None:
    with pytest.raises(InputError, match=r"Sharpening.*received 2 channels.*Try"):
        run((sharpen,), arrangement="numpy-first", image=IMAGE[:, :2], inputs=ENCODINGS["imagenet"])


def color_loop(image: np.ndarray, changes: tuple[tuple[str, float], ...]) -> np.ndarray:
    """RGB in [0, 1], one image at a time, in float64."""
    out = []
    for original in image.astype(np.float64):
        u = original
        for name, factor in changes:
            grey = 0.299 * u[0] + 0.587 * u[1] + 0.114 * u[2]
            reference = {"brightness": 0.0, "contrast": grey.mean(), "saturation": grey[None]}[name]
            u = np.clip(factor * u + (1 - factor) * reference, 0, 1)
        out.append(u)
    return np.stack(out)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_color_works_on_intensities_whatever_the_encoding(encoding: str, arrangement: str) -> None:
    changes = (("saturation", 1.4), ("brightness", 1.3), ("contrast", 0.7))
    inputs = ENCODINGS[encoding]
    mean, std = (np.reshape(values, (-1, 1, 1)) for values in (inputs.mean, inputs.std))

    def encode(u: np.ndarray) -> np.ndarray:
        ordered = u if inputs.order == "rgb" else u[:, ::-1]
        return (ordered * inputs.white - mean) / std

    encoded = encode(IMAGE).astype(np.float32)
    made = run((color, *changes), arrangement=arrangement, image=encoded, inputs=inputs)
    np.testing.assert_allclose(made, encode(color_loop(IMAGE, changes)), atol=3e-6 * inputs.white / np.min(std))


def test_grey_images_have_no_saturation() -> None:
    grey = IMAGE[:, :1]
    made = run((color, ("saturation", 0.6)), arrangement="numpy-first", image=grey)
    np.testing.assert_allclose(made, grey, atol=1e-6)


def test_the_kind_of_input_is_read_from_its_sizes() -> None:
    sizes = ((4, 4), (4, 5), (9, 4, 4), (7,), ())
    assert [spatial_kind(size) for size in sizes] == [SQUARE, RECTANGLE, SQUARE, SIGNAL, SIGNAL]


def test_lossless_views_come_in_their_fixed_order() -> None:
    def names(count: int, frame: str) -> list[str]:
        return [view.name for view in make_views("lossless", count, 0, frame)]

    assert names(2, SQUARE) == ["rot90", "rot270"]
    assert names(7, SQUARE) == list(SYMMETRIES)
    assert names(2, RECTANGLE) == ["vflip", "hflip"]
    assert names(7, RECTANGLE) == ["vflip", "hflip", "rot180"]


def test_the_papers_views_are_drawn_from_the_seed() -> None:
    views = make_views("paper", 60, 7, SQUARE)
    assert views == make_views("paper", 60, 7, SQUARE)
    assert views != make_views("paper", 60, 8, SQUARE)
    assert views[:5] == make_views("paper", 5, 7, SQUARE)
    turns = [step[1] for view in views for step in view.steps if step[0] is rotate]
    colors = [step[1:] for view in views for step in view.steps if step[0] is color]
    assert len(turns) == len(colors) == 60
    assert min(turns) < 40
    assert max(turns) > 320
    assert all({name for name, _ in changes} == {"brightness", "contrast", "saturation"} for changes in colors)
    factors = [factor for changes in colors for _, factor in changes]
    assert min(factors) >= 0.6
    assert max(factors) <= 1.4
    for name in ("transpose", "hflip", "vflip"):
        assert 15 < sum(name in view.name.split("+") for view in views) < 45
    assert len({view.name for view in views}) > 20


def test_rectangles_meet_the_same_views_but_for_the_transposition() -> None:
    square, oblong = (make_views("paper", 20, 3, frame) for frame in ("square", RECTANGLE))
    for first, second in zip(square, oblong, strict=True):
        assert [name for name in first.name.split("+") if name != "transpose"] == second.name.split("+")


def test_names() -> None:
    one, two = make_views(("blur", "hflip"), 2, 0, SQUARE)
    assert (one.name, two.name) == ("blur", "hflip")
    assert not one.lossless
    assert len(make_views("blur", 3, 0, SQUARE)) == 3
    assert len({view.steps for view in make_views("blur", 3, 0, SQUARE)}) == 3
    assert not any(view.lossless or view.moves_pixels for view in make_views(("median", "sharpen"), 2, 0, SQUARE))
    assert set(NAMES) == {*SYMMETRIES, "median", "sharpen", "rotate", "tilt", "blur", "color"}
