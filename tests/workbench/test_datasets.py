"""The data of a benchmark: what is read, what is refused, and with which message."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms

from sita_adapters.errors import InputError
from sita_workbench.corruptions import HOLDOUT, KINDS, corrupt
from sita_workbench.data.dataset import CLEAN, Condition, Dataset, Selection
from sita_workbench.data.opening import open_data

COUNT = 12


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def load_all(dataset: Dataset, condition: Condition) -> tuple[np.ndarray, np.ndarray]:
    """In chunks of uneven length, as a run does."""
    chunks = [dataset.load(condition, start, start + 5) for start in range(0, len(dataset), 5)]
    images, labels = (np.concatenate(parts) for parts in zip(*chunks, strict=True))
    assert images.dtype == np.uint8
    assert labels.dtype == np.int64
    return images, labels


def write_image(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


@pytest.fixture(scope="module")
def cifar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every image is filled with its place in the block; its first pixel's first two values say kind and severity."""
    folder = tmp_path_factory.mktemp("cifar")
    for number, kind in enumerate((*KINDS, "spatter")):
        images = np.empty((5, COUNT, 32, 32, 3), np.uint8)
        images[:] = np.arange(COUNT)[:, None, None, None]
        images[:, :, 0, 0, 0] = number
        images[:, :, 0, 0, 1] = np.arange(1, 6)[:, None]
        np.save(folder / f"{kind}.npy", images.reshape(-1, 32, 32, 3))
    np.save(folder / "labels.npy", np.tile(np.arange(COUNT, dtype=np.uint8) % 10, 5))
    return folder


@pytest.fixture
def small_cifar(tmp_path: Path) -> Path:
    for kind in ("fog", "snow"):
        np.save(tmp_path / f"{kind}.npy", noise(15, 32, 32, 3))
    np.save(tmp_path / "labels.npy", np.tile([3, 1, 2], 5))
    return tmp_path


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    np.savez(tmp_path / "clean.npz", images=noise(7, 20, 24, 3), labels=np.arange(7, dtype=np.uint8))
    return tmp_path / "clean.npz"


@pytest.fixture
def by_class(tmp_path: Path) -> Path:
    for number, name in enumerate(("b_cat/2.png", "b_cat/1.PNG", "a_dog/3.bmp", "c_owl/1.png")):
        write_image(tmp_path / "set" / name, noise(30 + number, 40, 3, seed=number))
    (tmp_path / "set" / "c_owl" / "._1.png").write_bytes(b"what another system left")
    (tmp_path / "set" / "c_owl" / "notes.txt").write_text("no image")
    return tmp_path / "set"


@pytest.fixture
def imagenet_c(tmp_path: Path) -> Path:
    """Two classes of five, one kind beside the families' folders and one inside."""
    for place in ("fog/5", "fog/1", "noise/shot_noise/5"):
        for seed, name in enumerate(("n02/x.png", "n02/y.png", "n01/z.png")):
            write_image(tmp_path / place / name, noise(16, 16, 3, seed=seed + len(place)))
    (tmp_path / "classes.txt").write_text("n00\nn02\nn03\nn01\nn04\n")
    return tmp_path


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    for seed, name in enumerate("abc"):
        write_image(tmp_path / "images" / f"{name}.png", noise(12, 16, 3, seed=seed))
        write_image(tmp_path / "labels" / f"{name}.png", noise(12, 16, seed=seed) % 5)
    return tmp_path


# --- conditions and picks


def test_a_condition_is_printed_as_in_results() -> None:
    assert str(Condition("fog", 5)) == "fog/5"
    assert str(CLEAN) == str(Condition("clean")) == "clean"


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("none", ["clean"]),
        ("clean", ["clean"]),
        ("all", ["clean", *(f"{kind}/{severity}" for kind in KINDS for severity in (2, 5))]),
        ("all+holdout", ["clean", *(f"{kind}/{severity}" for kind in (*KINDS, *HOLDOUT) for severity in (2, 5))]),
        ("snow, clean,fog,snow", ["snow/2", "snow/5", "clean", "fog/2", "fog/5"]),
    ],
)
def test_conditions_of_clean_data(npz: Path, chosen: str, expected: list[str]) -> None:
    opened = open_data(f"npz:{npz}", corrupt=chosen, severities=[2, 5])
    assert list(map(str, opened.conditions)) == expected


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [("all", KINDS), ("all+holdout", (*KINDS, "spatter")), ("spatter,fog", ("spatter", "fog"))],
)
def test_conditions_of_stored_corruptions(cifar: Path, chosen: str, expected: tuple[str, ...]) -> None:
    assert open_data(f"cifar10c:{cifar}", corrupt=chosen).conditions == tuple(Condition(kind, 5) for kind in expected)


