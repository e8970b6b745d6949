"""The data of a benchmark: what is read, what is refused, and with which message."""

from __future__ import annotations

import json
import os
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
from sita_workbench.corruptions import KINDS, corrupt
from sita_workbench.data.dataset import CLEAN, Condition, Dataset, Selection
from sita_workbench.data.opening import open_data

COUNT = 12
Break = Callable[[Path], object]


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
    """Every image is filled with its position in the block; its first pixel's values are the kind and the severity."""
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
    """Two classes of five; one kind is in a family's folder."""
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


# --- conditions and selected images


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("none", ["clean"]),
        ("clean", ["clean"]),
        ("all", ["clean", *(f"{kind}/{severity}" for kind in KINDS for severity in (2, 5))]),
        ("snow, clean,fog,snow", ["snow/2", "snow/5", "clean", "fog/2", "fog/5"]),
    ],
)
def test_conditions_of_clean_data(npz: Path, chosen: str, expected: list[str]) -> None:
    opened = open_data(f"npz:{npz}", corrupt=chosen, severities=[2, 5])
    assert list(map(str, opened.conditions)) == expected


@pytest.mark.parametrize(("chosen", "expected"), [("all", KINDS), ("spatter,fog", ("spatter", "fog"))])
def test_conditions_of_stored_corruptions(cifar: Path, chosen: str, expected: tuple[str, ...]) -> None:
    assert open_data(f"cifar10c:{cifar}", corrupt=chosen).conditions == tuple(Condition(kind, 5) for kind in expected)


@settings(max_examples=15, deadline=None)
@given(limit=st.integers(1, 2 * COUNT))
def test_a_limit_selects_the_same_images_under_every_condition(cifar: Path, limit: int) -> None:
    opened = open_data(f"cifar10c:{cifar}", corrupt="fog,snow", severities=(1, 5), limit=limit)
    selected = [load_all(opened, condition)[0][:, 1, 1, 1].tolist() for condition in opened.conditions]
    assert len(opened) == len(selected[0]) == min(limit, COUNT)
    assert selected[0] == sorted(set(selected[0]) & set(range(COUNT)))
    assert all(one == selected[0] for one in selected)


@given(count=st.integers(1, 60_000), limit=st.integers(1, 60_000))
def test_selected_images_are_spread_evenly(count: int, limit: int) -> None:
    indices = Selection(limit=limit).indices(count)
    steps = np.diff(np.append(indices, count))
    assert len(steps) == min(count, limit)
    assert 1 <= steps.min() <= steps.max() <= steps.min() + 1
    if 2 * limit <= count:
        assert set(indices) <= set(Selection(limit=2 * limit).indices(count))


# --- CIFAR-10-C


def test_cifar_blocks_are_severities(cifar: Path) -> None:
    opened = open_data(f"cifar10c:{cifar}", corrupt=",".join((*KINDS, "spatter")), severities=(5, 1, 3))
    assert (opened.task, opened.classes, opened.ignore, len(opened)) == ("classification", 10, None, COUNT)
    for condition in opened.conditions:
        images, labels = load_all(opened, condition)
        assert np.all(images[:, 0, 0, 0] == (*KINDS, "spatter").index(condition.corruption))
        assert np.all(images[:, 0, 0, 1] == condition.severity)
        np.testing.assert_array_equal(images[:, 5, 5, 2], np.arange(COUNT))
        np.testing.assert_array_equal(labels, np.arange(COUNT) % 10)


