from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib import image as pictures

import sita_adapters as sita
from sita_adapters.errors import InputError
from sita_workbench.demo import demo, digits_torch, figure
from sita_workbench.demo.demo import DemoResult, Training, run_demo, trained_network
from sita_workbench.demo.digits import Digits, first, load_digits
from sita_workbench.demo.digits_corruptions import CORRUPTIONS, Corruption
from sita_workbench.files import write_atomically
from sita_workbench.progress import NoProgress

each_corruption = pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda c: c.name)
QUICK = Training(epochs=1)


class Listener:
    """Records the messages and steps of a run."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.steps: dict[str, int] = {}

    def say(self, message: str) -> None:
        self.said.append(message)

    @contextlib.contextmanager
    def track(self, description: str, total: int) -> Iterator[Callable[[], None]]:
        self.steps[description] = 0

        def advance() -> None:
            self.steps[description] += 1

        yield advance
        assert self.steps[description] == total


@pytest.fixture(scope="module")
def digits() -> tuple[Digits, Digits]:
    return load_digits()


@pytest.fixture(scope="module")
def some(digits: tuple[Digits, Digits]) -> Digits:
    return first(digits[0], 128)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "sita-adapters"


@pytest.fixture(scope="module")
def listener() -> Listener:
    return Listener()


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory, listener: Listener) -> Iterator[DemoResult]:
    """A short run, with a network that is trained for one epoch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(demo, "Training", lambda seed: QUICK)
        yield run_demo(images=3, progress=listener)


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


def test_pytorch_training_is_reproducible_and_leaves_the_random_state_alone(some: Digits) -> None:
    state = torch.random.get_rng_state()
    weights = [digits_torch.train(some, QUICK, lambda: None).state_dict() for _ in range(2)]
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name


def test_the_network_is_trained_once_and_then_loaded_from_the_cache(cache: Path, some: Digits) -> None:
    trained = trained_network(digits_torch, some, QUICK, NoProgress())
    listener = Listener()
    cached = trained_network(digits_torch, some, QUICK, listener)
    assert not listener.steps
    assert "from the cache" in listener.said[0]
    for name, tensor in trained.state_dict().items():
        assert torch.equal(tensor, cached.state_dict()[name]), name
    assert not cached.training
    (path,) = cache.iterdir()
    assert path.name.startswith("digits-torch-")


def test_another_training_or_other_digits_are_another_network(cache: Path, some: Digits) -> None:
    trained_network(digits_torch, some, QUICK, NoProgress())
    trained_network(digits_torch, some, Training(epochs=1, seed=1), NoProgress())
    trained_network(digits_torch, first(some, 127), QUICK, NoProgress())
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("damage", ["half", "other weights"])
def test_a_damaged_cache_is_trained_again(cache: Path, some: Digits, damage: str) -> None:
    trained_network(digits_torch, some, QUICK, NoProgress())
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    if damage == "other weights":
        digits_torch.save(digits_torch.DigitResNet((4, 8)), path)
    else:
        path.write_bytes(whole[: len(whole) // 2])
    listener = Listener()
    trained_network(digits_torch, some, QUICK, listener)
    assert "trained again" in listener.said[0]
    assert listener.steps == {"Training on clean digits": 1}
    assert path.read_bytes() == whole


def test_a_cache_that_cannot_be_written_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, some: Digits
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    listener = Listener()
    trained_network(digits_torch, some, QUICK, listener)
    assert "could not be cached" in listener.said[-1]


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


@pytest.mark.slow
def test_the_default_reads_corrupted_digits_better_than_source(cache: Path) -> None:
    result = run_demo(images=20)
    assert result.mean("auto") > result.mean("source") + 4.0
    assert result.accuracies[0, 0] >= 90.0
    assert 35.0 < result.mean("source") < 85.0


def test_the_result_has_every_answer(result: DemoResult, listener: Listener) -> None:
    conditions = ("clean", *(corruption.name for corruption in CORRUPTIONS))
    assert len(CORRUPTIONS) >= 8
    assert result.conditions == conditions
    assert result.recipes == ("source", "bn", "augbn", "auto", "ops")
    assert result.answers.shape == (len(conditions), 5, 3)
    assert result.seconds.shape == (5,)
    assert listener.steps["One digit at a time"] == 3 * len(conditions)


def test_answers_are_those_of_the_adapted_model_on_a_batch(result: DemoResult) -> None:
    with digits_torch.one_thread(), torch.inference_mode():
        network = trained_network(digits_torch, load_digits()[0], QUICK, NoProgress())
        adapted = sita.adapt(network, "augbn")
        together = adapted(digits_torch.encode(result.images[3])).argmax(dim=1).numpy()
    np.testing.assert_array_equal(result.answers[3, result.recipes.index("augbn")], together)


def test_means_leave_the_clean_digits_out() -> None:
    answers = np.array([[[1, 1], [0, 0]], [[0, 1], [1, 1]], [[0, 0], [1, 0]]])
    made = _result(("clean", "fog", "rain"), ("source", "auto"), answers, labels=np.array([1, 1]))
    np.testing.assert_array_equal(made.accuracies, [[100, 0], [50, 100], [0, 50]])
    assert (made.mean("source"), made.mean("auto")) == (25.0, 75.0)


def test_examples_are_the_first_digits_on_which_source_and_auto_differ() -> None:
    answers = np.array([[[1, 1, 1], [1, 1, 1]], [[1, 0, 0], [1, 1, 1]], [[1, 0, 0], [1, 1, 1]]])
    made = _result(("clean", "fog", "rain"), ("source", "auto"), answers, labels=np.ones(3))
    assert figure.pick_examples(made) == [0, 1, 2]


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


def test_means_half_a_point_apart_are_drawn_as_different_numbers() -> None:
    """71.5 and 72.5 are both 72 to Python, which rounds halves to even."""
    answers = np.ones((2, len(demo.SHOWN), 200))
    for recipe, right in enumerate((143, 145, 100, 110, 120)):
        answers[1, recipe, :right] = 0
    bars = figure.draw(_result(("clean", "fog"), demo.SHOWN, answers, labels=np.zeros(200))).axes[0]
    assert [text.get_text() for text in bars.texts[:5]] == ["71.5", "72.5", "50.0", "55.0", "60.0"]