@settings(max_examples=15, deadline=None)
@given(limit=st.integers(1, 2 * COUNT))
def test_a_limit_picks_the_same_images_under_every_condition(cifar: Path, limit: int) -> None:
    opened = open_data(f"cifar10c:{cifar}", corrupt="fog,snow", severities=(1, 5), limit=limit)
    picks = [load_all(opened, condition)[0][:, 1, 1, 1].tolist() for condition in opened.conditions]
    assert len(opened) == len(picks[0]) == min(limit, COUNT)
    assert picks[0] == sorted(set(picks[0]))
    assert set(picks[0]) <= set(range(COUNT))
    assert all(pick == picks[0] for pick in picks)


@given(count=st.integers(1, 60_000), limit=st.integers(1, 60_000))
def test_picks_are_spread_evenly(count: int, limit: int) -> None:
    steps = np.diff(np.append(Selection(limit=limit).indices(count), count))
    assert len(steps) == min(count, limit)
    assert 1 <= steps.min() <= steps.max() <= steps.min() + 1


@given(count=st.integers(1, 1000), limit=st.integers(1, 1000))
def test_twice_the_limit_keeps_the_images(count: int, limit: int) -> None:
    if 2 * limit <= count:
        fewer, more = (Selection(limit=number).indices(count) for number in (limit, 2 * limit))
        assert set(fewer) <= set(more)


# --- CIFAR-10-C


def test_cifar_blocks_are_severities(cifar: Path) -> None:
    opened = open_data(f"cifar10c:{cifar}", corrupt="all+holdout", severities=(5, 1, 3))
    assert (opened.task, opened.classes, opened.ignore, len(opened)) == ("classification", 10, None, COUNT)
    for condition in opened.conditions:
        images, labels = load_all(opened, condition)
        kind = (*KINDS, "spatter").index(condition.corruption)
        assert np.all(images[:, 0, 0, 0] == kind)
        assert np.all(images[:, 0, 0, 1] == condition.severity)
        np.testing.assert_array_equal(images[:, 5, 5, 2], np.arange(COUNT))
        np.testing.assert_array_equal(labels, np.arange(COUNT) % 10)


def test_cifar_labels_may_be_one_block(small_cifar: Path) -> None:
    opened = [open_data(f"cifar100c:{small_cifar}", corrupt="snow")]
    np.save(small_cifar / "labels.npy", np.array([[3], [1], [2]], np.int32))
    opened.append(open_data(f"cifar100c:{small_cifar}", corrupt="snow"))
    for one in opened:
        assert one.classes == 100
        np.testing.assert_array_equal(load_all(one, Condition("snow", 5))[1], [3, 1, 2])


def test_cifar_may_hold_clean_images(small_cifar: Path) -> None:
    with pytest.raises(InputError, match=r"missing: clean\. Try: --corrupt snow,fog"):
        open_data(f"cifar10c:{small_cifar}", corrupt="clean,fog")
    clean = noise(3, 32, 32, 3, seed=9)
    np.save(small_cifar / "clean.npy", clean)
    opened = open_data(f"cifar10c:{small_cifar}", corrupt="fog,clean")
    np.testing.assert_array_equal(load_all(opened, CLEAN)[0], clean)
    np.testing.assert_array_equal(load_all(opened, Condition("fog", 5))[0], noise(15, 32, 32, 3)[12:])


