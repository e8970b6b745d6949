"""The data of a benchmark: what is read, what is refused, and with which message."""

from __future__ import annotations

import os
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from sita_adapters.errors import InputError
from sita_workbench.corruptions import KINDS, corrupt
from sita_workbench.data.dataset import CLEAN, Condition, Dataset, Selection
from sita_workbench.data.opening import open_data


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


def make_data(kind: str, folder: Path) -> str:
    """Write a small set of this kind, and return how it is opened."""
    if kind == "cifar10c":
        for seed, name in enumerate(("fog", "shot_noise")):
            np.save(folder / f"{name}.npy", noise(15, 32, 32, 3, seed=seed))
        np.save(folder / "labels.npy", np.tile([3, 1, 2], 5))
    elif kind == "npz":
        np.savez(folder / "clean.npz", images=noise(7, 20, 24, 3), labels=np.arange(7, dtype=np.uint8))
        return f"npz:{folder / 'clean.npz'}"
    elif kind == "imagefolder":
        for number, name in enumerate(("b_cat/2.png", "b_cat/1.PNG", "a_dog/3.bmp", "c_owl/1.png")):
            write_image(folder / name, noise(30 + number, 40, 3, seed=number))
        (folder / "c_owl" / "._1.png").write_bytes(b"what another system left")
        (folder / "c_owl" / "notes.txt").write_text("no image")
    elif kind == "listed":
        for seed, name in enumerate("ba"):
            write_image(folder / "images" / f"{name}.png", noise(8, 8, 3, seed=seed))
        (folder / "labels.json").write_text('{"b.png": 7, "a.png": 999}')
        return f"imagefolder:{folder}"
    elif kind == "imagenet-c":  # two classes of five; one kind is in a family's folder
        for place in ("fog/5", "fog/1", "noise/shot_noise/5"):
            for seed, name in enumerate(("n02/x.png", "n02/y.png", "n01/z.png")):
                write_image(folder / place / name, noise(16, 16, 3, seed=seed + len(place)))
        (folder / "classes.txt").write_text("n00\nn02\nn03\nn01\nn04\n")
    elif kind == "segmentation":
        for seed, name in enumerate("abc"):
            write_image(folder / "images" / f"{name}.png", noise(12, 16, 3, seed=seed))
            write_image(folder / "labels" / f"{name}.png", noise(12, 16, seed=seed) % 5)
    return f"{kind}:{folder}"


@pytest.fixture
def npz(tmp_path: Path) -> str:
    return make_data("npz", tmp_path)


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ("none", ["clean"]),
        ("all", ["clean", *(f"{kind}/{severity}" for kind in KINDS for severity in (2, 5))]),
        ("snow, clean,fog,snow", ["snow/2", "snow/5", "clean", "fog/2", "fog/5"]),
    ],
)
def test_conditions_of_clean_data(npz: str, chosen: str, expected: list[str]) -> None:
    assert list(map(str, open_data(npz, corrupt=chosen, severities=[2, 5]).conditions)) == expected


@given(count=st.integers(1, 60_000), limit=st.integers(1, 60_000))
def test_selected_images_are_spread_evenly(count: int, limit: int) -> None:
    indices = Selection(limit=limit).indices(count)
    steps = np.diff(np.append(indices, count))
    assert len(steps) == min(count, limit)
    assert 1 <= steps.min() <= steps.max() <= steps.min() + 1
    if 2 * limit <= count:
        assert set(indices) <= set(Selection(limit=2 * limit).indices(count))


@pytest.mark.parametrize("limit", [None, 1, 2, 100])
def test_cifar_blocks_are_severities(tmp_path: Path, limit: int | None) -> None:
    spec = make_data("cifar10c", tmp_path)
    opened = open_data(spec, corrupt="shot_noise,fog", severities=(5, 1, 3), limit=limit)
    assert (opened.task, opened.classes, opened.ignore) == ("classification", 10, None)
    selected = Selection(limit=limit).indices(3)
    for condition in opened.conditions:
        images, labels = load_all(opened, condition)
        blocks = np.load(tmp_path / f"{condition.corruption}.npy").reshape(5, 3, 32, 32, 3)
        np.testing.assert_array_equal(images, blocks[condition.severity - 1, selected])
        np.testing.assert_array_equal(labels, np.array([3, 1, 2])[selected])


