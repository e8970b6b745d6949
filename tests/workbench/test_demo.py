from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import image as pictures

import sita_adapters as sita
from sita_adapters.errors import InputError
from sita_workbench.demo import demo, digits_torch, figure
from sita_workbench.demo.demo import DemoResult, run_demo
from sita_workbench.demo.digits import Digits, first, load_digits
from sita_workbench.demo.digits_corruptions import CORRUPTIONS, Corruption
from sita_workbench.files import write_atomically

each_corruption = pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda c: c.name)


@pytest.fixture(scope="module")
def digits() -> tuple[Digits, Digits]:
    return load_digits()


@pytest.fixture(scope="module")
def some(digits: tuple[Digits, Digits]) -> Digits:
    return first(digits[0], 128)


@pytest.fixture(scope="module")
def result() -> DemoResult:
    """A short run."""
    return run_demo(images=30)


def test_no_digit_is_both_trained_and_tested_on(digits: tuple[Digits, Digits]) -> None:
    train, test = digits
    assert (len(train), len(test)) == (1000, 597)
    assert not {image.tobytes() for image in train.images} & {image.tobytes() for image in test.images}
    assert train.images.dtype == np.float32
    assert (train.images.min(), train.images.max()) == (0.0, 1.0)


@pytest.mark.parametrize("count", [-1, 0, 598])
def test_a_number_of_images_that_does_not_exist_is_refused(digits: tuple[Digits, Digits], count: int) -> None:
    with pytest.raises(InputError, match=f"from 1 to 597.*received {count}"):
        first(digits[1], count)


@each_corruption
def test_a_corrupted_image_is_an_image(corruption: Corruption, some: Digits) -> None:
    before = some.images.copy()
    corrupted = corruption.apply_all(some.images)
    np.testing.assert_array_equal(some.images, before)
    assert corrupted.shape == some.images.shape
    assert corrupted.dtype == np.float32
    assert corrupted.min() >= 0.0
    assert corrupted.max() <= 1.0
    assert all(np.abs(corrupted - some.images).max(axis=(1, 2)) > 0.05)


@each_corruption
def test_corruption_depends_on_seed_and_index_alone(corruption: Corruption, some: Digits) -> None:
    together = corruption.apply_all(some.images, seed=5)
    np.testing.assert_array_equal(together[7], corruption.apply(some.images[7], index=7, seed=5))
    np.testing.assert_array_equal(together[:9], corruption.apply_all(some.images[:9], seed=5))


@pytest.mark.parametrize("name", ["gaussian noise", "salt & pepper", "motion blur", "fog", "rain"])
def test_what_is_random_differs_by_image_and_seed(name: str, some: Digits) -> None:
    corruption = next(c for c in CORRUPTIONS if c.name == name)
    image = some.images[0]
    one = corruption.apply(image, index=0, seed=0)
    assert not np.array_equal(one, corruption.apply(image, index=1, seed=0))
    assert not np.array_equal(one, corruption.apply(image, index=0, seed=1))


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, OSError])
def test_an_interrupted_file_leaves_what_was_there(tmp_path: Path, interruption: type[BaseException]) -> None:
    path = tmp_path / "picture.png"
    path.write_text("old")

    def write() -> None:
        with write_atomically(path) as temporary:
            temporary.write_text("half of the n")
            raise interruption

    with pytest.raises(interruption):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_replaced_file_has_the_rights_of_any_new_file(tmp_path: Path) -> None:
    with write_atomically(tmp_path / "ours") as temporary:
        temporary.touch()
    (tmp_path / "any").touch()
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "any").stat().st_mode


def test_the_default_reads_corrupted_digits_better_than_one_row_and_source(result: DemoResult) -> None:
    assert result.accuracies[0].min() >= 90.0
    assert 50.0 < result.mean("source") < result.mean("bn") - 2.0 < result.mean("auto") - 4.0
    assert result.mean("auto3") > result.mean("ops") - 3.0