def test_arrays_are_resized_whole(small_cifar: Path) -> None:
    opened = open_data(f"cifar10c:{small_cifar}", corrupt="fog", size=48, crop=0.5)
    images, _ = load_all(opened, Condition("fog", 5))
    alone = Image.fromarray(noise(15, 32, 32, 3)[13]).resize((48, 48), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(images[1], np.asarray(alone))
    unchanged = open_data(f"cifar10c:{small_cifar}", corrupt="fog", size=32)
    np.testing.assert_array_equal(load_all(unchanged, Condition("fog", 5))[0], noise(15, 32, 32, 3)[12:])


Break = Callable[[Path], object]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: np.save(folder / "fog.npy", noise(14, 32, 32, 3)), "received 14 images, which five does not"),
        (lambda folder: np.save(folder / "fog.npy", noise(20, 32, 32, 3)), "3 in snow.npy and 4 in fog.npy"),
        (lambda folder: np.save(folder / "fog.npy", noise(15, 32, 32, 3) / 255), r"float64.*values in \[0, 1\].*round"),
        (lambda folder: np.save(folder / "fog.npy", noise(15, 3, 32, 32)), r"\(15, 3, 32, 32\).*transpose\(0, 2, 3, 1"),
        (lambda folder: np.save(folder / "fog.npy", noise(15, 28, 28, 3)), r"32×32.*\(15, 28, 28, 3\)"),
        (lambda folder: (folder / "fog.npy").write_bytes(b"no array"), r"fog\.npy; it cannot be read"),
        (lambda folder: (folder / "labels.npy").unlink(), r"labels\.npy; there is none.*five blocks"),
        (lambda folder: np.save(folder / "labels.npy", np.zeros(14, int)), "3 labels, or five times.*received 14"),
        (lambda folder: np.save(folder / "labels.npy", np.arange(15) % 10), "same labels for all five"),
        (lambda folder: np.save(folder / "labels.npy", np.full(15, 10)), "from 0 to 9.*received 10 to 10"),
        (lambda folder: np.save(folder / "labels.npy", np.full(15, -1)), "from 0 to 9.*received -1"),
        (lambda folder: np.save(folder / "labels.npy", np.zeros(15)), r"whole numbers.*float64.*astype\(np\.int64\)"),
        (lambda folder: np.save(folder / "labels.npy", np.zeros((15, 10), int)), r"\(15, 10\).*argmax"),
    ],
)
def test_what_is_wrong_with_cifar_is_reported(small_cifar: Path, change: Break, words: str) -> None:
    change(small_cifar)
    with pytest.raises(InputError, match=words):
        open_data(f"cifar10c:{small_cifar}", corrupt="snow,fog")


def test_missing_corruptions_are_named(small_cifar: Path) -> None:
    with pytest.raises(InputError, match=r"<corruption>\.npy.*missing: gaussian_noise, .*jpeg.*Try: --corrupt snow"):
        open_data(f"cifar10c:{small_cifar}")


# --- clean arrays, corrupted as they are loaded


@pytest.mark.parametrize("names", [("images", "labels"), ("x_test", "y_test"), ("x", "y")])
def test_npz_by_its_usual_names(tmp_path: Path, names: tuple[str, str]) -> None:
    images, labels = noise(4, 9, 8, 3), np.array([[4], [0], [300], [1]])
    np.savez_compressed(tmp_path / "some.npz", **dict(zip(names, (images, labels), strict=True)))
    opened = open_data(f"npz:{tmp_path / 'some.npz'}", corrupt="none")
    assert opened.classes is None
    np.testing.assert_array_equal(load_all(opened, CLEAN)[0], images)
    np.testing.assert_array_equal(load_all(opened, CLEAN)[1], labels[:, 0])


@pytest.mark.parametrize("limit", [None, 3])
def test_corruptions_are_drawn_by_the_place_among_all(npz: Path, limit: int | None) -> None:
    kinds = ("shot_noise", "fog", "spatter")
    opened = open_data(f"npz:{npz}", corrupt=",".join(kinds), severities=(1, 4), seed=3, limit=limit)
    places = range(7) if limit is None else (0, 2, 4)
    for condition in opened.conditions:
        images, labels = load_all(opened, condition)
        np.testing.assert_array_equal(labels, places)
        for image, place in zip(images, places, strict=True):
            clean = noise(7, 20, 24, 3)[place]
            alone = corrupt(clean, condition.corruption, condition.severity, seed=3, index=place)
            np.testing.assert_array_equal(image, alone)
            assert np.any(image != clean)


def test_images_are_corrupted_at_the_size_of_the_model(npz: Path) -> None:
    opened = open_data(f"npz:{npz}", corrupt="clean,pixelate", severities=(3,), size=(30, 80))
    clean, _ = load_all(opened, CLEAN)
    assert clean.shape == (7, 30, 80, 3)
    expected = [corrupt(image, "pixelate", 3, index=index) for index, image in enumerate(clean)]
    np.testing.assert_array_equal(load_all(opened, Condition("pixelate", 3))[0], expected)


def test_npy_with_labels_beside(tmp_path: Path) -> None:
    np.save(tmp_path / "test.npy", noise(4, 9, 8, 3))
    with pytest.raises(InputError, match=r"test_labels\.npy or .*labels\.npy; neither is there"):
        open_data(f"npy:{tmp_path / 'test.npy'}")
    for file, first in (("labels.npy", 0), ("test_labels.npy", 5)):
        np.save(tmp_path / file, np.arange(first, first + 4))
        images, labels = load_all(open_data(f"npy:{tmp_path / 'test.npy'}"), CLEAN)
        np.testing.assert_array_equal(images, noise(4, 9, 8, 3))
        np.testing.assert_array_equal(labels, np.arange(first, first + 4))