def test_arrays_are_resized_whole(small_cifar: Path) -> None:
    opened = open_data(f"cifar10c:{small_cifar}", corrupt="fog", size=48, crop=0.5)
    images, _ = load_all(opened, Condition("fog", 5))
    expected = Image.fromarray(noise(15, 32, 32, 3)[13]).resize((48, 48), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(images[1], np.asarray(expected))
    unchanged = open_data(f"cifar100c:{small_cifar}", corrupt="fog", size=32)
    np.testing.assert_array_equal(load_all(unchanged, Condition("fog", 5))[0], noise(15, 32, 32, 3)[12:])


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("fog", noise(14, 32, 32, 3), r"\(15, 32, 32, 3\) in .*received \(14, 32, 32, 3\)"),
        ("fog", noise(15, 28, 28, 3), r"\(15, 32, 32, 3\) in .*received \(15, 28, 28, 3\)"),
        ("fog", noise(15, 3, 32, 32), r"\(15, 3, 32, 32\).*transpose\(0, 2, 3, 1"),
        ("fog", noise(15, 32, 32, 3) / 255, r"float64.*values in \[0, 1\].*round"),
        ("fog", np.array([None]), r"fog\.npy; it cannot be read"),
        ("labels", np.zeros(14, int), "received 14 in blocks that differ"),
        ("labels", np.arange(15) % 10, "same labels for all five"),
        ("labels", np.full(15, 10), "from 0 to 9.*received 10 to 10"),
        ("labels", np.full(15, -1), "from 0 to 9.*received -1"),
        ("labels", np.zeros(15), r"integer dtype.*float64.*astype\(np\.int64\)"),
        ("labels", np.zeros((15, 10), int), r"\(15, 10\).*argmax"),
    ],
)
def test_wrong_arrays_of_cifar_are_refused(small_cifar: Path, name: str, array: np.ndarray, words: str) -> None:
    np.save(small_cifar / f"{name}.npy", array)
    with pytest.raises(InputError, match=words):
        open_data(f"cifar10c:{small_cifar}", corrupt="snow,fog")


def test_missing_files_of_cifar_are_named(small_cifar: Path) -> None:
    for corrupt_, words in (("all", "gaussian_noise, .*jpeg_compression"), ("clean,fog", "clean"), ("none", "clean")):
        with pytest.raises(InputError, match=rf"missing: {words}\. Try: --corrupt snow,fog"):
            open_data(f"cifar10c:{small_cifar}", corrupt=corrupt_)
    (small_cifar / "fog.npy").write_bytes(b"no array")
    with pytest.raises(InputError, match=r"fog\.npy; it cannot be read"):
        open_data(f"cifar10c:{small_cifar}", corrupt="fog")
    (small_cifar / "labels.npy").unlink()
    with pytest.raises(InputError, match=r"labels\.npy; there is none"):
        open_data(f"cifar10c:{small_cifar}", corrupt="fog")


# --- clean arrays, corrupted as they are loaded


@pytest.mark.parametrize("names", [("images", "labels"), ("x_test", "y_test"), ("x", "y")])
def test_npz_by_its_usual_names(tmp_path: Path, names: tuple[str, str]) -> None:
    images, labels = noise(4, 9, 8, 3), np.array([[4], [0], [300], [1]])
    np.savez_compressed(tmp_path / "C:some.npz", **dict(zip(names, (images, labels), strict=True)))
    opened = open_data(f"npz:{tmp_path / 'C:some.npz'}", corrupt="none")
    assert opened.classes is None
    np.testing.assert_array_equal(load_all(opened, CLEAN)[0], images)
    np.testing.assert_array_equal(load_all(opened, CLEAN)[1], labels[:, 0])


@pytest.mark.parametrize(("limit", "positions"), [(None, range(7)), (3, (0, 2, 4))])
def test_corruptions_are_drawn_by_the_position_among_all(npz: Path, limit: int | None, positions: list[int]) -> None:
    opened = open_data(f"npz:{npz}", corrupt="shot_noise,fog,spatter", severities=(1, 4), limit=limit)
    for condition in opened.conditions:
        images, labels = load_all(opened, condition)
        np.testing.assert_array_equal(labels, positions)
        for image, position in zip(images, positions, strict=True):
            clean = noise(7, 20, 24, 3)[position]
            expected = corrupt(clean, condition.corruption, condition.severity, index=position)
            np.testing.assert_array_equal(image, expected)
            assert np.any(image != clean)


