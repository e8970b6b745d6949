"""Models by name and from files: their weights, their pixel encodings, and the errors where something does not fit."""

from __future__ import annotations

import hashlib
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
from sita_adapters.errors import InputError, install
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

def described():
    return nn.BatchNorm2d(3), {"inputs": "caffe", "size": [20, 30], "crop": 1.0, "task": "segmentation"}

def segments():
    return nn.BatchNorm2d(3), {"task": "segmentation"}

def odd():
    return nn.BatchNorm2d(3), {"input": "caffe"}

def wrong_crop():
    return nn.BatchNorm2d(3), {"crop": 7}

def wrong_size():
    return nn.BatchNorm2d(3), {"size": "big"}

def wrong_task():
    return nn.BatchNorm2d(3), {"task": "detection"}

def number():
    return 3

def fails():
    raise KeyError("where")

def meets():
    raise RuntimeError("operator torchvision::nms does not exist")
"""

LINE = NET.splitlines().index('    raise KeyError("where")') + 1

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


@pytest.mark.real
def test_a_real_network_equals_that_of_its_own_loader(data: Path) -> None:
    file = data / "weights" / "cifar10_resnet20.safetensors"
    stored = np.load(data / "cifar10" / "test_1000.npz")
    loaded = load_model(NAME, str(file))
    assert (loaded.size, loaded.crop, loaded.task, loaded.names[3]) == (32, 1.0, "classification", "cat")
    assert loaded.weights == f"{file.name} sha256 {hashlib.sha256(file.read_bytes()).hexdigest()[:12]}"
    images = torch.from_numpy(loaded.encode(stored["images"])).permute(0, 3, 1, 2)
    torch.testing.assert_close(images, cifar_resnet.encode(stored["images"]))
    with torch.inference_mode():
        predicted = loaded.model(images[:200]).argmax(1).numpy()
        expected = cifar_resnet.load_cifar_resnet(20, file)(cifar_resnet.encode(stored["images"][:200])).argmax(1)
    np.testing.assert_array_equal(predicted, expected)
    assert (predicted == stored["labels"][:200]).mean() > 0.9


def test_random_weights_are_the_same_every_time_and_leave_the_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    first, second = (load_model("timm:test_resnet", "random") for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first.weights == "random"
    assert not first.model.training
    for one, other in zip(first.model.state_dict().values(), second.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("spec", "options", "inputs", "facts"),
    [
        ("timm:test_resnet", {}, sita.Inputs(mean=(0.5,) * 3, std=(0.5,) * 3), (160, 0.95, "classification")),
        ("timm:test_resnet", {"inputs": "byte", "size": 40}, "byte", (40, 0.95, "classification")),
        ("torchvision:shufflenet_v2_x0_5", {}, "imagenet", (224, 224 / 256, "classification")),
        ("torchvision:segmentation.lraspp_mobilenet_v3_large", {}, "imagenet", (None, 1.0, "segmentation")),
        ("cifar10-mobilenet", {}, "imagenet", (32, 1.0, "classification")),
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
    for index in np.ndindex(images.shape):
        *where, channel = index
        byte = int(images[(*where, 2 - channel if inputs.order == "bgr" else channel)])
        mean, std = (values[channel % len(values)] for values in (inputs.mean, inputs.std))
        assert encoded[index] == pytest.approx((byte / 255 * inputs.white - mean) / std, abs=1e-4)


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


def test_a_model_is_made_for_the_classes_of_its_weights(tmp_path: Path) -> None:
    import timm

    path = save(timm.create_model("test_resnet", num_classes=7).state_dict(), tmp_path / "seven.pt")
    loaded = load_model("timm:test_resnet", path)
    with torch.inference_mode():
        assert loaded.model(torch.zeros(1, 3, 32, 32)).shape == (1, 7)
    hundred = save(cifar_resnet.CifarResNet(20, 100).state_dict(), tmp_path / "hundred.pt")
    assert load_model(NAME, hundred).model.linear.out_features == 100
    assert load_model(NAME, hundred).names == ()


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
        with pytest.raises(InputError, match=rf"{name} was not opened.*model\.state_dict\(\).*--trust") as caught:
            load_model(NAME, str(tmp_path / name))
        assert "weights_only" not in str(caught.value)
    with pytest.raises(InputError, match="a dict of 'epoch'"):
        load_model(NAME, save({"epoch": 3}, tmp_path / "empty.pt"))
    with pytest.raises(InputError, match=r"that ends in .safetensors, .pt.*there is no 'nowhere.pt'"):
        load_model(NAME, "nowhere.pt")


@pytest.mark.parametrize(
    ("spec", "weights", "words"),
    [
        (NAME, None, "Try: --weights FILE"),
        (NAME, "pretrained", "none to download"),
        ("cifar10-resnet21", "random", "Did you mean 'cifar10-resnet"),
        ("resnet50", "random", "Did you mean 'timm:resnet50'"),
        ("timm:resnet5", "random", "Did you mean 'timm:resnet50'"),
        ("timm:resnet50.nobodys_tag", "random", "nobodys_tag"),
        ("torchvision:fcn_resnet50", "random", "Did you mean 'torchvision:segmentation.fcn_resnet50'"),
        ("nowhere.py:build", None, "there is no 'nowhere.py'"),
    ],
)
def test_a_wrong_name_is_refused_with_a_remedy(spec: str, weights: str | None, words: str) -> None:
    with pytest.raises(InputError) as caught:
        load_model(spec, weights)
    assert words in str(caught.value)


@pytest.mark.parametrize("library", ["timm", "torchvision", pytest.param("keras", marks=pytest.mark.slow)])
def test_a_library_that_is_missing_is_named(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = libraries.importlib.import_module

    def find(name: str, package: str | None = None) -> object:
        if name.partition(".")[0] == library:
            raise ModuleNotFoundError(f"No module named {library!r}", name=library)
        return plain(name, package)

    monkeypatch.setattr(libraries.importlib, "import_module", find)
    remedy = install("keras") if library == "keras" else f"pip install {library}"
    with pytest.raises(sita.SitaError, match=f"needs {library}. Try: pip install ") as caught:
        load_model(f"{library}:some_net", "random")
    assert str(caught.value).endswith(remedy)


def test_a_function_in_a_file_returns_its_model(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(net.parent)
    loaded = load_model("net.py:described")
    assert loaded.inputs == sita.inputs.ENCODINGS["caffe"]
    assert (loaded.size, loaded.crop, loaded.task, loaded.weights) == ((20, 30), 1.0, "segmentation", "its own")
    bare = load_model("net.py:build")
    assert not bare.model.training
    assert (bare.inputs, bare.size, bare.crop, bare.task) == (None, None, 0.875, "classification")
    with pytest.raises(InputError, match="does not say how its pixels are encoded"):
        bare.encode(np.zeros((1, 4, 4, 3), np.uint8))
    assert load_model("net.py:build", inputs="unit").encode(np.zeros((1, 4, 4, 3), np.uint8)).shape == (1, 4, 4, 3)
    assert load_model("net.py:segments").crop == 1.0


def test_a_file_of_weights_goes_into_the_model_of_a_function(net: Path) -> None:
    state = {**nn.BatchNorm2d(3).state_dict(), "running_mean": torch.arange(3.0)}
    path = save(state, net.parent / "norm.pt")
    loaded = load_model(f"{net}:described", path)
    assert torch.equal(loaded.model.running_mean, torch.arange(3.0))
    assert loaded.weights.startswith("norm.pt sha256 ")
    with pytest.raises(InputError, match="decides its weights itself"):
        load_model(f"{net}:described", "random")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (":bild", "received 'bild'. Did you mean 'build'?"),
        ("", "expected a function of"),
        (":odd", "any of inputs, size, crop, task, scores; received 'input'"),
        (":wrong_crop", "crop: expected a share"),
        (":wrong_size", "size: expected pixels"),
        (":wrong_task", "task: expected 'classification' or"),
        (":fails", f"failed in line {LINE}: KeyError: 'where'"),
        (":meets", "`import sita_workbench.models.torchvision_compat`"),
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
def test_keras_applications(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

    spec, batch = "keras:MobileNet", np.random.default_rng(0).uniform(-1, 1, (2, 32, 32, 3)).astype(np.float32)
    loaded = load_model(spec, "random", size=32)
    assert (loaded.size, loaded.inputs, loaded.task) == (32, sita.inputs.ENCODINGS["tf"], "classification")

    (tmp_path / "small.py").write_text(SMALL_KERAS)
    small, again = (load_model(f"{tmp_path / 'small.py'}:build") for _ in range(2))
    assert (small.size, small.inputs) == (32, None)
    small.model.save(tmp_path / "small.keras")
    whole = load_model(spec, str(tmp_path / "small.keras"))
    small.model.save_weights(tmp_path / "small.weights.h5")
    filled = load_model(f"{tmp_path / 'small.py'}:build", str(tmp_path / "small.weights.h5"))
    assert not np.allclose(np.asarray(again.model(batch)), np.asarray(small.model(batch)))
    for loaded in (whole, filled):
        assert loaded.size == 32
        np.testing.assert_allclose(np.asarray(loaded.model(batch)), np.asarray(small.model(batch)), atol=1e-6)

    with pytest.raises(InputError, match="Did you mean 'keras:MobileNetV3Small'"):
        load_model("keras:MobilenetV3small", "random")
    with pytest.raises(InputError, match="16 × 16"):
        load_model("keras:MobileNetV2", "random", size=16)
    # With Keras' own weights, EfficientNet has a layer more, which a model of another size would lack.
    monkeypatch.setattr(libraries, "_download", lambda spec, download: small.model)
    with pytest.raises(InputError, match="fit its usual size alone"):
        load_model("keras:EfficientNetB0", "pretrained", size=64)
