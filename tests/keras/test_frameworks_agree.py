from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import pytest
import torch
from keras import layers
from nets import images as torch_images
from nets import warm
from torch import nn

import sita_adapters as sita
from sita_adapters.compare import Comparison, compare

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


def keras_net(net: nn.Module, softmax: bool = False) -> keras.Model:
    """The same network in Keras, its weights copied by hand."""
    image = keras.Input((16, 16, 3))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False, name="conv1")(image)
    x = layers.ReLU()(layers.BatchNormalization(epsilon=1e-5, name="bn1")(x))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False, name="conv2")(x)
    x = layers.ReLU()(layers.BatchNormalization(epsilon=1e-5, name="bn2")(x))
    if not net.dense:
        x = layers.GlobalAveragePooling2D(keepdims=True)(x)
    x = layers.Conv2D(net.head.out_channels, 1, name="head")(x)
    if not net.dense:
        x = layers.Flatten()(x)
    model = keras.Model(image, layers.Softmax()(x) if softmax else x)
    state = {name: tensor.detach().numpy() for name, tensor in net.state_dict().items()}
    for name in ("conv1", "conv2"):
        model.get_layer(name).set_weights([state[f"{name}.weight"].transpose(2, 3, 1, 0)])
    for name in ("bn1", "bn2"):
        parts = ("weight", "bias", "running_mean", "running_var")
        model.get_layer(name).set_weights([state[f"{name}.{part}"] for part in parts])
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


