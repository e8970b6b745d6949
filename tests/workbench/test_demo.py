from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import numpy as np
import pytest
import torch
from matplotlib import image as pictures

import sita_adapters as sita
from sita_adapters.compare import compare
from sita_workbench.demo import demo, digits_keras, digits_torch, figure
from sita_workbench.demo.demo import DemoResult, Framework, Training, run_demo, trained_network
from sita_workbench.demo.digits import Digits, first, load_digits
from sita_workbench.demo.digits_corruptions import CORRUPTIONS, Corruption
from sita_workbench.files import write_atomically
from sita_workbench.progress import NoProgress

each_corruption = pytest.mark.parametrize("corruption", CORRUPTIONS, ids=lambda c: c.name)
each_framework = pytest.mark.parametrize("framework", [digits_torch, digits_keras], ids=lambda f: f.NAME)
QUICK = Training(epochs=1)


class Listener:
    """Keeps what a run says and how many steps it counts."""

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
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield run_demo(images=20, progress=listener)


def test_no_digit_is_both_trained_and_tested_on(digits: tuple[Digits, Digits]) -> None:
    train, test = digits
    assert (len(train), len(test)) == (1000, 597)
    assert not {image.tobytes() for image in train.images} & {image.tobytes() for image in test.images}
    assert train.images.dtype == np.float32
    assert (train.images.min(), train.images.max()) == (0.0, 1.0)


@pytest.mark.parametrize("count", [-1, 0, 598])
def test_a_number_of_images_that_does_not_exist_is_refused(digits: tuple[Digits, Digits], count: int) -> None:
    with pytest.raises(sita.InputError, match=f"from 1 to 597.*received {count}"):
        first(digits[1], count)


@each_corruption
def test_a_corrupted_image_is_an_image(corruption: Corruption, some: Digits) -> None:
    corrupted = corruption.apply_all(some.images)
    assert corrupted.shape == some.images.shape
    assert corrupted.dtype == np.float32
    assert corrupted.min() >= 0.0
    assert corrupted.max() <= 1.0
    assert all(np.abs(corrupted - some.images).max(axis=(1, 2)) > 0.05)


@each_corruption
def test_corruption_leaves_the_original_alone(corruption: Corruption, some: Digits) -> None:
    image = some.images[0].copy()
    corruption.apply(image, index=0)
    np.testing.assert_array_equal(image, some.images[0])


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


