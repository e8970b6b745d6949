"""The same network in Keras and in torch: the ported weights, and then what every recipe makes of them (promise 5).

Keras runs on the backend that KERAS_BACKEND names.
"""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

torch = pytest.importorskip("torch")

import nets  # noqa: E402
import torchvision_as_installed as torchvision  # noqa: E402
from torch import nn  # noqa: E402

import sita_adapters as sita  # noqa: E402
from examples.imagenet_images import CONDITIONS, corrupt, encode, load_images, load_resnet50  # noqa: E402
from sita_adapters.errors import ModelError  # noqa: E402
from sita_workbench.models.porting import keras_twin, torch_twin  # noqa: E402

# All three then end in features of 2×2. At 96² Inception's are a single place, without statistics of its own.
SIZES = {"ResNet50": 64, "DenseNet121": 64, "InceptionV3": 128}
CLASSES = 20
pytestmark = pytest.mark.xdist_group("networks")  # which are built once a process
TOLERANCE = 1e-4

LARGER = [pytest.param(name, marks=pytest.mark.slow) for name in SIZES if name != "ResNet50"]


def pictures(size: int, count: int = 3, seed: int = 0) -> np.ndarray:
    return np.ascontiguousarray(nets.images(count, 3, size, size, seed=seed).permute(0, 2, 3, 1).numpy())


def seeded(architecture: str, images: np.ndarray, **extra: Any) -> Any:
    """Return a Keras model with seeded weights and the statistics of these images; no bias, γ or β is trivial."""
    keras.utils.set_random_seed(0)
    random = np.random.default_rng(1)
    model = getattr(keras.applications, architecture)(
        weights=None, input_shape=images.shape[1:], classes=CLASSES, **extra
    )
    norms = [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
    for layer in model.layers:
        for variable in layer.weights:
            if variable.name in ("bias", "beta"):
                variable.assign(random.uniform(-0.2, 0.2, variable.shape))
            elif variable.name == "gamma":
                variable.assign(random.uniform(0.7, 1.3, variable.shape))
    momentum = norms[0].momentum
    for layer in norms:
        layer.momentum = 0.0  # nothing of the initial 0 and 1 stays
    model(images, training=True)
    for layer in norms:
        layer.momentum = momentum
    return model


@functools.cache
def keras_model(architecture: str) -> Any:
    """Shared by tests, which must not change it."""
    return seeded(architecture, pictures(SIZES[architecture], count=8, seed=5))


def keras_says(model: Any, images: np.ndarray) -> np.ndarray:
    return np.asarray(keras.ops.convert_to_numpy(model(images, training=False)))


def torch_says(model: nn.Module, images: np.ndarray, softmax: bool = True) -> np.ndarray:
    with torch.inference_mode():
        logits = model(torch.from_numpy(images).permute(0, 3, 1, 2))
    return (logits.softmax(1) if softmax else logits).numpy()


def check_same(torch_scores: np.ndarray, keras_scores: np.ndarray, rounding: float = 0.0) -> None:
    print(f"largest difference {np.abs(torch_scores - keras_scores).max():.1e}")
    np.testing.assert_array_equal(torch_scores.argmax(1), keras_scores.argmax(1))
    np.testing.assert_allclose(torch_scores, keras_scores, rtol=0, atol=max(TOLERANCE, rounding))
    # Answers that are all alike would agree, whatever was ported.
    assert np.ptp(keras_scores, axis=0).max() > 10 * TOLERANCE


@pytest.mark.parametrize("architecture", SIZES)
def test_a_torch_twin_answers_as_the_keras_model_plain_and_adapted(architecture: str) -> None:
    model, images = keras_model(architecture), pictures(SIZES[architecture], count=2)
    twin = torch_twin(model)
    assert not twin.training
    assert {module.eps for module in twin.modules() if isinstance(module, nn.BatchNorm2d)} == {
        layer.epsilon for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)
    }
    check_same(torch_says(twin, images), keras_says(model, images))
    check_same(torch_says(sita.adapt(twin, "augbn"), images), keras_says(sita.adapt(model, "augbn"), images))


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["ResNet50", *LARGER])
def test_a_keras_twin_answers_as_the_torch_model_and_nothing_changes_on_the_way_back(architecture: str) -> None:
    """The torch model has weights, and an ε, that no Keras model had."""
    size = SIZES[architecture]
    twin = torch_twin(keras_model(architecture))
    for module in twin.modules():
        if isinstance(module, nn.Conv2d):
            module.weight.data *= 1 + 0.3 * torch.randn_like(module.weight)
        elif isinstance(module, nn.BatchNorm2d):
            module.bias.data += 0.2 * torch.randn_like(module.bias)
            module.eps, module.momentum = 2e-3, 1.0
    with torch.no_grad():
        twin.train()(nets.images(16, 3, size, size, seed=6))
    twin.eval()
    model = keras_twin(twin, size=size)
    check_same(torch_says(twin, pictures(size)), keras_says(model, pictures(size)))
    for (key, before), after in zip(twin.state_dict().items(), torch_twin(model).state_dict().values(), strict=True):
        if not key.endswith("num_batches_tracked"):
            torch.testing.assert_close(after, before, rtol=0, atol=1e-6, msg=key)