def test_arrays_are_resized_whole(tmp_path: Path) -> None:
    spec = make_data("cifar10c", tmp_path)
    images, _ = load_all(open_data(spec, corrupt="fog", size=48, crop=0.5), Condition("fog", 5))
    expected = Image.fromarray(noise(15, 32, 32, 3)[13]).resize((48, 48), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(images[1], np.asarray(expected))


@pytest.mark.parametrize("names", [("images", "labels"), ("x_test", "y_test"), ("x", "y")])
def test_npz_by_its_usual_names(tmp_path: Path, names: tuple[str, str]) -> None:
    images, labels = noise(4, 9, 8, 3), np.array([[4], [0], [300], [1]])
    np.savez_compressed(tmp_path / "C:some.npz", **dict(zip(names, (images, labels), strict=True)))
    loaded = load_all(open_data(f"npz:{tmp_path / 'C:some.npz'}", corrupt="none"), CLEAN)
    np.testing.assert_array_equal(loaded[0], images)
    np.testing.assert_array_equal(loaded[1], labels[:, 0])


@pytest.mark.parametrize(("limit", "size"), [(None, None), (3, None), (3, (30, 80))])
def test_corruptions_depend_on_the_position_and_the_size(npz: str, limit: int | None, size: tuple[int, int]) -> None:
    opened = open_data(npz, corrupt="clean,shot_noise,fog,pixelate", severities=(1, 4), limit=limit, size=size)
    clean, positions = load_all(opened, CLEAN)
    np.testing.assert_array_equal(positions, (0, 2, 4) if limit else range(7))
    assert clean.shape[1:3] == (size or (20, 24))
    for condition in opened.conditions[1:]:
        made = [
            corrupt(image, condition.corruption, condition.severity, index=int(position))
            for image, position in zip(clean, positions, strict=True)
        ]
        np.testing.assert_array_equal(load_all(opened, condition)[0], made)


def test_an_npz_is_checked_before_it_is_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "x.npz", images=np.zeros((100, 64, 64, 3), np.uint8), labels=np.zeros(100, int))
    monkeypatch.setattr("sita_workbench.data.arrays.memory_size", lambda: 2_000_000)
    monkeypatch.setattr(np.lib.format, "read_array", lambda *_, **__: pytest.fail("decompressed"))
    with pytest.raises(InputError, match="half of the memory"):
        open_data(f"npz:{tmp_path / 'x.npz'}")


def test_folders_are_classes_in_the_order_of_their_names(tmp_path: Path) -> None:
    spec = make_data("imagefolder", tmp_path)
    opened = open_data(spec, corrupt="none", size=16)
    assert opened.classes == 3
    np.testing.assert_array_equal(load_all(opened, CLEAN)[1], [0, 1, 1, 2])
    named = open_data(spec, corrupt="none", size=16, names=("c_owl", "cow", "a_dog", "b_cat"))
    assert (named.classes, load_all(named, CLEAN)[1].tolist()) == (4, [2, 3, 3, 0])
    assert open_data(spec, limit=1).load(CLEAN, 0, 1)[0].shape == (1, 32, 40, 3)
    (tmp_path / "classes.txt").write_text("bird\nc_owl\nb_cat\na_dog\n\n")
    opened = open_data(spec, corrupt="none", size=16)
    assert opened.classes == 4
    np.testing.assert_array_equal(load_all(opened, CLEAN)[1], [3, 2, 2, 1])


def test_a_size_that_is_no_square_is_covered(tmp_path: Path) -> None:
    """64×64 just covers 32×64: nothing is resized, and the middle is cropped."""
    image = noise(64, 64, 3)
    write_image(tmp_path / "class" / "x.png", image)
    images, _ = open_data(f"imagefolder:{tmp_path}", size=(16, 32), crop=0.5).load(CLEAN, 0, 1)
    np.testing.assert_array_equal(images[0], image[24:40, 16:48])


def test_a_list_of_labels(tmp_path: Path) -> None:
    spec = make_data("listed", tmp_path)
    images, labels = load_all(open_data(spec, corrupt="none"), CLEAN)
    np.testing.assert_array_equal(labels, [999, 7])
    np.testing.assert_array_equal(images, [noise(8, 8, 3, seed=1), noise(8, 8, 3, seed=0)])
    (tmp_path / "labels.json").unlink()
    with pytest.raises(InputError, match=r"Expected labels\.json next to the folder images"):
        open_data(spec)


