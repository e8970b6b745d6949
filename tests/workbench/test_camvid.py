from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import sita_adapters as sita
from sita_adapters.errors import InputError
from sita_workbench.networks import camvid
from sita_workbench.networks.camvid import CLASSES, PALETTE, VOID, class_ious, count_confusions, mean_iou
from sita_workbench.networks.camvid_torch import (
    RoadNet,
    Training,
    class_weights,
    draw_windows,
    load,
    predict,
    save,
    train,
    trained_network,
    weights_path,
)

WIDTHS = (4, 6, 8, 12)
QUICK = Training(widths=WIDTHS, epochs=2, batch_size=2, crop=(48, 32))


class Listener:
    """Keeps what a run says and how many steps it counts."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.steps = 0

    def say(self, message: str) -> None:
        self.said.append(message)

    @contextlib.contextmanager
    def track(self, description: str, total: int) -> Iterator[Callable[[], None]]:
        def advance() -> None:
            self.steps += 1

        yield advance
        assert self.steps == total


def write_pair(data: Path, split: str, name: str, seed: int, size: tuple[int, int] = (64, 48)) -> None:
    """Sky above, road below, a stripe of void between, and noise on all of them."""
    random = np.random.default_rng(seed)
    labels = np.zeros(size[::-1], np.uint8)
    horizon = int(random.integers(size[1] // 4, size[1] // 2))
    labels[horizon:] = VOID
    labels[horizon + 4 :] = CLASSES.index("road")
    image = np.clip(PALETTE[labels] + random.normal(0, 20, (*labels.shape, 3)), 0, 255).astype(np.uint8)
    for folder, pixels, ending in ((split, image, "jpg"), (f"{split}annot", labels, "png")):
        (data / "camvid" / folder).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(data / "camvid" / folder / f"{name}.{ending}")


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """A folder as CamVid's: three pictures to train on, the validation pictures, and two to test on."""
    for index in range(3 + camvid.VALIDATION_COUNT):
        write_pair(tmp_path, "train", f"{index:03}", index)
    for index in range(2):
        write_pair(tmp_path, "test", f"t{index}", 1000 + index)
    return tmp_path


@pytest.fixture
def pictures(made_up: Path) -> tuple[np.ndarray, np.ndarray]:
    return camvid.load_split(made_up, "train", size=None)


@pytest.fixture
def network() -> RoadNet:
    """Statistics of its layers are not those of a new layer, which are the identity."""
    network = RoadNet(WIDTHS)
    network.train()(torch.randn(4, 3, 48, 64))
    return network.eval()


# --- the pictures


def test_the_last_training_pictures_are_for_validation(made_up: Path) -> None:
    names = {
        split: [image.stem for image, _ in camvid.find_pairs(made_up, split)]
        for split in ("train", "validation", "test")
    }
    assert names["train"] == ["000", "001", "002"]
    assert names["validation"] == [f"{index:03}" for index in range(3, 70)]
    assert names["test"] == ["t0", "t1"]


def test_a_pair_has_one_name(made_up: Path) -> None:
    assert all(image.stem == labels.stem for image, labels in camvid.find_pairs(made_up, "train"))


def test_pictures_come_at_the_size_asked_for(made_up: Path) -> None:
    images, labels = camvid.load_split(made_up, "test", size=(32, 20))
    assert images.shape == (2, 20, 32, 3)
    assert labels.shape == (2, 20, 32)
    assert images.dtype == labels.dtype == np.uint8


def test_resizing_averages_pixels_and_picks_labels(made_up: Path) -> None:
    images, labels = camvid.load_split(made_up, "test", size=None)
    small_images, small_labels = camvid.load_split(made_up, "test", size=(32, 24))
    assert set(np.unique(small_labels)) <= set(np.unique(labels))
    # Row and column 2i or 2i + 1 is as near to i: either will do.
    near = [labels[:, y::2, x::2] for y in (0, 1) for x in (0, 1)]
    assert np.any([small_labels == candidate for candidate in near], axis=0).all()
    sky, small_sky = images[:, :12], small_images[:, :6]
    assert small_sky.std() < 0.8 * sky.std()