def test_models_of_torchvision_have_no_keras_twin() -> None:
    """Their strides differ, or their pooling counts the padding."""
    for model in (torchvision.models.resnet50(num_classes=CLASSES), nets.SmallNet()):
        with pytest.raises(ModelError, match=f"that torch_twin returned; received {type(model).__name__}"):
            keras_twin(model)


@pytest.mark.slow
def test_a_scale_that_keras_has_no_place_for_is_refused() -> None:
    twin = torch_twin(keras_model("InceptionV3"))
    twin.Mixed_5c.branch5x5_2.bn.weight.data[3] = 1.5
    with pytest.raises(ModelError, match=r"Mixed_5c\.branch5x5_2\.bn.*gamma"):
        keras_twin(twin)


@pytest.mark.slow
def test_models_that_have_no_twin_are_refused() -> None:
    headless = keras.applications.ResNet50(weights=None, include_top=False, input_shape=(64, 64, 3))
    with pytest.raises(ModelError, match="include_top"):
        torch_twin(headless)
    with pytest.raises(ModelError, match="Sequential"):
        torch_twin(nn.Sequential(nn.Linear(2, 2)))
    inputs = keras.Input((64, 64, 3))
    nested = keras.Model(inputs, keras_model("ResNet50")(inputs))
    for model in (nested, sita.adapt(keras_model("ResNet50"), "bn")):
        with pytest.raises(ModelError, match="before it is adapted or built into another"):
            torch_twin(model)

    def without_stride(layer: Any) -> Any:
        changed = {"strides": 1} if layer.name in ("conv3_block1_0_conv", "conv3_block1_1_conv") else {}
        return layer.__class__.from_config({**layer.get_config(), **changed})

    strided = keras.models.clone_model(keras_model("ResNet50"), clone_function=without_stride)
    with pytest.raises(ModelError, match="conv3_block1_0_conv"):
        torch_twin(strided)


@functools.cache
def twins_of_real_images(architecture: str, data: Path) -> tuple[Any, nn.Module, np.ndarray]:
    """Return a Keras model whose statistics are those of real images, its torch twin, and other real images."""
    images = encode(load_images(data, 22, SIZES[architecture])[0])
    model = seeded(architecture, images[2:])
    return model, torch_twin(model), images[:2]


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize(
    ("architecture", "recipe"),
    [
        *(("ResNet50", recipe) for recipe in sita.RECIPES),
        *((name, recipe) for name in SIZES if name != "ResNet50" for recipe in ("augbn", "ptn")),
    ],
)
def test_adapted_answers_are_the_same_in_keras_and_torch(architecture: str, recipe: str, data: Path) -> None:
    model, twin, images = twins_of_real_images(architecture, data)
    said = torch_says(sita.adapt(twin, recipe), images)
    # λ = 0 on small features magnifies rounding: what single precision costs both is no difference.
    exact = torch_says(sita.adapt(copy.deepcopy(twin).double(), recipe), images.astype(np.float64))
    check_same(said, keras_says(sita.adapt(model, recipe), images), rounding=2 * np.abs(said - exact).max())


@pytest.mark.slow
@pytest.mark.real
def test_the_trained_resnet50_is_the_same_in_torch_plain_and_adapted(data: Path) -> None:
    model = load_resnet50(data, 160)
    twin = torch_twin(model)
    pixels, labels = load_images(data, 8, 160)
    said = keras_says(model, encode(pixels))
    check_same(torch_says(twin, encode(pixels)), said)
    assert (said.argmax(1) == labels).mean() > 0.5
    images = encode(np.concatenate([corrupt(pixels[:1], condition) for condition in CONDITIONS]))
    for recipe in ("augbn", "ops"):
        check_same(torch_says(sita.adapt(twin, recipe), images), keras_says(sita.adapt(model, recipe), images))