@pytest.mark.parametrize("size", [None, 8])
@pytest.mark.parametrize("length", [0, 200])
def test_an_unreadable_image_is_named(tmp_path: Path, length: int, size: int | None) -> None:
    write_image(tmp_path / "class" / "good.png", noise(16, 16, 3))
    (tmp_path / "class" / "torn.png").write_bytes((tmp_path / "class" / "good.png").read_bytes()[:length])
    with pytest.raises(InputError, match=r"torn\.png; (it cannot be read.*remove it|received something else)"):
        open_data(f"imagefolder:{tmp_path}", size=size).load(CLEAN, 0, 2)


def test_imagenet_c_by_kind_severity_and_class(tmp_path: Path) -> None:
    """The published images are cropped already."""
    opened = open_data(make_data("imagenet-c", tmp_path), corrupt="fog,shot_noise", size=16, crop=0.5)
    assert (opened.classes, len(opened)) == (5, 3)
    for condition, place in (("fog", "fog/5"), ("shot_noise", "noise/shot_noise/5")):
        images, labels = load_all(opened, Condition(condition, 5))
        np.testing.assert_array_equal(labels, [3, 1, 1])
        np.testing.assert_array_equal(images, [noise(16, 16, 3, seed=seed + len(place)) for seed in (2, 0, 1)])


def test_photographs_and_label_maps_of_one_name(tmp_path: Path) -> None:
    opened = open_data(make_data("segmentation", tmp_path), corrupt="clean,frost", ignore=4)
    assert (opened.task, opened.classes, opened.ignore) == ("segmentation", None, 4)
    photographs = np.stack([noise(12, 16, 3, seed=seed) for seed in range(3)])
    np.testing.assert_array_equal(load_all(opened, CLEAN)[0], photographs)
    frosted, labels = load_all(opened, Condition("frost", 5))
    np.testing.assert_array_equal(labels, [noise(12, 16, seed=seed) % 5 for seed in range(3)])
    np.testing.assert_array_equal(frosted, [corrupt(one, "frost", 5, index=i) for i, one in enumerate(photographs)])


def test_palette_and_deep_label_maps_keep_their_numbers(tmp_path: Path) -> None:
    spec = make_data("segmentation", tmp_path)
    labels = noise(12, 16) % 20
    palette = Image.fromarray(labels).convert("P")
    palette.putpalette(noise(768).tolist())
    palette.save(tmp_path / "labels" / "a.png")
    Image.fromarray(labels.astype(np.uint16) * 100).save(tmp_path / "labels" / "b.png")
    _, maps = load_all(open_data(spec, corrupt="none"), CLEAN)
    np.testing.assert_array_equal(maps[0], labels)
    np.testing.assert_array_equal(maps[1], labels.astype(int) * 100)