def test_a_path_may_hold_a_colon(npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(npz.parent)
    npz.rename(npz.parent / "C:\\x.npz")
    assert len(open_data("npz:C:\\x.npz")) == 7


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": noise(4, 9, 8, 3), "labels": np.zeros(3, int)}, "label for every image.*4 and 3"),
        ({"pictures": noise(4, 9, 8, 3)}, "images, labels or x_test, y_test or x, y.*received pictures"),
        ({"x": noise(4, 9, 8), "y": np.zeros(4, int)}, r"\(4, 9, 8\).*grey images, `np\.repeat"),
        ({"x": np.zeros((4, 9, 8, 3), np.float32), "y": np.zeros(4, int)}, "received float32"),
        ({"x": noise(0, 9, 8, 3), "y": np.zeros(0, int)}, "at least one image"),
        ({"x": noise(4, 9, 8, 3), "y": np.array([1, 2, -3, 4])}, "at least 0.*received -3 to 4"),
        ({"x": noise(1, 9, 8, 3), "y": np.array([object()])}, r"x\.npz; received an array of objects.*np\.stack"),
    ],
)
def test_what_is_wrong_with_an_npz_is_reported(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(InputError, match=words):
        open_data(f"npz:{tmp_path / 'x.npz'}")


# --- folders


def test_folders_are_classes_in_the_order_of_their_names(by_class: Path) -> None:
    opened = open_data(f"imagefolder:{by_class}", corrupt="none", size=16)
    assert opened.classes == 3
    np.testing.assert_array_equal(load_all(opened, CLEAN)[1], [0, 1, 1, 2])


def test_classes_txt_sets_the_order(by_class: Path) -> None:
    (by_class / "classes.txt").write_text("bird\nc_owl\nb_cat\na_dog\n\n")
    opened = open_data(f"imagefolder:{by_class}", corrupt="none", size=16)
    assert opened.classes == 4
    np.testing.assert_array_equal(load_all(opened, CLEAN)[1], [3, 2, 2, 1])
    for lines, words in (("c_owl\nb_cat", "1 that are not: a_dog"), ("a\nb\na", "several times: a"), ("", "an empty")):
        (by_class / "classes.txt").write_text(lines)
        with pytest.raises(InputError, match=words):
            open_data(f"imagefolder:{by_class}")


@pytest.mark.parametrize(("size", "crop"), [(16, 0.875), (33, 0.9), (50, 1.0)])
@pytest.mark.parametrize("shape", [(31, 47), (47, 30), (32, 32)])
def test_the_centre_is_cut_as_torchvision_does(tmp_path: Path, shape: tuple[int, int], size: int, crop: float) -> None:
    write_image(tmp_path / "class" / "x.png", noise(*shape, 3))
    images, _ = open_data(f"imagefolder:{tmp_path}", size=size, crop=crop).load(CLEAN, 0, 1)
    resize = transforms.Resize(round(size / crop), transforms.InterpolationMode.BICUBIC)
    expected = transforms.CenterCrop(size)(resize(Image.open(tmp_path / "class" / "x.png")))
    np.testing.assert_array_equal(images[0], np.asarray(expected))


def test_a_size_that_is_no_square_is_covered(tmp_path: Path) -> None:
    """A grey ramp from left to right, and one from top to bottom, stay centred and keep their form."""
    ramp = np.repeat(np.linspace(0, 255, 64).astype(np.uint8)[None, :, None], 64, 0).repeat(3, 2)
    write_image(tmp_path / "class" / "x.png", ramp)
    write_image(tmp_path / "class" / "y.png", ramp.transpose(1, 0, 2))
    images, _ = open_data(f"imagefolder:{tmp_path}", size=(16, 32), crop=0.5).load(CLEAN, 0, 2)
    assert images.shape == (2, 16, 32, 3)
    # 64×64 is what covers 32×64: nothing is resized, and the middle is cut out.
    np.testing.assert_array_equal(images[0], ramp[24:40, 16:48])
    np.testing.assert_array_equal(images[1], ramp.transpose(1, 0, 2)[24:40, 16:48])


def test_grey_palette_and_transparent_images_become_rgb(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    picture = Image.fromarray(noise(8, 8, 3) // 64 * 64)
    for mode in ("L", "P", "RGBA"):
        picture.convert(mode).save(tmp_path / "class" / f"{mode}.png")
    images, _ = open_data(f"imagefolder:{tmp_path}").load(CLEAN, 0, 3)
    np.testing.assert_array_equal(images[0], np.asarray(picture.convert("L"))[..., None].repeat(3, 2))
    np.testing.assert_array_equal(images[2], np.asarray(picture))


def test_without_a_size_images_have_one(by_class: Path) -> None:
    with pytest.raises(InputError, match=r"one size, 40×32.*received 40×31 in .*1\.PNG\. Try: --size"):
        open_data(f"imagefolder:{by_class}")
    assert open_data(f"imagefolder:{by_class}", limit=1).load(CLEAN, 0, 1)[0].shape == (1, 32, 40, 3)


@pytest.mark.parametrize("place", ["", "images"])
def test_a_list_of_labels(tmp_path: Path, place: str) -> None:
    for seed, name in enumerate(("b.png", "a.png")):
        write_image(tmp_path / place / name, noise(8, 8, 3, seed=seed))
    (tmp_path / "labels.json").write_text('{"b.png": 7, "a.png": 999}')
    images, labels = load_all(open_data(f"imagefolder:{tmp_path}", corrupt="none"), CLEAN)
    np.testing.assert_array_equal(labels, [999, 7])
    np.testing.assert_array_equal(images, [noise(8, 8, 3, seed=1), noise(8, 8, 3, seed=0)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a.png": 1}', "1 labels and 2 images differ; 1 have no label: b.png"),
        ('{"a.png": 1, "b.png": 2, "c.png": 3}', "1 have no image: c.png"),
        ('{"a.png": 1, "b.png": -2}', "b.png has -2"),
        ('{"a.png": 1, "b.png": 1.5}', "b.png has 1.5"),
        ('{"a.png": true, "b.png": 1}', "a.png has True"),
        ("[1, 2]", "received a list"),
        ("{", "not JSON"),
    ],
)
def test_what_is_wrong_with_a_list_of_labels_is_reported(tmp_path: Path, text: str, words: str) -> None:
    for name in ("a.png", "b.png"):
        write_image(tmp_path / "images" / name, noise(8, 8, 3))
    (tmp_path / "labels.json").write_text(text)
    with pytest.raises(InputError, match=words):
        open_data(f"imagefolder:{tmp_path}")
    (tmp_path / "labels.json").unlink()
    with pytest.raises(InputError, match=r"Expected labels\.json beside the folder images"):
        open_data(f"imagefolder:{tmp_path}")


@pytest.mark.parametrize("size", [None, 8])
@pytest.mark.parametrize("cut", [0, 200])
def test_an_unreadable_image_is_named(tmp_path: Path, cut: int, size: int | None) -> None:
    write_image(tmp_path / "class" / "good.png", noise(16, 16, 3))
    whole = (tmp_path / "class" / "good.png").read_bytes()
    (tmp_path / "class" / "torn.png").write_bytes(whole[:cut])
    with pytest.raises(InputError, match=r"torn\.png; (it cannot be read.*remove it|received something else)"):
        open_data(f"imagefolder:{tmp_path}", size=size).load(CLEAN, 0, 2)


def test_an_npz_is_checked_before_it_is_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "x.npz", images=np.zeros((100, 64, 64, 3), np.uint8), labels=np.zeros(100, int))
    np.savez_compressed(tmp_path / "y.npz", images=np.zeros((100, 64, 64, 3)), labels=np.zeros(100, int))
    monkeypatch.setattr("sita_workbench.data.arrays.memory_size", lambda: 2_000_000)

    def read(*_: object, **__: object) -> None:
        raise AssertionError("decompressed")

    monkeypatch.setattr(np.lib.format, "read_array", read)
    with pytest.raises(InputError, match="half of the memory"):
        open_data(f"npz:{tmp_path / 'x.npz'}")
    with pytest.raises(InputError, match="received float64"):
        open_data(f"npz:{tmp_path / 'y.npz'}")


# --- ImageNet-C


def test_imagenet_c_by_kind_severity_and_class(imagenet_c: Path) -> None:
    opened = open_data(f"imagenet-c:{imagenet_c}", corrupt="fog,shot_noise", severities=(5,))
    assert (opened.classes, len(opened)) == (5, 3)
    for condition, place in (("fog", "fog/5"), ("shot_noise", "noise/shot_noise/5")):
        images, labels = load_all(opened, Condition(condition, 5))
        np.testing.assert_array_equal(labels, [3, 1, 1])
        np.testing.assert_array_equal(images, [noise(16, 16, 3, seed=seed + len(place)) for seed in (2, 0, 1)])


def test_imagenet_c_is_not_cropped_again(imagenet_c: Path) -> None:
    """Published images are cut already; what a clean folder holds may be whole photographs."""
    for seed, name in enumerate(("n02/x.png", "n02/y.png", "n01/z.png")):
        write_image(imagenet_c / "clean" / name, noise(20, 24, 3, seed=seed))
    opened = open_data(f"imagenet-c:{imagenet_c}", corrupt="clean,fog", size=16)
    images, _ = load_all(opened, Condition("fog", 5))
    np.testing.assert_array_equal(images[1], noise(16, 16, 3, seed=len("fog/5")))
    cut = transforms.Compose([transforms.Resize(18, transforms.InterpolationMode.BICUBIC), transforms.CenterCrop(16)])
    np.testing.assert_array_equal(
        load_all(opened, CLEAN)[0][1], np.asarray(cut(Image.fromarray(noise(20, 24, 3, seed=0))))
    )
    with pytest.raises(InputError, match=r"one size, 16×16.*received 24×20.*--size"):
        open_data(f"imagenet-c:{imagenet_c}", corrupt="fog,clean")


def test_a_thousand_classes_need_no_list(tmp_path: Path) -> None:
    for number in range(1000):
        (tmp_path / "fog" / "5" / f"n{number:04}").mkdir(parents=True)
    write_image(tmp_path / "fog" / "5" / "n0734" / "x.png", noise(8, 8, 3))
    opened = open_data(f"imagenet-c:{tmp_path}", corrupt="fog")
    assert opened.classes == 1000
    assert load_all(opened, Condition("fog", 5))[1].tolist() == [734]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "classes.txt").unlink(), r"1000 folders of classes.*received 2.*classes\.txt"),
        (lambda folder: (folder / "fog" / "5" / "n02" / "y.png").unlink(), r"same images.*in one alone: n02/y\.png\."),
        (lambda folder: (folder / "fog" / "5").rename(folder / "fog" / "4"), "fog.5; received nothing.*<severity>"),
        (lambda folder: (folder / "fog").rename(folder / "mist"), "missing: fog. Try: --corrupt shot_noise"),
        (lambda folder: (folder / "classes.txt").write_text("n02"), "1 that are not: n01"),
    ],
)
def test_what_is_wrong_with_imagenet_c_is_reported(imagenet_c: Path, change: Break, words: str) -> None:
    change(imagenet_c)
    with pytest.raises(InputError, match=words):
        open_data(f"imagenet-c:{imagenet_c}", corrupt="shot_noise,fog")