def test_images_are_corrupted_at_the_size_of_the_model(npz: Path) -> None:
    opened = open_data(f"npz:{npz}", corrupt="clean,pixelate", severities=(3,), size=(30, 80))
    clean, _ = load_all(opened, CLEAN)
    assert clean.shape == (7, 30, 80, 3)
    expected = [corrupt(image, "pixelate", 3, index=index) for index, image in enumerate(clean)]
    np.testing.assert_array_equal(load_all(opened, Condition("pixelate", 3))[0], expected)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"images": noise(4, 9, 8, 3), "labels": np.zeros(3, int)}, "label for every image.*3 for 4 images"),
        ({"pictures": noise(4, 9, 8, 3)}, "images, labels or x_test, y_test or x, y.*received pictures"),
        ({"x": noise(4, 9, 8), "y": np.zeros(4, int)}, r"\(4, 9, 8\).*`np\.repeat"),
        ({"x": np.zeros((4, 9, 8, 3), np.float32), "y": np.zeros(4, int)}, "received float32"),
        ({"x": noise(0, 9, 8, 3), "y": np.zeros(0, int)}, "at least one; received"),
        ({"x": noise(4, 9, 8, 3), "y": np.array([1, 2, -3, 4])}, "at least 0.*received -3 to 4"),
        ({"x": noise(1, 9, 8, 3), "y": np.array([object()])}, r"x\.npz; .*it holds Python objects.*np\.stack"),
    ],
)
def test_wrong_arrays_in_an_npz_are_refused(tmp_path: Path, arrays: dict[str, Any], words: str) -> None:
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(InputError, match=words):
        open_data(f"npz:{tmp_path / 'x.npz'}")


def test_an_npz_is_checked_before_it_is_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "x.npz", images=np.zeros((100, 64, 64, 3), np.uint8), labels=np.zeros(100, int))
    monkeypatch.setattr("sita_workbench.data.arrays.memory_size", lambda: 2_000_000)
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("decompressed"))
    with pytest.raises(InputError, match="half of the memory"):
        open_data(f"npz:{tmp_path / 'x.npz'}")


def test_files_that_are_no_npz_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", noise(4, 9, 8, 3))
    os.mkfifo(tmp_path / "pipe.npz")
    for name, words in (("x.npy", "not a zip file"), ("pipe.npz", "there is none"), ("none.npz", "there is none")):
        with pytest.raises(InputError, match=words):
            open_data(f"npz:{tmp_path / name}")


# --- folders


def test_folders_are_classes_in_the_order_of_their_names(by_class: Path) -> None:
    opened = open_data(f"imagefolder:{by_class}", corrupt="none", size=16)
    assert opened.classes == 3
    np.testing.assert_array_equal(load_all(opened, CLEAN)[1], [0, 1, 1, 2])
    with pytest.raises(InputError, match=r"one size, 40×32.*received 40×31 in .*1\.PNG\. Try: --size"):
        open_data(f"imagefolder:{by_class}")
    assert open_data(f"imagefolder:{by_class}", limit=1).load(CLEAN, 0, 1)[0].shape == (1, 32, 40, 3)


def test_classes_txt_sets_the_order(by_class: Path) -> None:
    (by_class / "classes.txt").write_text("bird\nc_owl\nb_cat\na_dog\n\n")
    opened = open_data(f"imagefolder:{by_class}", corrupt="none", size=16)
    assert opened.classes == 4
    np.testing.assert_array_equal(load_all(opened, CLEAN)[1], [3, 2, 2, 1])
    for lines, words in (("c_owl\nb_cat", "missing: a_dog"), ("a\nb\na", "received a, a, b"), ("", "each once")):
        (by_class / "classes.txt").write_text(lines)
        with pytest.raises(InputError, match=words):
            open_data(f"imagefolder:{by_class}")


def test_a_size_that_is_no_square_is_covered(tmp_path: Path) -> None:
    """64×64 just covers 32×64: nothing is resized, and the middle is cropped."""
    image = noise(64, 64, 3)
    write_image(tmp_path / "class" / "x.png", image)
    images, _ = open_data(f"imagefolder:{tmp_path}", size=(16, 32), crop=0.5).load(CLEAN, 0, 1)
    np.testing.assert_array_equal(images[0], image[24:40, 16:48])


