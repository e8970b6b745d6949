"""Models by name and from files: their weights, their pixel encodings, and the errors where something does not fit."""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import sita_adapters as sita
from sita_adapters.errors import InputError
from sita_workbench.models import libraries
from sita_workbench.models.loaded import LoadedModel
from sita_workbench.models.loading import load_model
from sita_workbench.networks import cifar_resnet

NAME = "cifar10-resnet20"

NET = """
from torch import nn
from neighbour import WIDTH

def build():
    return nn.Sequential(nn.Conv2d(3, WIDTH, 3), nn.BatchNorm2d(WIDTH), nn.Flatten(), nn.LazyLinear(2)).train()

def described(**wrong):
    return nn.BatchNorm2d(3), {"inputs": "caffe", "size": [20, 30], "task": "segmentation", **wrong}

def odd(): return described(input="caffe")
def wrong_crop(): return described(crop=7)
def wrong_size(): return described(size="big")
def wrong_task(): return described(task="detection")
def number(): return 3
def fails(): raise KeyError("where")
"""

SMALL_KERAS = """
import keras

def build():
    image = keras.Input((32, 32, 3))
    x = keras.layers.Flatten()(keras.layers.BatchNormalization()(keras.layers.Conv2D(2, 3)(image)))
    return keras.Model(image, keras.layers.Dense(3)(x))
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("WIDTH = 4")
    (tmp_path / "net.py").write_text(NET)
    return tmp_path / "net.py"


def save(state: Any, path: Path) -> str:
    (save_file if path.suffix == ".safetensors" else torch.save)(state, path)
    return str(path)


def test_random_weights_are_the_same_every_time_and_leave_the_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, second = (load_model("timm:test_resnet", "random") for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not first.model.training
    for one, other in zip(first.model.state_dict().values(), second.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("spec", "options", "inputs", "facts"),
    [
        ("timm:test_resnet", {}, sita.Inputs(mean=(0.5,) * 3, std=(0.5,) * 3), ((160, 160), 0.95, "classification")),
        ("timm:test_resnet", {"inputs": "byte", "size": 40}, "byte", (40, 0.95, "classification")),
        ("torchvision:shufflenet_v2_x0_5", {}, "imagenet", (224, 224 / 256, "classification")),
        ("torchvision:segmentation.lraspp_mobilenet_v3_large", {}, "imagenet", (None, 1.0, "segmentation")),
        ("camvid-roadnet", {}, "imagenet", ((180, 240), 1.0, "segmentation")),
    ],
)
def test_models_have_their_own_encoding_and_size(
    spec: str, options: dict[str, object], inputs: sita.Inputs | str, facts: tuple[object, ...]
) -> None:
    loaded = load_model(spec, "random", **options)  # type: ignore[arg-type]
    assert loaded.inputs == (sita.inputs.ENCODINGS[inputs] if isinstance(inputs, str) else inputs)
    assert (loaded.size, loaded.crop, loaded.task) == facts


@pytest.mark.parametrize("encoding", sita.inputs.ENCODINGS)
def test_pixels_are_encoded_as_the_formula_says(encoding: str) -> None:
    inputs = sita.inputs.ENCODINGS[encoding]
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 3), dtype=np.uint8)
    encoded = LoadedModel("x", None, inputs).encode(images)
    assert encoded.dtype == np.float32
    with pytest.raises(InputError, match="uint8"):
        LoadedModel("x", None, inputs).encode(encoded)
    ordered = images[..., ::-1] if inputs.order == "bgr" else images
    for channel in range(3):
        mean, std = (values[channel % len(values)] for values in (inputs.mean, inputs.std))
        expected = (ordered[..., channel].astype(float) / 255 * inputs.white - mean) / std
        np.testing.assert_allclose(encoded[..., channel], expected, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "wrap"),
    [
        ("plain.pt", lambda state: state),
        ("wrapped.pth", lambda state: {"epoch": 3, "state_dict": state}),
        ("parallel.pt", lambda state: {"state_dict": {f"module.{key}": value for key, value in state.items()}}),
        ("lightning.pth.tar", lambda state: {"state_dict": {f"model.{key}": value for key, value in state.items()}}),
        ("old.pt", lambda state: {key: value for key, value in state.items() if "num_batches" not in key}),
        ("half.pt", lambda state: {key: value.half() for key, value in state.items()}),
        ("arrays.safetensors", lambda state: state),
    ],
)
def test_weights_are_found_in_whatever_they_are_wrapped(name: str, wrap: object, tmp_path: Path) -> None:
    torch.manual_seed(9)
    model = cifar_resnet.CifarResNet(20)
    loaded = load_model(NAME, save(wrap(model.state_dict()), tmp_path / name)).model  # type: ignore[operator]
    exact = 1e-3 if name == "half.pt" else 0.0
    for key, value in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[key], value, atol=exact, rtol=exact)


def test_downloaded_imagenet_models_name_their_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    import timm

    build = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained=False, **settings: build(name, **settings))
    assert load_model("timm:test_resnet", "pretrained").names[472] == "canoe"
    assert load_model("timm:test_resnet", "random").names == ()


def test_a_model_is_made_for_the_classes_of_its_weights(tmp_path: Path) -> None:
    import timm

    path = save(timm.create_model("test_resnet", num_classes=7).state_dict(), tmp_path / "seven.pt")
    loaded = load_model("timm:test_resnet", path)
    with torch.inference_mode():
        assert loaded.model(torch.zeros(1, 3, 32, 32)).shape == (1, 7)
    hundred = load_model(NAME, save(cifar_resnet.CifarResNet(20, 100).state_dict(), tmp_path / "hundred.pt"))
    assert (hundred.model.linear.out_features, hundred.names) == (100, ())


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    """Two blocks more or fewer a stage are six in all, each of two convolutions and two BatchNorms of four."""
    path = save(cifar_resnet.CifarResNet(32).state_dict(), tmp_path / "net32.pt")
    with pytest.raises(InputError, match=r"net32.pt does not fit cifar10-resnet20: 60 weights differ \(layer1.3"):
        load_model(NAME, path)
    state = cifar_resnet.CifarResNet(20).state_dict()
    state["layer1.0.conv1.weight"] = torch.zeros(16, 16, 5, 5)
    with pytest.raises(InputError, match=r"1 weights differ \(layer1.0.conv1.weight: \(16, 16, 5, 5\) for \(16, 16, 3"):
        load_model(NAME, save(state, tmp_path / "odd.pt"))


def test_files_that_hold_no_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.pt").write_bytes(b"no tensors")
    (tmp_path / "foreign.pt").write_bytes(pickle.dumps({"layers": nn.Linear(2, 2)}, protocol=4))
    save(nn.Linear(2, 2), tmp_path / "whole.pt")
    for name in ("broken.pt", "foreign.pt", "whole.pt"):
        with pytest.raises(InputError, match=rf"{name} was not opened.*model\.state_dict\(\).*--trust"):
            load_model(NAME, str(tmp_path / name))
    with pytest.raises(InputError, match="a dict of 'epoch'"):
        load_model(NAME, save({"epoch": 3}, tmp_path / "empty.pt"))


@pytest.mark.parametrize(
    ("spec", "weights", "words"),
    [
        (NAME, None, "Try: --weights FILE"),
        (NAME, "pretrained", "no pretrained weights"),
        (NAME, "nowhere.pt", "that ends in .safetensors, .pt, .pth, .pth.tar, .bin for cifar10-resnet20; received"),
        ("resnet50", "random", "Did you mean 'timm:resnet50'"),
        ("timm:resnet50.nobodys_tag", "random", "nobodys_tag"),
        ("digits", "random", "has its own weights"),
        ("nowhere.py:build", None, "'nowhere.py' does not exist"),
        ("timm:some_net", "random", "timm:some_net needs timm. Try: pip install timm"),
    ],
)
def test_a_wrong_name_or_a_missing_library_is_refused(
    spec: str, weights: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "pip install" in words:
        monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(sita.SitaError) as caught:
        load_model(spec, weights)
    assert words in str(caught.value)


def test_a_function_in_a_file_returns_its_model(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(net.parent)
    loaded = load_model("net.py:described")
    assert loaded.inputs == sita.inputs.ENCODINGS["caffe"]
    assert (loaded.size, loaded.crop, loaded.task, loaded.weights) == ((20, 30), 1.0, "segmentation", "its own")
    bare = load_model("net.py:build")
    assert not bare.model.training
    assert (bare.inputs, bare.size, bare.crop, bare.task) == (None, None, 0.875, "classification")
    with pytest.raises(InputError, match="does not define its pixel encoding"):
        bare.encode(np.zeros((1, 4, 4, 3), np.uint8))
    assert load_model("net.py:build", inputs="unit").encode(np.zeros((1, 4, 4, 3), np.uint8)).shape == (1, 4, 4, 3)


def test_a_file_of_weights_goes_into_the_model_of_a_function(net: Path) -> None:
    state = {**nn.BatchNorm2d(3).state_dict(), "running_mean": torch.arange(3.0)}
    path = save(state, net.parent / "norm.pt")
    loaded = load_model(f"{net}:described", path)
    assert torch.equal(loaded.model.running_mean, torch.arange(3.0))
    assert loaded.weights.startswith("norm.pt sha256 ")
    with pytest.raises(InputError, match="sets its own weights"):
        load_model(f"{net}:described", "random")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (":bild", "received 'bild'. Did you mean 'build'?"),
        (":odd", "any of inputs, size, crop, task, scores; received 'inputs', 'size', 'task', 'input'"),
        (":wrong_crop", "crop: expected a share"),
        (":wrong_size", "size: expected pixels"),
        (":wrong_task", "task: expected 'classification' or"),
        (":fails", f"failed in line {len(NET.splitlines())}: KeyError: 'where'"),
        (":number", "received an object of type int"),
    ],
)
def test_a_wrong_function_is_refused(function: str, words: str, net: Path) -> None:
    with pytest.raises(sita.SitaError) as caught:
        load_model(f"{net}{function}")
    assert words in str(caught.value)
    assert str(net.parent) not in sys.path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_keras_applications(tmp_path: Path) -> None:
    """One test, since importing Keras takes seconds: encodings, sizes, files of Keras."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras

    images = np.random.default_rng(0).integers(0, 256, (1, 2, 2, 3), dtype=np.uint8)
    applications = [getattr(keras.applications, name) for name in dir(keras.applications) if name[0].isupper()]
    assert len(applications) > 30
    for application in applications:
        family = getattr(keras.applications, application.__module__.rpartition(".")[2])
        expected = family.preprocess_input(images.astype(np.float32))
        inputs = sita.inputs.ENCODINGS[libraries.keras_encoding(application)]
        np.testing.assert_allclose(LoadedModel("x", None, inputs).encode(images), expected, atol=1e-4)

    batch = np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3)).astype(np.float32)
    first, second = (load_model("keras:MobileNet", "random", size=32) for _ in range(2))
    assert (first.sides, first.inputs, first.task) == ((32, 32), sita.inputs.ENCODINGS["tf"], "classification")
    np.testing.assert_array_equal(np.asarray(first.model(batch)), np.asarray(second.model(batch)))

    (tmp_path / "small.py").write_text(SMALL_KERAS)
    spec = f"{tmp_path / 'small.py'}:build"
    small, again = (load_model(spec) for _ in range(2))
    assert (small.sides, small.inputs) == ((32, 32), None)
    assert not np.allclose(np.asarray(again.model(batch)), np.asarray(small.model(batch)))
    small.model.save(tmp_path / "small.keras")
    small.model.save_weights(tmp_path / "small.weights.h5")
    for name, file in (("keras:MobileNet", "small.keras"), (spec, "small.weights.h5")):
        loaded = load_model(name, str(tmp_path / file))
        assert loaded.sides == (32, 32)
        np.testing.assert_allclose(np.asarray(loaded.model(batch)), np.asarray(small.model(batch)), atol=1e-6)

    for name, weights, size, words in (
        ("MobilenetV3small", "random", None, "Did you mean 'keras:MobileNetV3Small'"),
        ("MobileNetV2", "random", 16, "16 × 16"),
        ("EfficientNetB0", "pretrained", 64, "for its default size only"),
    ):
        with pytest.raises(InputError, match=words):
            load_model(f"keras:{name}", weights, size=size)