# --- segmentation


def test_photographs_and_label_maps_of_one_name(scenes: Path) -> None:
    opened = open_data(f"segmentation:{scenes}", corrupt="clean,frost", ignore=4)
    assert (opened.task, opened.classes, opened.ignore) == ("segmentation", None, 4)
    photographs = np.stack([noise(12, 16, 3, seed=seed) for seed in range(3)])
    maps = np.stack([noise(12, 16, seed=seed) % 5 for seed in range(3)])
    np.testing.assert_array_equal(load_all(opened, CLEAN)[0], photographs)
    frosted, labels = load_all(opened, Condition("frost", 5))
    np.testing.assert_array_equal(labels, maps)
    np.testing.assert_array_equal(frosted, [corrupt(one, "frost", 5, index=i) for i, one in enumerate(photographs)])


def test_two_folders_with_a_comma(scenes: Path) -> None:
    (scenes / "labels").rename(scenes / "truth")
    opened = open_data(f"segmentation:{scenes / 'images'},{scenes / 'truth'}", corrupt="none")
    assert (len(opened), opened.ignore) == (3, 255)


def test_palette_and_deep_label_maps_keep_their_numbers(scenes: Path) -> None:
    labels = noise(12, 16) % 20
    palette = Image.fromarray(labels).convert("P")
    palette.putpalette(noise(768).tolist())
    palette.save(scenes / "labels" / "a.png")
    Image.fromarray(labels.astype(np.uint16) * 100).save(scenes / "labels" / "b.png")
    _, maps = load_all(open_data(f"segmentation:{scenes}", corrupt="none"), CLEAN)
    np.testing.assert_array_equal(maps[0], labels)
    np.testing.assert_array_equal(maps[1], labels.astype(int) * 100)