@pytest.mark.parametrize("shape", [(6, 8), (32, 32)])
def test_label_maps_take_the_nearest_pixel_and_nothing_is_cropped(tmp_path: Path, shape: tuple[int, int]) -> None:
    images, maps = load_all(open_data(make_data("segmentation", tmp_path), corrupt="none", size=shape), CLEAN)
    rows, columns = ((np.arange(new) + 0.5) * old / new for new, old in zip(shape, (12, 16), strict=True))
    whole = np.stack([noise(12, 16, seed=seed) % 5 for seed in range(3)])
    np.testing.assert_array_equal(maps, whole[:, rows.astype(int)][:, :, columns.astype(int)])
    expected = Image.fromarray(noise(12, 16, 3)).resize(shape[::-1], Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(images[0], np.asarray(expected))


def test_camvid_has_eleven_classes_and_void(tmp_path: Path) -> None:
    write_image(tmp_path / "test" / "a.png", noise(12, 16, 3))
    write_image(tmp_path / "testannot" / "a.png", np.full((12, 16), 11, np.uint8))
    opened = open_data(f"camvid:{tmp_path}", corrupt="none")
    assert (opened.classes, opened.ignore, len(opened)) == (11, 11, 1)
    assert np.all(opened.load(CLEAN, 0, 1)[1] == 11)
    write_image(tmp_path / "testannot" / "a.png", np.full((12, 16), 12, np.uint8))
    with pytest.raises(InputError, match=r"from 0 to 10, or 11 .*a\.png; received 12"):
        opened.load(CLEAN, 0, 1)


# A PNG of 16×12 gray pixels with 4 bits each, which Pillow reads but does not write.
FEW_BITS = b64decode("iVBORw0KGgoAAAANSUhEUgAAABAAAAAMBAAAAACLfI9cAAAADElEQVR4nGNgoB8AAABsAAHQVUU4AAAAAElFTkSuQmCC")
FOUR = np.zeros(4, int)


def change_file(folder: Path, name: str, content: Any) -> None:
    """Write bytes, an array, the arrays of an npz or an image; a function replaces the file; None removes it."""
    path = folder / name
    if content is None:
        path.rename(folder / "removed")
    elif callable(content):
        path.unlink()
        content(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif isinstance(content, dict):
        np.savez(path, **content)
    elif name.endswith(".npy"):
        np.save(path, content)
    else:
        write_image(path, content)


@pytest.mark.parametrize(
    ("kind", "name", "content", "words"),
    [
        ("cifar10c", "fog.npy", noise(14, 32, 32, 3), r"\(15, 32, 32, 3\) in .*received \(14, 32, 32, 3\)"),
        ("cifar10c", "fog.npy", noise(15, 3, 32, 32), r"\(15, 3, 32, 32\).*transpose\(0, 2, 3, 1"),
        ("cifar10c", "fog.npy", noise(15, 32, 32, 3) / 255, r"float64.*values in \[0, 1\].*round"),
        ("cifar10c", "fog.npy", np.array([None]), r"fog\.npy; it cannot be read"),
        ("cifar10c", "fog.npy", b"no array", r"fog\.npy; it cannot be read"),
        ("cifar10c", "fog.npy", None, r"missing: fog\. Try: --corrupt shot_noise"),
        ("cifar10c", "labels.npy", np.zeros(14, int), "received 14 in blocks that differ"),
        ("cifar10c", "labels.npy", np.arange(15) % 10, "same labels for all five"),
        ("cifar10c", "labels.npy", np.full(15, 10), "from 0 to 9.*received 10 to 10"),
        ("cifar10c", "labels.npy", np.zeros(15), r"integer dtype.*float64.*astype\(np\.int64\)"),
        ("cifar10c", "labels.npy", np.zeros((15, 10), int), r"\(15, 10\).*argmax"),
        ("npz", "clean.npz", {"images": noise(4, 9, 8, 3), "labels": FOUR[:3]}, "every image.*3 for 4 images"),
        ("npz", "clean.npz", {"pictures": noise(4, 9, 8, 3)}, "images, labels or x_test, y_test.*received pictures"),
        ("npz", "clean.npz", {"x": noise(4, 9, 8), "y": FOUR}, r"\(4, 9, 8\).*`np\.repeat"),
        ("npz", "clean.npz", {"x": noise(0, 9, 8, 3), "y": FOUR[:0]}, "at least one; received"),
        ("npz", "clean.npz", {"x": noise(4, 9, 8, 3), "y": FOUR - 3}, "at least 0.*received -3 to -3"),
        ("npz", "clean.npz", {"x": noise(1, 9, 8, 3), "y": np.array([None])}, "it holds Python objects.*np.stack"),
        ("npz", "clean.npz", b"no array", r"clean\.npz; it cannot be read: File is not a zip file"),
        ("npz", "clean.npz", None, r"clean\.npz; there is none"),
        ("npz", "clean.npz", os.mkfifo, "there is none"),
        ("imagefolder", "notes.txt", b"", r"one size, 40×32.*received 40×31 in .*1\.PNG\. Try: --size"),
        ("imagefolder", "classes.txt", b"c_owl\nb_cat", "missing: a_dog"),
        ("imagefolder", "classes.txt", b"a\nb\na", "received a, a, b"),
        ("imagefolder", "classes.txt", b"", "each once"),
        ("listed", "labels.json", b'{"a.png": 1}', r"in one of them only: b\.png"),
        ("listed", "labels.json", b'{"a.png": 1, "b.png": 2, "c.png": 3}', r"in one of them only: c\.png"),
        ("listed", "labels.json", b'{"a.png": 1, "b.png": -2}', "received b.png: -2"),
        ("listed", "labels.json", b'{"a.png": 1, "b.png": 1.5}', "received b.png: 1.5"),
        ("listed", "labels.json", b'{"a.png": true, "b.png": 1}', "received a.png: True"),
        ("listed", "labels.json", b"3", "no dictionary"),
        ("listed", "labels.json", b"{", "not JSON"),
        ("imagenet-c", "classes.txt", b"n02", "missing: n01"),
        ("imagenet-c", "fog/5/n02/y.png", None, r"same images.*in one of them only: n02/y\.png"),
        ("imagenet-c", "fog/5", None, "fog.5; received nothing.*<severity>"),
        ("imagenet-c", "fog", None, "missing: fog. Try: --corrupt shot_noise"),
        ("imagenet-c", "fog/5/n01/z.png", noise(9, 9, 3), "one size, 16×16; received 9×9"),
        ("segmentation", "labels/b.png", None, "received 3 and 2, in one of them only: b"),
        ("segmentation", "labels/b.png", noise(12, 15), "b.png at .* 16×12; received 15×12"),
        ("segmentation", "labels/b.png", noise(12, 16, 3), "one label per pixel in .*mode RGB"),
        ("segmentation", "labels/b.png", FEW_BITS, "8 or 16 bits .*fewer"),
        ("segmentation", "images/b.jpg", noise(12, 16, 3), "differ before the extension"),
        ("segmentation", "labels", None, "labels; received nothing there. The layout is"),
    ],
)
def test_wrong_data_are_refused(tmp_path: Path, kind: str, name: str, content: Any, words: str) -> None:
    spec = make_data(kind, tmp_path)
    change_file(tmp_path, name, content)
    with pytest.raises(InputError, match=words):
        open_data(spec, corrupt="shot_noise,fog")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"corrupt": "clean,fogg"}, "received 'fogg' in 'clean,fogg'. Did you mean 'fog'"),
        ({"corrupt": ""}, "received ''"),
        ({"severities": (5, 6)}, r"from 1 to 5; received \(5, 6\)"),
        ({"severities": (2.5,)}, "received .2.5"),
        ({"limit": 0}, "at least 1 image; received 0"),
        ({"crop": 1.2}, r"in \(0, 1\]; received 1.2"),
        ({"ignore": 255}, "for segmentation only; received 255 for npz"),
        ({"spec": "cifar-10c:x"}, "imagenet-c:.*camvid:.*Received 'cifar-10c:x'. Did you mean 'cifar10c'"),
        ({"spec": "cifar10c:nowhere"}, "a folder nowhere; received nothing there. The layout is .*labels.npy"),
        ({"spec": "imagefolder:."}, "at least one image in .; received none"),
        ({"spec": "segmentation:nowhere"}, "a folder nowhere/images.*labels/<name>.png"),
    ],
)
def test_wrong_arguments_are_refused(
    npz: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=words):
        open_data(**{"spec": npz, **arguments})