@each_framework
def test_the_network_is_trained_once_and_then_taken_from_the_cache(
    cache: Path, some: Digits, framework: Framework[Any]
) -> None:
    trained = trained_network(framework, some, QUICK, NoProgress())
    listener = Listener()
    cached = trained_network(framework, some, QUICK, listener)
    assert not listener.steps
    assert "from the cache" in listener.said[0]
    for ours, theirs in zip(_weights(trained), _weights(cached), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    if framework is digits_torch:
        assert not cached.training
    (path,) = cache.iterdir()
    assert path.suffix == ".safetensors"
    assert f"-{framework.NAME}-" in path.name


def _weights(network: Any) -> list[np.ndarray]:
    if isinstance(network, torch.nn.Module) and hasattr(network, "stem"):
        return [tensor.numpy() for tensor in network.state_dict().values()]
    return network.get_weights()


def test_another_training_or_other_digits_are_another_network(cache: Path, some: Digits) -> None:
    trained_network(digits_torch, some, QUICK, NoProgress())
    trained_network(digits_torch, some, Training(epochs=1, seed=1), NoProgress())
    trained_network(digits_torch, first(some, 127), QUICK, NoProgress())
    assert len(list(cache.iterdir())) == 3


@pytest.mark.parametrize("spoil", ["garbage", "half", "empty", "other weights"])
def test_a_spoilt_cache_is_trained_again_and_says_so(cache: Path, some: Digits, spoil: str) -> None:
    trained_network(digits_torch, some, QUICK, NoProgress())
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    if spoil == "other weights":
        digits_torch.save(digits_torch.DigitResNet((4, 8)), path)
    else:
        path.write_bytes({"garbage": b"no tensors here", "half": whole[: len(whole) // 2], "empty": b""}[spoil])
    listener = Listener()
    trained_network(digits_torch, some, QUICK, listener)
    assert "trained again" in listener.said[0]
    assert listener.steps == {"Training on clean digits": 1}
    assert path.read_bytes() == whole


@pytest.mark.parametrize("content", [b"no tensors here", b""])
def test_keras_refuses_a_file_without_its_weights(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="does not hold the network's weights"):
        digits_keras.load(path, QUICK)


def test_keras_refuses_the_weights_of_another_network(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    digits_keras.save(digits_keras.build((4, 8)), path)
    with pytest.raises(ValueError, match="names or shapes differ"):
        digits_keras.load(path, QUICK)
    digits_keras.load(path, Training(widths=(4, 8)))


def test_the_learning_rate_is_that_of_pytorch() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], 0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=31, cycle_momentum=False)
    for step, rate in enumerate(digits_keras.one_cycle(0.1, 31)):
        assert rate == pytest.approx(schedule.get_last_lr()[0]), step
        optimizer.step()
        if step < 30:
            schedule.step()


def test_keras_and_pytorch_have_the_same_network(some: Digits) -> None:
    network = digits_torch.train(some, QUICK, lambda: None)
    twin = digits_keras.build(QUICK.widths)
    for variable in twin.weights:
        variable.assign(_torch_tensor(network, variable.path).numpy())
    compared = compare({"torch": network, "keras": twin}, digits_keras.encode(some.images[:8]), "ops")
    assert compared.agreements[0].same_labels == 1.0
    assert compared.agreements[0].largest_difference < 1e-5


def _torch_tensor(network: torch.nn.Module, path: str) -> torch.Tensor:
    """The tensor of PyTorch's network that a variable of Keras' corresponds to, its axes in Keras' order."""
    layer, kind = path.split("/")
    block, _, part = layer.rpartition("_")
    stage, _, place = block.partition("_")
    module = {"stem": "stem", "head": "head"}.get(stage or layer, f"stages.{stage[-1:]}")
    module += {
        ("", "conv"): ".0",
        ("", "bn"): ".1",
        ("around", "conv"): ".shortcut.0",
        ("around", "bn"): ".shortcut.1",
        ("", "head"): "",
    }.get((place, part), f".{part}{place}")
    names = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
    tensor = network.state_dict()[f"{module}.{names.get(kind, kind).replace('kernel', 'weight')}"]
    return tensor.permute(*range(2, tensor.ndim), 1, 0) if tensor.ndim > 1 else tensor


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


def test_ops_reads_corrupted_digits_better_than_source(result: DemoResult) -> None:
    assert result.mean("ops") > result.mean("source") + 4.0
    assert result.accuracies[0, 0] >= 90.0
    assert 35.0 < result.mean("source") < 85.0


def test_the_result_has_every_answer(result: DemoResult, listener: Listener) -> None:
    conditions = ("clean", *(corruption.name for corruption in CORRUPTIONS))
    assert len(CORRUPTIONS) >= 8
    assert result.conditions == conditions
    assert result.recipes == ("source", "bn", "augbn", "ops", "ops_shared")
    assert result.answers.shape == (len(conditions), 5, 20)
    assert result.seconds.shape == (5,)
    assert listener.steps["One digit at a time"] == 20 * len(conditions)


def test_answers_are_those_of_the_adapted_model_on_a_batch(result: DemoResult) -> None:
    with digits_torch.one_thread(), torch.inference_mode():
        network = trained_network(digits_torch, load_digits()[0], Training(), NoProgress())
        adapted = sita.adapt(network, "augbn")
        together = adapted(digits_torch.encode(result.images[3])).argmax(dim=1).numpy()
    np.testing.assert_array_equal(result.answers[3, result.recipes.index("augbn")], together)


@pytest.mark.parametrize("name", ["torch", "keras"])
def test_a_framework_is_found_by_name(name: Any) -> None:
    assert demo.load_framework(name) is {"torch": digits_torch, "keras": digits_keras}[name]


def test_means_leave_the_clean_digits_out() -> None:
    answers = np.array([[[1, 1], [0, 0]], [[0, 1], [1, 1]], [[0, 0], [1, 0]]])
    made = _result(("clean", "fog", "rain"), ("source", "ops"), answers, labels=np.array([1, 1]))
    np.testing.assert_array_equal(made.accuracies, [[100, 0], [50, 100], [0, 50]])
    assert (made.mean("source"), made.mean("ops")) == (25.0, 75.0)


def test_examples_are_the_first_digits_on_which_source_and_ops_differ() -> None:
    answers = np.array([[[1, 1, 1], [1, 1, 1]], [[1, 0, 0], [1, 1, 1]], [[1, 0, 0], [1, 1, 1]]])
    made = _result(("clean", "fog", "rain"), ("source", "ops"), answers, labels=np.ones(3))
    assert figure.pick_examples(made) == [0, 1, 2]


@pytest.mark.parametrize("suffix", figure.FORMATS)
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
