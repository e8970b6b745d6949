"""The same network in PyTorch and in Keras, its weights copied by hand: the same answers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

torch = pytest.importorskip("torch")

from nets import images as torch_images  # noqa: E402
from nets import warm  # noqa: E402
from torch import nn  # noqa: E402

import sita_adapters as sita  # noqa: E402
from sita_adapters.compare import compare  # noqa: E402
from sita_adapters.errors import InputError  # noqa: E402

CLASSES = 5


class TorchNet(nn.Module):
    """Two convolutions with BatchNorm, a linear head on their mean; `dense`: on every place instead."""

    def __init__(self, dense: bool = False, classes: int = CLASSES) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.head = nn.Conv2d(8, classes, 1)
        self.dense = dense

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)))
        return self.head(x) if self.dense else self.head(x.mean((2, 3), keepdim=True)).flatten(1)


def torch_net(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    net = warm(TorchNet(**options), 3, 16, 16)
    with torch.no_grad():
        net.head.weight *= 4  # else all classes come out about alike, and any two models agree
    return net


def keras_net(net: nn.Module, softmax: bool = False, norms: tuple[str, str] = ("bn1", "bn2")) -> keras.Model:
    """The same network in Keras, its weights copied by hand; `norms` are the names of its BatchNorms."""
    image = keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False, name="conv1")(image)
    x = layers.ReLU()(layers.BatchNormalization(epsilon=1e-5, name=norms[0])(x))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False, name="conv2")(x)
    x = layers.ReLU()(layers.BatchNormalization(epsilon=1e-5, name=norms[1])(x))
    if not net.dense:
        x = layers.GlobalAveragePooling2D(keepdims=True)(x)
    x = layers.Conv2D(net.head.out_channels, 1, name="head")(x)
    if not net.dense:
        x = layers.Flatten()(x)
    model = keras.Model(image, layers.Softmax()(x) if softmax else x)
    state = {name: tensor.detach().numpy() for name, tensor in net.state_dict().items()}
    for name in ("conv1", "conv2"):
        model.get_layer(name).set_weights([state[f"{name}.weight"].transpose(2, 3, 1, 0)])
    for name, renamed in zip(("bn1", "bn2"), norms, strict=True):
        parts = ("weight", "bias", "running_mean", "running_var")
        model.get_layer(renamed).set_weights([state[f"{name}.{part}"] for part in parts])
    model.get_layer("head").set_weights([state["head.weight"].transpose(2, 3, 1, 0), state["head.bias"]])
    return model


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return torch_net()


@pytest.fixture(scope="module")
def twin(net: nn.Module) -> keras.Model:
    return keras_net(net)


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.ascontiguousarray(torch_images(5, 3, 16, 16).permute(0, 2, 3, 1).numpy())


OFTEN = ("source", "auto", "augbn", "ops", "ops_shared", "ensemble")


@pytest.mark.parametrize(
    "recipe",
    [*OFTEN, *(pytest.param(name, marks=pytest.mark.slow) for name in sita.RECIPES if name not in OFTEN)],
)
def test_torch_and_keras_agree(net: nn.Module, twin: keras.Model, images: np.ndarray, recipe: str) -> None:
    compared = compare({"torch": net, "keras": twin}, images, recipe)
    agreement = compared.models[1]
    assert agreement.name == "keras"
    assert agreement.same_labels == 1.0
    assert agreement.largest_difference < 1e-5
    np.testing.assert_allclose(compared["torch"].entropies, compared["keras"].entropies, atol=1e-4)


@pytest.mark.parametrize("norms", [("first", "second"), ("bn2", "bn1")], ids=str)
@pytest.mark.parametrize("calibrated", ["torch", "keras"])
def test_a_recipe_calibrated_in_one_framework_runs_in_the_other(
    net: nn.Module, images: np.ndarray, calibrated: str, norms: tuple[str, str]
) -> None:
    """Layers have other names there, even those of other layers."""
    clean = np.ascontiguousarray(torch_images(24, 3, 16, 16, seed=9).permute(0, 2, 3, 1).numpy())
    models = {"torch": net, "keras": keras_net(net, norms=norms)}
    given = np.moveaxis(clean, -1, 1) if calibrated == "torch" else clean
    recipe = sita.Recipe.from_json(sita.calibrate(models[calibrated], given).to_json())
    agreement = compare(models, images, recipe).models[1]
    assert agreement.same_labels == 1.0
    assert agreement.largest_difference < 1e-5


@pytest.mark.parametrize("recipe", ["augbn", "ops"])
def test_models_that_answer_for_every_place(images: np.ndarray, recipe: str) -> None:
    net = torch_net(dense=True)
    compared = compare({"torch": net, "keras": keras_net(net)}, images, recipe)
    assert compared["keras"].labels.shape == (5, 16, 16)
    assert compared["torch"].probabilities.shape == (5, 16, 16, CLASSES)
    assert compared["torch"].labels.shape == (5, 16, 16)
    # A pixel whose candidates are almost equally certain may keep others of them in another framework.
    assert compared.models[1].same_labels > 0.99
    difference = np.abs(compared["torch"].probabilities - compared["keras"].probabilities).max(axis=-1)
    assert np.quantile(difference, 0.99) < 1e-5


def test_models_of_different_encodings_take_an_array_each(net: nn.Module, images: np.ndarray) -> None:
    scaled = keras.Sequential([keras.Input((16, 16, 3)), layers.Rescaling(1 / 255), *keras_net(net).layers[1:]])
    compared = compare({"torch": net, "keras": scaled}, {"keras": images * 255, "torch": images}, "ops")
    assert compared.models[1].largest_difference < 1e-5


def test_double_precision_images_and_a_double_precision_model(net: nn.Module, images: np.ndarray) -> None:
    double = torch_net().double()
    compared = compare({"single": net, "double": double}, images.astype(np.float64), "augbn")
    assert 0.0 < compared.models[1].largest_difference < 1e-5


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda m, x: (m, torch.from_numpy(x)), InputError, "expected a numpy array.*received"),
        (
            lambda m, x: ({"b": m["keras"]}, x[:, :8]),
            InputError,
            r"images of shape \(16, 16, 3\); received \(8, 1",
        ),
        (lambda m, x: ({"a": m["torch"]}, x[..., :2]), InputError, r"fails on random images .*\(1, 2, 16, 16\)"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    *, net: nn.Module, twin: keras.Model, images: np.ndarray, change: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        compare(*change({"torch": net, "keras": twin}, images))