def test_a_box_is_cut_out() -> None:
    image = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    labels = np.arange(24, dtype=np.uint8).reshape(4, 6)
    cut, cut_labels = camvid.resize(image, labels, (3, 2), box=(1, 2, 4, 4))
    np.testing.assert_array_equal(cut, image[2:4, 1:4])
    np.testing.assert_array_equal(cut_labels, labels[2:4, 1:4])


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"camvid.train; there is none\. DATA is the folder"):
        camvid.load_split(tmp_path, "train")


def test_an_unmatched_photograph_is_named(made_up: Path) -> None:
    (made_up / "camvid" / "testannot" / "t1.png").unlink()
    with pytest.raises(InputError, match="1 without the other: t1"):
        camvid.find_pairs(made_up, "test")


def test_too_few_pictures_to_hold_some_out(tmp_path: Path) -> None:
    write_pair(tmp_path, "train", "only", 0)
    with pytest.raises(InputError, match=r"more than 67 pairs in camvid/train.*received 1"):
        camvid.find_pairs(tmp_path, "train")


def test_no_pairs_are_no_split() -> None:
    with pytest.raises(InputError, match="at least one pair"):
        camvid.load_pairs([])


@pytest.mark.parametrize(
    ("spoilt", "message"),
    [
        (np.full((48, 64), VOID + 1, np.uint8), "labels from 0 to 11.*received 12"),
        (np.zeros((24, 32), np.uint8), r"photograph's size, \(64, 48\); received \(32, 24\)"),
        (np.zeros((48, 64, 3), np.uint8), "mode RGB"),
    ],
    ids=["label", "size", "colours"],
)
def test_a_map_that_does_not_fit_is_named(made_up: Path, spoilt: np.ndarray, message: str) -> None:
    Image.fromarray(spoilt).save(made_up / "camvid" / "testannot" / "t1.png")
    with pytest.raises(InputError, match=message) as caught:
        camvid.load_split(made_up, "test")
    assert "t1.png" in str(caught.value)


def test_sizes_that_differ_need_one_to_be_chosen(made_up: Path) -> None:
    write_pair(made_up, "test", "t2", 7, size=(40, 30))
    with pytest.raises(InputError, match="Pass `size`"):
        camvid.load_split(made_up, "test", size=None)
    assert len(camvid.load_split(made_up, "test")[0]) == 3


