from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import image as pictures

import sita_adapters as sita
from sita_workbench.demo import demo, digits_torch, figure
from sita_workbench.demo.demo import DemoResult, run_demo
from sita_workbench.demo.digits import encode, load_digits
from sita_workbench.demo.digits_corruptions import CORRUPTIONS, Corruption
from sita_workbench.files import write_atomically
from sita_workbench.models.digits import load_digits_model


@pytest.fixture(scope="module")
def result() -> DemoResult:
    """A short run."""
    return run_demo(load_digits_model("digits"), 30)


def test_no_digit_is_both_trained_and_tested_on() -> None:
    train, test = load_digits()
    assert (len(train), len(test)) == (1000, 597)
    assert not {image.tobytes() for image in train.images} & {image.tobytes() for image in test.images}
    assert (train.images.dtype, train.images.min(), train.images.max()) == (np.float32, 0.0, 1.0)


@pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda c: c.name)
def test_a_corrupted_image_is_an_image_that_depends_on_its_index_alone(corruption: Corruption) -> None:
    images = load_digits()[0].images[:64]
    before = images.copy()
    corrupted = corruption.apply_all(images)
    np.testing.assert_array_equal(images, before)
    assert (corrupted.shape, corrupted.dtype) == (images.shape, np.float32)
    assert 0.0 <= corrupted.min() <= corrupted.max() <= 1.0
    assert all(np.abs(corrupted - images).max(axis=(1, 2)) > 0.05)
    np.testing.assert_array_equal(corrupted[7], corruption.apply(images[7], 7))
    random = corruption.name in ("gaussian noise", "salt & pepper", "motion blur", "fog", "rain")
    assert np.array_equal(corrupted[7], corruption.apply(images[7], 8)) != random


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError])
def test_an_interrupted_file_leaves_what_was_there(tmp_path: Path, interruption: type[BaseException]) -> None:
    path = tmp_path / "picture.png"
    path.write_text("old")
    with contextlib.suppress(interruption), write_atomically(path) as temporary:
        temporary.write_text("half of the n")
        raise interruption
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_replaced_file_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    with write_atomically(tmp_path / "ours") as temporary:
        temporary.touch()
    (tmp_path / "any").touch()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "any").stat().st_mode


def test_the_result_has_every_answer_and_the_default_is_better_than_source(result: DemoResult) -> None:
    assert result.conditions == ("clean", *(corruption.name for corruption in CORRUPTIONS))
    assert result.answers.shape == (11, len(demo.SHOWN), 30)
    assert [demo.row_count(recipe) for recipe in demo.SHOWN] == [1, 1, 1, 2, 3, 22]
    assert (result.seconds > 0).all()
    assert result.accuracies[0].min() >= 90.0
    assert 50.0 < result.mean("source") < result.mean("bn") - 4.0 < result.mean("auto") - 4.0
    assert result.mean("auto") + 3.0 < min(result.mean("calibrated"), result.mean("restore"))
    assert result.mean("ops") - 3.0 < min(result.mean("calibrated"), result.mean("restore"))


@pytest.mark.parametrize("recipe", ["source", "auto"])
def test_answers_are_those_of_single_images(result: DemoResult, recipe: str) -> None:
    network = digits_torch.load()
    model = network if recipe == "source" else sita.adapt(network)
    for condition, index in ((0, 0), (0, 1), (3, 0), (3, 1), (3, 2)):
        x = torch.from_numpy(encode(result.images[condition, index : index + 1])).movedim(-1, 1)
        with torch.inference_mode():
            label = model(x)[0].argmax()
        assert label == result.answers[condition, demo.SHOWN.index(recipe), index]


def test_means_leave_clean_digits_out_and_examples_are_of_different_corruptions_first() -> None:
    source = [[1, 1, 1], [1, 0, 0], [1, 0, 1]]
    auto = [[1, 1, 1], [0, 1, 1], [1, 1, 0]]
    images, answers = np.zeros((3, 3, 32, 32), np.float32), np.stack([source, auto], axis=1)
    made = DemoResult(("clean", "fog", "rain"), ("source", "auto"), images, np.ones(3), answers, np.ones(2), "PyTorch")
    np.testing.assert_allclose(made.accuracies, [[100, 100], [100 / 3, 200 / 3], [200 / 3, 200 / 3]])
    np.testing.assert_allclose([made.mean("source"), made.mean("auto")], [50, 200 / 3])
    counts = {name: int(which.sum()) for name, which in made.outcomes().items()}
    assert counts == {"only auto right": 3, "only source right": 2, "both right": 1, "both wrong": 0}
    assert figure.pick_examples(made, "only auto right", 3) == [(1, 1), (2, 1), (1, 2)]
    assert figure.pick_examples(made, "only source right", 5) == [(1, 0), (2, 2)]
    assert figure.pick_examples(made, "both wrong", 2) == []


def test_the_picture_has_every_result(result: DemoResult, tmp_path: Path) -> None:
    texts = " ".join(text.get_text() for axes in figure.draw(result).axes for text in axes.texts)
    expected = [f"{outcome}: {which.sum():,}" for outcome, which in result.outcomes().items()]
    assert all(text in texts for text in [*expected, *(f"{mean:.1f}" for mean in result.means)])
    path = tmp_path / "picture.png"
    figure.save(result, path)
    assert list(tmp_path.iterdir()) == [path]
    pixels = pictures.imread(path)
    assert pixels.shape[:2] == (1022, 1540)
    assert pixels[..., :3].std() > 0.1