def test_answers_are_those_of_the_source_and_of_the_adapted_model_on_single_images(result: DemoResult) -> None:
    network = digits_torch.load()
    for recipe, model in {"source": network, "auto": sita.adapt(network)}.items():
        place = result.recipes.index(recipe)
        for condition in (0, 3):
            for index in range(5):
                with torch.inference_mode():
                    scores = model(digits_torch.encode(result.images[condition, index : index + 1]))[0]
                assert scores.argmax() == result.answers[condition, place, index]


def test_the_result_has_every_answer(result: DemoResult) -> None:
    conditions = ("clean", *(corruption.name for corruption in CORRUPTIONS))
    assert len(CORRUPTIONS) >= 8
    assert result.conditions == conditions
    assert result.answers.shape == (len(conditions), len(demo.SHOWN), 30)
    assert [demo.row_count(recipe) for recipe in demo.SHOWN] == [1, 1, 2, 3, 22]
    assert (result.seconds > 0).all()


def test_means_leave_the_clean_digits_out() -> None:
    answers = np.array([[[1, 1], [0, 0]], [[0, 1], [1, 1]], [[0, 0], [1, 0]]])
    made = _result(("clean", "fog", "rain"), ("source", "auto"), answers, labels=np.array([1, 1]))
    np.testing.assert_array_equal(made.accuracies, [[100, 0], [50, 100], [0, 50]])
    assert (made.mean("source"), made.mean("auto")) == (25.0, 75.0)


def test_examples_are_of_their_outcome_and_of_different_corruptions_first() -> None:
    source = [[1, 1, 1], [1, 0, 0], [1, 0, 1]]
    auto = [[1, 1, 1], [0, 1, 1], [1, 1, 0]]
    answers = np.stack([source, auto], axis=1)
    made = _result(("clean", "fog", "rain"), ("source", "auto"), answers, labels=np.ones(3))
    assert {name: int(which.sum()) for name, which in made.outcomes().items()} == {
        "only auto right": 3,
        "only source right": 2,
        "both right": 1,
        "both wrong": 0,
    }
    assert figure.pick_examples(made, "only auto right", 3) == [(1, 1), (2, 1), (1, 2)]
    assert figure.pick_examples(made, "only source right", 5) == [(1, 0), (2, 2)]
    assert figure.pick_examples(made, "both wrong", 2) == []


def test_the_picture_has_the_count_of_every_outcome(result: DemoResult) -> None:
    texts = " ".join(text.get_text() for axes in figure.draw(result).axes for text in axes.texts)
    for outcome, which in result.outcomes().items():
        assert f"{outcome}: {which.sum():,}" in texts
    for recipe in demo.SHOWN:
        assert f"{result.mean(recipe):.1f}" in texts


@pytest.mark.parametrize("suffix", [".png", *(pytest.param(s, marks=pytest.mark.slow) for s in (".pdf", ".svg"))])
def test_the_picture_is_written_in_the_format_of_its_name(result: DemoResult, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"picture{suffix}"
    figure.save(result, path)
    assert list(tmp_path.iterdir()) == [path]
    if suffix == ".png":
        pixels = pictures.imread(path)
        assert pixels.shape[0] > 500
        assert pixels.shape[1] > 1000
        assert pixels[..., :3].std() > 0.1
    else:
        assert path.read_bytes().startswith({".pdf": b"%PDF", ".svg": b"<?xml"}[suffix])


def test_the_recipes_shown_exist() -> None:
    assert set(demo.SHOWN) <= set(sita.RECIPES)


def _result(
    conditions: tuple[str, ...], recipes: tuple[str, ...], answers: np.ndarray, labels: np.ndarray
) -> DemoResult:
    images = np.zeros((len(conditions), len(labels), 32, 32), dtype=np.float32)
    return DemoResult(conditions, recipes, images, labels, answers, np.ones(len(recipes)), "PyTorch")