def test_a_list_of_labels(tmp_path: Path) -> None:
    for seed, name in enumerate(("b.png", "a.png")):
        write_image(tmp_path / "images" / name, noise(8, 8, 3, seed=seed))
    with pytest.raises(InputError, match=r"Expected labels\.json beside the folder images"):
        open_data(f"imagefolder:{tmp_path}")
    (tmp_path / "labels.json").write_text('{"b.png": 7, "a.png": 999}')
    images, labels = load_all(open_data(f"imagefolder:{tmp_path}", corrupt="none"), CLEAN)
    np.testing.assert_array_equal(labels, [999, 7])
    np.testing.assert_array_equal(images, [noise(8, 8, 3, seed=1), noise(8, 8, 3, seed=0)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a.png": 1}', r"in one of them only: b\.png"),
        ('{"a.png": 1, "b.png": 2, "c.png": 3}', r"in one of them only: c\.png"),
        ('{"a.png": 1, "b.png": -2}', "received b.png: -2"),
        ('{"a.png": 1, "b.png": 1.5}', "received b.png: 1.5"),
        ('{"a.png": true, "b.png": 1}', "received a.png: True"),
        ("[1, 2]", "no dictionary"),
        ("{", "not JSON"),
    ],
)
def test_wrong_lists_of_labels_are_refused(tmp_path: Path, text: str, words: str) -> None:
    for name in ("a.png", "b.png"):
        write_image(tmp_path / "images" / name, noise(8, 8, 3))
    (tmp_path / "labels.json").write_text(text)
    with pytest.raises(InputError, match=words):
        open_data(f"imagefolder:{tmp_path}")


@pytest.mark.parametrize("size", [None, 8])
@pytest.mark.parametrize("length", [0, 200])
def test_an_unreadable_image_is_named(tmp_path: Path, length: int, size: int | None) -> None:
    write_image(tmp_path / "class" / "good.png", noise(16, 16, 3))
    whole = (tmp_path / "class" / "good.png").read_bytes()
    (tmp_path / "class" / "torn.png").write_bytes(whole[:length])
    with pytest.raises(InputError, match=r"torn\.png; (it cannot be read.*remove it|received something else)"):
        open_data(f"imagefolder:{tmp_path}", size=size).load(CLEAN, 0, 2)


# --- ImageNet-C


def test_imagenet_c_by_kind_severity_and_class(imagenet_c: Path) -> None:
    """The published images are cropped already."""
    opened = open_data(f"imagenet-c:{imagenet_c}", corrupt="fog,shot_noise", size=16, crop=0.5)
    assert (opened.classes, len(opened)) == (5, 3)
    for condition, place in (("fog", "fog/5"), ("shot_noise", "noise/shot_noise/5")):
        images, labels = load_all(opened, Condition(condition, 5))
        np.testing.assert_array_equal(labels, [3, 1, 1])
        np.testing.assert_array_equal(images, [noise(16, 16, 3, seed=seed + len(place)) for seed in (2, 0, 1)])


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
        (lambda folder: (folder / "fog/5/n02/y.png").unlink(), r"same images.*in one of them only: n02/y\.png"),
        (lambda folder: (folder / "fog/5").rename(folder / "fog/4"), "fog.5; received nothing.*<severity>"),
        (lambda folder: (folder / "fog").rename(folder / "mist"), "missing: fog. Try: --corrupt shot_noise"),
        (lambda folder: (folder / "classes.txt").write_text("n02"), "missing: n01"),
        (lambda folder: write_image(folder / "fog/5/n01/z.png", noise(9, 9, 3)), "one size, 16×16; received 9×9"),
    ],
)
def test_a_wrong_imagenet_c_is_refused(imagenet_c: Path, change: Break, words: str) -> None:
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
def test_label_maps_take_the_nearest_pixel_and_nothing_is_cropped(
    scenes: Path, size: int | tuple[int, int], shape: tuple[int, int]
) -> None:
    images, maps = load_all(open_data(f"segmentation:{scenes}", corrupt="none", size=size), CLEAN)
    assert images.shape == (3, *shape, 3)
    rows, columns = ((np.arange(new) + 0.5) * old / new for new, old in zip(shape, (12, 16), strict=True))
    whole = np.stack([noise(12, 16, seed=seed) % 5 for seed in range(3)])
    np.testing.assert_array_equal(maps, whole[:, rows.astype(int)][:, :, columns.astype(int)])
    # The whole photograph is there: its mean is kept.
    np.testing.assert_allclose(images[0].mean(), noise(12, 16, 3, seed=0).mean(), atol=6)