def test_encoding_is_imagenets() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 3), dtype=np.uint8)
    expected = (images / 255.0 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    x = camvid.encode(images)
    assert x.dtype == torch.float32
    np.testing.assert_allclose(x.permute(0, 2, 3, 1).numpy(), expected, rtol=0, atol=1e-6)


def test_every_label_has_a_colour_of_its_own() -> None:
    assert len({tuple(colour) for colour in PALETTE.tolist()}) == len(CLASSES) + 1 == VOID + 1


# --- the score


@pytest.fixture
def maps() -> tuple[np.ndarray, np.ndarray]:
    """Predictions that are right more often than not, and labels without a class 4."""
    random = np.random.default_rng(3)
    labels = random.integers(0, VOID + 1, (5, 12, 16)).astype(np.uint8)
    labels[labels == 4] = VOID
    guesses = random.integers(0, VOID, labels.shape)
    right = (random.random(labels.shape) < 0.6) & (labels != VOID)
    return np.where(right, labels, np.where(guesses == 4, 5, guesses)).astype(np.uint8), labels


def test_iou_is_intersection_over_union_of_pixel_sets(maps: tuple[np.ndarray, np.ndarray]) -> None:
    predictions, labels = maps
    expected = []
    for label in set(range(VOID)) - {4}:
        truth = {tuple(p) for p in np.argwhere(labels == label).tolist()}
        found = {tuple(p) for p in np.argwhere((predictions == label) & (labels != VOID)).tolist()}
        expected.append(len(truth & found) / len(truth | found))
    assert mean_iou(predictions, labels) == pytest.approx(np.mean(expected), abs=1e-12)
    ious = class_ious(count_confusions(predictions, labels).sum(0))
    np.testing.assert_allclose(np.delete(ious, 4), expected, rtol=0, atol=1e-12)
    assert np.isnan(ious[4])


def test_confusions_are_counted_image_by_image(maps: tuple[np.ndarray, np.ndarray]) -> None:
    predictions, labels = maps
    confusions = count_confusions(predictions, labels)
    assert confusions.shape == (5, VOID, VOID)
    assert confusions[2, 3, 7] == ((labels[2] == 3) & (predictions[2] == 7)).sum()
    again = [0, 0, 3]
    resampled = count_confusions(predictions[again], labels[again]).sum(0)
    np.testing.assert_array_equal(confusions[again].sum(0), resampled)
    assert confusions.sum() == (labels != VOID).sum()


def test_what_void_is_taken_for_does_not_count(maps: tuple[np.ndarray, np.ndarray]) -> None:
    predictions, labels = maps
    other = np.where(labels == VOID, 0, predictions)
    assert mean_iou(predictions, labels) == mean_iou(other, labels)


def test_the_labels_themselves_score_one() -> None:
    labels = np.arange(VOID, dtype=np.uint8).reshape(1, 1, VOID)
    assert mean_iou(labels, labels) == 1.0


@pytest.mark.parametrize(
    ("predictions", "message"),
    [(np.zeros((1, 4, 5), np.uint8), "one shape"), (np.full((1, 4, 4), VOID), "from 0 to 10; received 11")],
    ids=["shape", "void predicted"],
)
def test_predictions_that_cannot_be_scored(predictions: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        mean_iou(predictions, np.zeros((1, 4, 4), np.uint8))


# --- the network and its training


@pytest.mark.parametrize("size", [(48, 64), (180, 240), (37, 51), (1, 1)])
def test_logits_come_at_the_images_size(network: RoadNet, size: tuple[int, int]) -> None:
    with torch.inference_mode():
        assert network(torch.randn(2, 3, *size)).shape == (2, len(CLASSES), *size)


def test_every_convolution_but_the_last_has_a_batchnorm() -> None:
    network = RoadNet(Training().widths)
    kinds = [type(module) for module in network.modules()]
    assert kinds.count(nn.Conv2d) == kinds.count(nn.BatchNorm2d) + 1
    assert 500_000 < sum(parameter.numel() for parameter in network.parameters()) < 1_500_000


def test_it_is_adapted_pixel_by_pixel(network: RoadNet) -> None:
    image = torch.randn(1, 3, 40, 56)
    with torch.inference_mode():
        adapted = sita.adapt(network, "augbn")(image)
        assert adapted.shape == (1, len(CLASSES), 40, 56)
        assert not torch.allclose(adapted, network(image), atol=1e-3)


def test_training_is_repeatable(pictures: tuple[np.ndarray, np.ndarray]) -> None:
    state, again, other = (train(*pictures, replace(QUICK, seed=seed), lambda: None).state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(state[name], again[name]) for name in state)
    assert not torch.equal(state["head.weight"], other["head.weight"])


def test_training_leaves_the_callers_random_numbers_alone(pictures: tuple[np.ndarray, np.ndarray]) -> None:
    before = torch.random.get_rng_state()
    train(*pictures, QUICK, lambda: None)
    assert torch.equal(before, torch.random.get_rng_state())


def test_training_learns(pictures: tuple[np.ndarray, np.ndarray]) -> None:
    images, labels = pictures
    before, after = (train(images, labels, replace(QUICK, epochs=e, learning_rate=0.02), lambda: None) for e in (1, 40))
    assert mean_iou(predict(after, images), labels) > max(0.8, mean_iou(predict(before, images), labels))


def test_windows_of_photograph_and_labels_are_the_same() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, len(CLASSES), (16, 6, 8)).astype(np.uint8).repeat(16, 1).repeat(16, 2)
    x, y = draw_windows(PALETTE[labels], labels, QUICK, random)
    assert x.shape == (16, 3, 32, 48)
    assert y.shape == (16, 32, 48)
    distances = torch.stack(
        [(x - colour.view(3, 1, 1)).norm(dim=1) for colour in camvid.encode(PALETTE[None, None])[0, :, 0].T]
    )
    # Where blocks meet, colours mix.
    assert (distances.argmin(0) == y).float().mean() > 0.75
    at_random = (distances.argmin(0).roll(1, 0) == y).float().mean()
    assert at_random < 0.25


def test_classes_weigh_by_the_root_of_their_rarity() -> None:
    labels = np.array([0] * 100 + [1] * 25 + [2] * 4 + [VOID] * 1000, np.uint8)
    np.testing.assert_allclose(class_weights(labels), [0.5, 1.0, 2.5, *[0.0] * 8])


def test_predictions_are_the_likeliest_classes(network: RoadNet, pictures: tuple[np.ndarray, np.ndarray]) -> None:
    images, _ = pictures
    with torch.inference_mode():
        expected = network(camvid.encode(images)).argmax(1)
    np.testing.assert_array_equal(predict(network, images), expected.numpy())


def test_a_trained_network_is_found_again(made_up: Path, tmp_path: Path) -> None:
    pairs, folder = camvid.find_pairs(made_up, "train"), tmp_path / "weights"
    first, second = Listener(), Listener()
    network = trained_network(pairs, QUICK, folder, first)
    found = trained_network(pairs, QUICK, folder, second)
    assert (first.steps, second.steps) == (QUICK.epochs, 0)
    assert [path.name for path in folder.iterdir()] == [weights_path(folder, pairs, QUICK).name]
    assert not found.training
    assert all(torch.equal(tensor, found.state_dict()[name]) for name, tensor in network.state_dict().items())


def test_other_settings_or_pictures_have_a_file_of_their_own(made_up: Path) -> None:
    pairs = camvid.find_pairs(made_up, "train")
    path = weights_path(made_up, pairs, QUICK)
    assert weights_path(made_up, pairs, replace(QUICK, seed=1)) != path
    assert weights_path(made_up, pairs[:2], QUICK) != path
    write_pair(made_up, "train", "001", seed=99)
    assert weights_path(made_up, pairs, QUICK) != path


def test_a_spoilt_file_is_trained_anew(made_up: Path, tmp_path: Path) -> None:
    pairs, listener = camvid.find_pairs(made_up, "train"), Listener()
    path = weights_path(tmp_path, pairs, QUICK)
    path.write_bytes(b"not weights")
    trained_network(pairs, QUICK, tmp_path, listener)
    assert "trained anew" in listener.said[0]
    load(path, QUICK)


def test_weights_of_another_network_are_refused(network: RoadNet, tmp_path: Path) -> None:
    save(network, tmp_path / "some.safetensors")
    with pytest.raises(ValueError, match="does not hold the network's weights"):
        load(tmp_path / "some.safetensors", Training())


# --- the real pictures


@pytest.mark.real
def test_real_pairs_load(data: Path) -> None:
    splits = {split: camvid.find_pairs(data, split) for split in ("train", "validation", "test")}
    assert [len(pairs) for pairs in splits.values()] == [300, 67, 117]
    images, labels = camvid.load_pairs(splits["test"][:2])
    assert images.shape == (2, 180, 240, 3)
    assert labels.shape == (2, 180, 240)
    assert labels.max() <= VOID
    # A class is what it is called: sky is at the top and brighter than the road, which is at the bottom.
    assert (labels[:, 0] == CLASSES.index("sky")).mean() > (labels[:, -1] == CLASSES.index("sky")).mean()
    assert (labels[:, -1] == CLASSES.index("road")).mean() > 0.3
    assert images[labels == CLASSES.index("sky")].mean() > images[labels == CLASSES.index("road")].mean()