def as_torch(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


@pytest.mark.parametrize("recipe", [None, *sita.RECIPES])
def test_torch_and_keras_agree(net: nn.Module, twin: keras.Model, images: np.ndarray, recipe: str | None) -> None:
    compared = compare({"torch": net, "keras": twin}, images, recipe)
    (agreement,) = compared.agreements
    assert (agreement.name, agreement.against) == ("keras", "torch")
    assert agreement.same_labels == 1.0
    assert agreement.largest_difference < 1e-5
    np.testing.assert_allclose(compared["torch"].entropies, compared["keras"].entropies, atol=1e-4)
    if recipe is None:
        assert compared["torch"].priors is compared["keras"].priors is None
    else:
        np.testing.assert_array_equal(compared["torch"].priors, compared["keras"].priors)


def test_answers_are_those_of_the_model_called_by_hand(net: nn.Module, images: np.ndarray) -> None:
    adapted = sita.adapt(net, "augbn")
    with torch.no_grad():
        expected = {"plain": net(as_torch(images)).softmax(1), "adapted": adapted(as_torch(images)).softmax(1)}
    compared = compare({"plain": net, "adapted": adapted}, images, batch_size=2)
    for name, p in expected.items():
        answers = compared[name]
        np.testing.assert_allclose(answers.probabilities, p.numpy(), atol=1e-6)
        np.testing.assert_array_equal(answers.labels, p.argmax(1).numpy())
        np.testing.assert_allclose(answers.entropies, -(p * p.log()).sum(1).numpy(), atol=1e-5)
        assert answers.seconds > 0
    difference = (expected["plain"] - expected["adapted"]).abs().max()
    assert compared.agreements[0].largest_difference == pytest.approx(float(difference), abs=1e-6)
    assert difference > 1e-3


@pytest.mark.parametrize("recipe", [None, "augbn", "ops"])
def test_keras_with_and_without_a_softmax_agree(net: nn.Module, images: np.ndarray, recipe: str | None) -> None:
    compared = compare({"logits": keras_net(net), "probabilities": keras_net(net, softmax=True)}, images, recipe)
    assert compared.agreements[0].same_labels == 1.0
    assert compared.agreements[0].largest_difference < 1e-5


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_the_prior_is_that_of_the_most_certain_candidate(
    net: nn.Module, twin: keras.Model, images: np.ndarray, framework: str
) -> None:
    """Every prior on its own is what OPS runs side by side."""
    model = {"torch": net, "keras": twin}[framework]
    priors = (0.2, 0.6, 0.9)
    single = [compare({"m": model}, images, "augbn", priors=prior)["m"].entropies for prior in priors]
    chosen = compare({"m": model}, images, "ops", priors=priors, batch_size=2)["m"].priors
    np.testing.assert_array_equal(chosen, np.array(priors)[np.argmin(single, axis=0)])


def test_the_prior_of_a_single_one_is_that_one(net: nn.Module, images: np.ndarray) -> None:
    np.testing.assert_array_equal(compare({"m": net}, images, "augbn", priors=0.7)["m"].priors, [0.7] * 5)


@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_adapted_answers_do_not_depend_on_the_batch_size(
    net: nn.Module, twin: keras.Model, images: np.ndarray, framework: str
) -> None:
    model = {"torch": net, "keras": twin}[framework]
    one, all_ = (compare({"m": model}, images, "ops_shared", batch_size=size)["m"] for size in (2, 64))
    np.testing.assert_allclose(one.probabilities, all_.probabilities, atol=1e-6)


@pytest.mark.parametrize("recipe", ["augbn", "ops"])
def test_models_that_answer_for_every_place(images: np.ndarray, recipe: str) -> None:
    net = torch_net(dense=True)
    compared = compare({"torch": net, "keras": keras_net(net)}, images, recipe)
    assert compared["keras"].labels.shape == (5, 16, 16)
    assert compared["torch"].probabilities.shape == (5, 16, 16, CLASSES)
    assert compared["torch"].priors is not None
    assert compared["torch"].priors.shape == (5, 16, 16)
    # A pixel whose candidates are almost equally certain may keep others of them in another framework.
    assert compared.agreements[0].same_labels > 0.99
    difference = np.abs(compared["torch"].probabilities - compared["keras"].probabilities).max(axis=-1)
    assert np.quantile(difference, 0.99) < 1e-5


def test_models_of_different_encodings_take_an_array_each(net: nn.Module, images: np.ndarray) -> None:
    scaled = keras.Sequential([keras.Input((16, 16, 3)), layers.Rescaling(1 / 255), *keras_net(net).layers[1:]])
    compared = compare({"torch": net, "keras": scaled}, {"keras": images * 255, "torch": images}, "ops")
    assert compared.agreements[0].largest_difference < 1e-5


def test_double_precision_images_and_a_double_precision_model(net: nn.Module, images: np.ndarray) -> None:
    double = torch_net().double()
    compared = compare({"single": net, "double": double}, images.astype(np.float64), "augbn")
    assert 0.0 < compared.agreements[0].largest_difference < 1e-5


def test_the_models_stay_as_they_were(images: np.ndarray) -> None:
    net = torch_net()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    compare({"a": net, "b": net}, images, "ops")
    assert all(torch.equal(tensor, net.state_dict()[name]) for name, tensor in before.items())
    with pytest.raises(sita.NotAdaptedError):
        sita.describe(net)


def test_json_holds_everything(net: nn.Module, twin: keras.Model, images: np.ndarray) -> None:
    compared = compare({"torch": net, "keras": twin}, images, "ops")
    read = json.loads(compared.to_json())
    assert read == compared.to_dict()
    assert [model["name"] for model in read["models"]] == ["torch", "keras"]
    assert read["models"][0]["recipe"].startswith("ops: λ = 0.5")
    for model in read["models"]:
        np.testing.assert_array_equal(model["labels"], compared[model["name"]].labels)
        np.testing.assert_array_equal(model["probabilities"], compared[model["name"]].probabilities)
        np.testing.assert_array_equal(model["priors"], compared[model["name"]].priors)
    assert read["agreements"][0]["same_labels"] == 1.0


def test_json_has_no_number_that_json_lacks(images: np.ndarray) -> None:
    net = torch_net()
    with torch.no_grad():
        net.head.bias[0] = float("nan")
    read = json.loads(compare({"a": net, "b": net}, images[:1]).to_json())
    assert read["models"][0]["probabilities"] == [[None] * CLASSES]
    assert read["agreements"][0]["largest_difference"] is None


def test_it_prints_as_a_table(net: nn.Module, twin: keras.Model, images: np.ndarray) -> None:
    compared = compare({"here": net, "there": sita.adapt(twin, "augbn")}, images, batch_size=4)
    assert isinstance(compared, Comparison)
    heading, _, names, _, first, second = str(compared).splitlines()
    assert heading == "5 images, 4 at a time; labels and probabilities (Δp) against 'here'"
    assert names.split("  ")[0] == "model"
    assert first.split()[:5] == ["here", "torch", "as", "it", "is"]
    assert second.split()[:4] == ["there", "keras", f"({keras.backend.backend()})", "augbn"]
    assert "0.80" in second
    assert f"{100 * compared.agreements[0].same_labels:.1f} %" in second


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda m, x: ({}, x), sita.InputError, "one model or more by name.*received \\[\\]"),
        (lambda m, x: (m["torch"], x), sita.InputError, "by name.*received TorchNet"),
        (lambda m, x: (m, x[0]), sita.InputError, r"received shape \(16, 16, 3\).*images\[None\]"),
        (lambda m, x: (m, x[:0]), sita.InputError, r"received shape \(0, 16, 16, 3\)"),
        (lambda m, x: (m, torch.from_numpy(x)), sita.InputError, "received Tensor.*permute"),
        (lambda m, x: (m, x.astype(str)), sita.InputError, "expected numbers"),
        (lambda m, x: ({"a": m["torch"]}, x.transpose(0, 3, 1, 2)), sita.InputError, "'a'.*like channels first"),
        (lambda m, x: ({"b": m["keras"]}, x.transpose(0, 3, 1, 2)), sita.InputError, "'b'.*like channels first"),
        (lambda m, x: ({"b": m["keras"]}, x[:, :8]), sita.InputError, r"'b' takes.*16, 16, 3.*received \(8, 16, 3\)"),
        (lambda m, x: ({"a": m["torch"]}, x[..., :2]), sita.InputError, r"'a' failed on images .*\(5, 2, 16, 16\)"),
        (lambda m, x: (m, {"torch": x}), sita.InputError, "one for each of torch, keras"),
        (lambda m, x: (m, {"torch": x, "keras": x[:3]}), sita.InputError, "torch: 5, keras: 3"),
        (lambda m, x: ({**m, "c": torch_net(classes=4)}, x), sita.OutputError, r"\(5,\).*'c' with \(4,\)"),
        (lambda m, x: ({**m, "c": torch_net(classes=1)}, x), sita.OutputError, r"'c'.*two classes"),
        (lambda m, x: ({"a": m["torch"], "b": object()}, x), sita.UnknownModelError, "received an object"),
        (lambda m, x: ({"a": torch_net().train()}, x), sita.InputError, "training mode.*eval"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    *, net: nn.Module, twin: keras.Model, images: np.ndarray, change: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        compare(*change({"torch": net, "keras": twin}, images))


@pytest.mark.parametrize("given", [{"recipe": "ops"}, {"priors": 0.5}, {"scores": "logits"}])
@pytest.mark.parametrize("framework", ["torch", "keras"])
def test_an_adapted_model_takes_no_recipe(
    net: nn.Module, twin: keras.Model, images: np.ndarray, given: dict[str, Any], framework: str
) -> None:
    model = sita.adapt({"torch": net, "keras": twin}[framework], "bn")
    with pytest.raises(sita.RecipeError, match=r"'m' is adapted already, by 'bn'.*sita\.unwrap"):
        compare({"m": model}, images, **given)


def test_a_change_needs_a_recipe(net: nn.Module, images: np.ndarray) -> None:
    with pytest.raises(sita.RecipeError, match="priors: there is no recipe to change"):
        compare({"m": net}, images, priors=0.5)


@pytest.mark.parametrize("size", [0, -1, True, 1.5, "2"])
def test_a_batch_has_a_size(net: nn.Module, images: np.ndarray, size: Any) -> None:
    with pytest.raises(sita.InputError, match="batch_size"):
        compare({"m": net}, images, batch_size=size)


def test_a_model_without_batchnorm_runs_where_its_scores_are_said(images: np.ndarray) -> None:
    model = nn.Sequential(nn.Conv2d(3, CLASSES, 16), nn.Flatten(), nn.Softmax(1)).eval()
    answers = compare({"m": model}, images, scores="probabilities")["m"]
    with torch.no_grad():
        np.testing.assert_allclose(answers.probabilities, model(as_torch(images)).numpy(), atol=1e-6)


def test_comparing_imports_no_framework() -> None:
    code = "import sys, sita_adapters.compare; print(*{'torch', 'keras', 'tensorflow', 'jax'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""