@pytest.mark.parametrize(("size", "shape"), [((6, 8), (6, 8)), (32, (32, 32))])
def test_label_maps_are_picked_from_and_nothing_is_cut(
    scenes: Path, size: int | tuple[int, int], shape: tuple[int, int]
) -> None:
    images, maps = load_all(open_data(f"segmentation:{scenes}", corrupt="none", size=size), CLEAN)
    assert images.shape == (3, *shape, 3)
    rows, columns = ((np.arange(new) + 0.5) * old / new for new, old in zip(shape, (12, 16), strict=True))
    whole = np.stack([noise(12, 16, seed=seed) % 5 for seed in range(3)])
    np.testing.assert_array_equal(maps, whole[:, rows.astype(int)][:, :, columns.astype(int)])
    # The whole photograph is there: its mean is kept.
    np.testing.assert_allclose(images[0].mean(), noise(12, 16, 3, seed=0).mean(), atol=6)


def grey_png(bits: int) -> bytes:
    """A PNG of 16×12 pixels with few bits each, which Pillow reads but does not write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = 12 * (b"\0" + bytes(16 * bits // 8))
    head = struct.pack(">IIBBBBB", 16, 12, bits, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "labels" / "b.png").unlink(), "3 and 2; labels has none for b"),
        (lambda folder: (folder / "images" / "b.png").unlink(), "2 and 3; images has none for b"),
        (lambda folder: write_image(folder / "labels" / "b.png", noise(12, 15)), "b.png at .* 16×12; received 15×12"),
        (
            lambda folder: write_image(folder / "labels" / "b.png", noise(12, 16, 3)),
            "one label per pixel in .*mode RGB",
        ),
        (lambda folder: (folder / "labels" / "b.png").write_bytes(grey_png(4)), "8 or 16 bits in .*fewer"),
        (lambda folder: (folder / "labels" / "b.png").write_bytes(b"torn"), r"b\.png; received something else"),
        (lambda folder: write_image(folder / "images" / "b.jpg", noise(12, 16, 3)), "received b.jpg and b.png"),
        (lambda folder: (folder / "labels").rename(folder / "maps"), "labels; received nothing there. The layout is"),
    ],
)
def test_what_is_wrong_with_label_maps_is_reported(scenes: Path, change: Break, words: str) -> None:
    change(scenes)
    with pytest.raises(InputError, match=words):
        open_data(f"segmentation:{scenes}")


def test_camvid_has_eleven_classes_and_void(scenes: Path) -> None:
    (scenes / "images").rename(scenes / "test")
    (scenes / "labels").rename(scenes / "testannot")
    write_image(scenes / "testannot" / "a.png", np.full((12, 16), 11, np.uint8))
    opened = open_data(f"camvid:{scenes}", corrupt="none")
    assert (opened.classes, opened.ignore, len(opened)) == (11, 11, 3)
    assert np.all(opened.load(CLEAN, 0, 1)[1] == 11)
    write_image(scenes / "testannot" / "a.png", np.full((12, 16), 12, np.uint8))
    with pytest.raises(InputError, match=r"from 0 to 10, or 11 .*a\.png; received 12"):
        open_data(f"camvid:{scenes}", corrupt="none").load(CLEAN, 0, 1)
    with pytest.raises(InputError, match="no other label than 11"):
        open_data(f"camvid:{scenes}", ignore=255)


# --- arguments


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"corrupt": "clean,fogg"}, "received 'fogg'. Did you mean 'fog'"),
        ({"corrupt": "al"}, "received 'al'. Did you mean 'all'"),
        ({"corrupt": "all,fog"}, "'all' alone"),
        ({"corrupt": ""}, "received ''"),
        ({"severities": (0,)}, "from 1 to 5.*received 0"),
        ({"severities": (5, 6)}, "from 1 to 5.*received 6"),
        ({"severities": (2.5,)}, "received 2.5"),
        ({"severities": ()}, "at least one severity"),
        ({"limit": 0}, "at least 1 image.*received 0"),
        ({"seed": -1}, "seed as a whole number of at least 0; received -1"),
        ({"size": 0}, "number of pixels.*received 0"),
        ({"size": (3, 4, 5)}, r"received \(3, 4, 5\)"),
        ({"crop": 1.2}, r"in \(0, 1\]; received 1.2"),
        ({"ignore": 255}, "for segmentation or camvid alone; received 255 for npz"),
    ],
)
def test_arguments_out_of_range_are_refused(npz: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        open_data(f"npz:{npz}", **arguments)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("cifar-10c:x", "cifar10c:FOLDER.*imagenet-c:.*camvid:.*Received 'cifar-10c:x'. Did you mean 'cifar10c'"),
        ("cifar10c", "Received 'cifar10c'"),
        ("npz:", "Received 'npz:'"),
        ("cifar10c:nowhere", "a folder nowhere; received nothing there. The layout is .*labels.npy"),
        ("imagenet-c:nowhere", "a folder nowhere.*<corruption>/<severity>/<class>"),
        ("imagefolder:nowhere", "a folder nowhere.*<class>/<image>"),
        ("segmentation:nowhere", "a folder nowhere.*labels/<name>.png"),
        ("camvid:nowhere", "a folder nowhere.*testannot"),
        ("npz:nowhere.npz", "a file nowhere.npz; received nothing there.*images and labels"),
        ("npy:nowhere.npy", "a file nowhere.npy; received nothing there.*_labels.npy"),
        ("imagefolder:.", "at least one image in .; received none"),
    ],
)
def test_what_is_not_there_is_named_with_the_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=words):
        open_data(spec)


def test_only_what_was_opened_is_loaded(npz: Path) -> None:
    opened = open_data(f"npz:{npz}", corrupt="fog")
    assert opened.name == f"npz:{npz}"
    with pytest.raises(InputError, match="fog/5; received clean"):
        opened.load(CLEAN, 0, 1)
    for start, stop in ((7, 8), (-1, 2), (3, 3)):
        with pytest.raises(InputError, match="places from 0 to 7"):
            opened.load(Condition("fog", 5), start, stop)
    assert len(opened.load(Condition("fog", 5), 5, 100)[0]) == 2


# --- digests


def test_a_digest_follows_the_content_alone(npz: Path, tmp_path: Path) -> None:
    digest = open_data(f"npz:{npz}").digest()
    assert len(digest) == 16
    assert open_data(f"npz:{npz}", corrupt="fog", severities=(1, 2)).digest() == digest
    (tmp_path / "elsewhere").mkdir()
    moved = npz.rename(tmp_path / "elsewhere" / npz.name)
    assert open_data(f"npz:{moved}").digest() == digest
    others: list[dict[str, Any]] = [{"limit": 3}, {"seed": 1}, {"size": 9}]
    assert len({digest, *(open_data(f"npz:{moved}", **other).digest() for other in others)}) == 4


@pytest.mark.parametrize(
    ("kind", "maker", "change"),
    [
        ("imagefolder", "by_class", lambda folder: write_image(folder / "a_dog" / "3.bmp", noise(32, 40, 3, seed=8))),
        ("imagefolder", "by_class", lambda folder: (folder / "a_dog").rename(folder / "d_dog")),
        ("imagefolder", "by_class", lambda folder: (folder / "classes.txt").write_text("b_cat\na_dog\nc_owl")),
        ("cifar10c", "small_cifar", lambda folder: np.save(folder / "labels.npy", np.zeros(3, int))),
        ("cifar10c", "small_cifar", lambda folder: np.save(folder / "fog.npy", noise(15, 32, 32, 3, seed=8))),
        ("imagenet-c", "imagenet_c", lambda folder: write_image(folder / "fog/5/n01/z.png", noise(16, 16, 3, seed=99))),
        ("segmentation", "scenes", lambda folder: write_image(folder / "labels" / "c.png", noise(12, 16, seed=8))),
    ],
)
def test_a_digest_notices_a_change(request: pytest.FixtureRequest, kind: str, maker: str, change: Break) -> None:
    folder: Path = request.getfixturevalue(maker)
    digests = [open_data(f"{kind}:{folder}", corrupt="fog", size=16).digest() for _ in range(2)]
    change(folder)
    assert digests[0] == digests[1] != open_data(f"{kind}:{folder}", corrupt="fog", size=16).digest()


# --- the real data


@pytest.mark.real
def test_real_cifar_blocks(data: Path) -> None:
    opened = open_data(f"cifar10c:{data / 'cifar10c'}", severities=(1, 5))
    assert len(opened.conditions) == 30
    images, labels = load_all(opened, Condition("fog", 5))
    np.testing.assert_array_equal(images, np.load(data / "cifar10c" / "fog.npy")[-200:])
    np.testing.assert_array_equal(labels, np.load(data / "cifar10c" / "labels.npy")[-200:])
    np.testing.assert_array_equal(labels, np.load(data / "cifar10" / "test_1000.npz")["labels"][:200])


@pytest.mark.real
def test_real_imagenet(data: Path) -> None:
    opened = open_data(f"imagefolder:{data / 'imagenet'}", corrupt="clean,contrast", size=224, limit=3)
    images, labels = load_all(opened, CLEAN)
    listed = json.loads((data / "imagenet" / "labels.json").read_text())
    names = sorted(listed)[::80]
    assert labels.tolist() == [listed[name] for name in names]
    resize = transforms.Resize(256, transforms.InterpolationMode.BICUBIC)
    with Image.open(data / "imagenet" / "images" / names[2]) as picture:
        expected = np.asarray(transforms.CenterCrop(224)(resize(picture.convert("RGB"))))
    np.testing.assert_array_equal(images[2], expected)
    np.testing.assert_array_equal(
        opened.load(Condition("contrast", 5), 2, 3)[0][0], corrupt(expected, "contrast", 5, index=160)
    )