def test_only_what_was_opened_is_loaded(npz: str) -> None:
    opened, fog = open_data(npz, corrupt="fog"), Condition("fog", 5)
    for condition, start, stop in ((CLEAN, 0, 1), (fog, 7, 8), (fog, -1, 2), (fog, 3, 3)):
        with pytest.raises(InputError, match=f"fog/5 and positions from 0 to 7; received {condition}, {start} to"):
            opened.load(condition, start, stop)
    assert len(opened.load(fog, 5, 100)[0]) == 2


def test_a_digest_follows_the_content_alone(npz: str, tmp_path: Path) -> None:
    digest = open_data(npz).digest()
    (tmp_path / "elsewhere").mkdir()
    moved = f"npz:{(tmp_path / 'clean.npz').rename(tmp_path / 'elsewhere' / 'clean.npz')}"
    assert open_data(moved, corrupt="fog").digest() == digest
    assert len({digest, open_data(moved, limit=3).digest(), open_data(moved, size=9).digest()}) == 3


@pytest.mark.parametrize(
    ("kind", "name", "content"),
    [
        ("imagefolder", "a_dog/3.bmp", noise(32, 40, 3, seed=8)),
        ("imagefolder", "a_dog", None),
        ("imagefolder", "classes.txt", b"b_cat\na_dog\nc_owl"),
        ("cifar10c", "labels.npy", np.zeros(15, int)),
        ("cifar10c", "fog.npy", noise(15, 32, 32, 3, seed=8)),
        ("imagenet-c", "fog/5/n01/z.png", noise(16, 16, 3, seed=99)),
        ("segmentation", "labels/c.png", noise(12, 16, seed=8)),
    ],
)
def test_a_digest_notices_a_change(tmp_path: Path, kind: str, name: str, content: Any) -> None:
    spec = make_data(kind, tmp_path)
    digests = [open_data(spec, corrupt="fog", size=16).digest() for _ in range(2)]
    change_file(tmp_path, name, content)
    assert digests[0] == digests[1] != open_data(spec, corrupt="fog", size=16).digest()