def gray_png(bits: int) -> bytes:
    """A PNG of 16×12 pixels with few bits each, which Pillow reads but does not write."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    rows = 12 * (b"\0" + bytes(16 * bits // 8))
    head = struct.pack(">IIBBBBB", 16, 12, bits, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "labels/b.png").unlink(), "received 3 and 2, in one of them only: b"),
        (lambda folder: (folder / "images/b.png").unlink(), "received 2 and 3, in one of them only: b"),
        (lambda folder: write_image(folder / "labels/b.png", noise(12, 15)), "b.png at .* 16×12; received 15×12"),
        (lambda folder: write_image(folder / "labels/b.png", noise(12, 16, 3)), "one label per pixel in .*mode RGB"),
        (lambda folder: (folder / "labels/b.png").write_bytes(gray_png(4)), "8 or 16 bits .*fewer"),
        (lambda folder: (folder / "labels/b.png").write_bytes(b"torn"), r"b\.png; received something else"),
        (lambda folder: write_image(folder / "images/b.jpg", noise(12, 16, 3)), "differ before the ending"),
        (lambda folder: (folder / "labels").rename(folder / "maps"), "labels; received nothing there. The layout is"),
    ],
)
def test_wrong_label_maps_are_refused(scenes: Path, change: Break, words: str) -> None:
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


# --- arguments


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"corrupt": "clean,fogg"}, "received 'fogg' in 'clean,fogg'. Did you mean 'fog'"),
        ({"corrupt": "all,fog"}, "received 'all' in 'all,fog'"),
        ({"corrupt": ""}, "received ''"),
        ({"severities": (5, 6)}, r"from 1 to 5; received \(5, 6\)"),
        ({"severities": (2.5,)}, "received .2.5"),
        ({"severities": ()}, "from 1 to 5"),
        ({"limit": 0}, "at least 1 image; received 0"),
        ({"crop": 1.2}, r"in \(0, 1\]; received 1.2"),
        ({"ignore": 255}, "for segmentation only; received 255 for npz"),
    ],
)
def test_arguments_out_of_range_are_refused(npz: Path, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        open_data(f"npz:{npz}", **arguments)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("cifar-10c:x", "cifar10c:FOLDER.*imagenet-c:.*camvid:.*Received 'cifar-10c:x'. Did you mean 'cifar10c'"),
        ("npz:", "Received 'npz:'"),
        ("cifar10c:nowhere", "a folder nowhere; received nothing there. The layout is .*labels.npy"),
        ("imagenet-c:nowhere", "a folder nowhere.*<corruption>/<severity>/<class>"),
        ("imagefolder:nowhere", "a folder nowhere.*<class>/<image>"),
        ("segmentation:nowhere", "a folder nowhere/images.*labels/<name>.png"),
        ("camvid:nowhere", "a folder nowhere/test.*testannot"),
        ("imagefolder:.", "at least one image in .; received none"),
    ],
)
def test_missing_data_are_named_with_the_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=words):
        open_data(spec)


def test_only_what_was_opened_is_loaded(npz: Path) -> None:
    opened = open_data(f"npz:{npz}", corrupt="fog")
    fog = Condition("fog", 5)
    for condition, start, stop in ((CLEAN, 0, 1), (fog, 7, 8), (fog, -1, 2), (fog, 3, 3)):
        with pytest.raises(InputError, match=f"fog/5 and positions from 0 to 7; received {condition}, {start} to"):
            opened.load(condition, start, stop)
    assert len(opened.load(fog, 5, 100)[0]) == 2


# --- digests


def test_a_digest_follows_the_content_alone(npz: Path, tmp_path: Path) -> None:
    digest = open_data(f"npz:{npz}").digest()
    (tmp_path / "elsewhere").mkdir()
    moved = npz.rename(tmp_path / "elsewhere" / npz.name)
    assert open_data(f"npz:{moved}", corrupt="fog").digest() == digest
    assert len({digest, *(open_data(f"npz:{moved}", **other).digest() for other in ({"limit": 3}, {"size": 9}))}) == 3


@pytest.mark.parametrize(
    ("kind", "maker", "change"),
    [
        ("imagefolder", "by_class", lambda folder: write_image(folder / "a_dog" / "3.bmp", noise(32, 40, 3, seed=8))),
        ("imagefolder", "by_class", lambda folder: (folder / "a_dog").rename(folder / "d_dog")),
        ("imagefolder", "by_class", lambda folder: (folder / "classes.txt").write_text("b_cat\na_dog\nc_owl")),
        ("cifar10c", "small_cifar", lambda folder: np.save(folder / "labels.npy", np.zeros(15, int))),
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
