"""Keras' image layers before a network: `training=True` is the default of their `call`; `predict` runs them without."""

from __future__ import annotations

from typing import Any

import keras
import keras_nets as nets
import keras_odd_nets as odd
import keras_reference
import numpy as np
import pytest
from keras import layers

import sita_adapters as sita
from sita_adapters.errors import ModelError

ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "CenterCrop": (12, 12),
    "MaxNumBoundingBoxes": (3,),
    "RandomCrop": (12, 12),
    "Resizing": (12, 12),
    "Pipeline": ([layers.RandomFlip("horizontal"), layers.Resizing(12, 12)],),
    "RandomPosterization": (4,),
    "RandomTranslation": (0.1, 0.1),
    **{f"Random{name}": (0.2,) for name in ("Brightness", "ColorDegeneration", "Contrast", "Hue", "Rotation")},
    **{f"Random{name}": (0.2,) for name in ("Saturation", "Sharpness", "Zoom")},
}
"""The arguments of the image layers that have no default for all."""

OTHERS = (
    *("AugMix", "AutoContrast", "ContrastLimitedAdaptiveHistogramEqualization", "CutMix", "Equalization", "MixUp"),
    *(
        "RandAugment",
        "RandomColorJitter",
        "RandomElasticTransform",
        "RandomErasing",
        "RandomFlip",
        "RandomGaussianBlur",
    ),
    *("RandomGrayscale", "RandomInvert", "RandomPerspective", "RandomShear", "Solarization"),
)


def photos(count: int = 2) -> np.ndarray:
    return np.random.default_rng(3).uniform(0, 255, (count, 16, 16, 3)).astype("float32")


def backbone() -> keras.Model:
    """A network for images in [0, 1], with statistics of such images, frozen."""
    inputs = keras.Input((None, None, 3))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(6, 3)(inputs)))
    model = nets.settle(keras.Model(inputs, layers.GlobalAveragePooling2D()(x), name="backbone"))
    model.trainable = False
    return model


def transfer(*first: layers.Layer) -> keras.Model:
    """Image layers, rescaling, a frozen backbone, a head."""
    x = inputs = keras.Input((16, 16, 3))
    for layer in (*first, layers.Rescaling(1 / 255)):
        x = layer(x)
    model = keras.Model(inputs, layers.Dense(5)(backbone()(x, training=False)))
    keras.utils.set_random_seed(0)
    model.layers[-1].set_weights([np.random.default_rng(0).normal(size=(6, 5)), np.zeros(5)])
    return model


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


QUICK = ("CenterCrop", "Equalization", "RandomFlip", "Resizing")
NAMES = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in sorted({*ARGUMENTS, *OTHERS})
]


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_with_an_image_layer_answers_as_the_reference(name: str) -> None:
    if not hasattr(layers, name):
        pytest.skip(f"Keras {keras.__version__} has no {name}")
    model, batch = transfer(getattr(layers, name)(*ARGUMENTS.get(name, ()))), photos()
    expected = keras_reference.auto(model, batch, "logits")
    assert abs(expected - model.predict_on_batch(batch)).max() > 1e-3
    close(sita.adapt(model).predict_on_batch(batch), expected)


def test_augmentation_before_a_frozen_backbone() -> None:
    """The usual graph for transfer learning. A call flips nothing, though Keras' own call without `training` does."""
    model, batch = transfer(keras.Sequential([layers.RandomFlip("horizontal"), layers.RandomRotation(0.1)])), photos(3)
    expected = keras_reference.auto(model, batch, "logits")
    for use in odd.ways(sita.adapt(model)):
        close(use(batch), expected)


def test_layers_after_an_image_layer_in_a_model_that_its_first_call_builds() -> None:
    steps = [layers.Resizing(12, 12), layers.Conv2D(6, 3), layers.BatchNormalization(), layers.Dropout(0.5)]
    inner = keras.Sequential([*steps, layers.GlobalAveragePooling2D()])
    inputs = keras.Input((16, 16, 3))
    model, batch = nets.settle(keras.Model(inputs, layers.Dense(5)(inner(inputs)))), photos()
    close(sita.adapt(model).predict_on_batch(batch), keras_reference.auto(model, batch, "logits"))


class Resized(keras.Model):
    """Resizes its images, which switches later layers to training unless `training` is given."""

    def __init__(self) -> None:
        super().__init__()
        self.resize, self.norm = layers.Resizing(12, 12), layers.BatchNormalization()
        self.pool, self.head = layers.GlobalAveragePooling2D(), layers.Dense(5)

    def call(self, x: Any) -> Any:
        return self.head(self.pool(self.norm(self.resize(x))))


class ResizedInTraining(Resized):
    """The same as the advice says."""

    def call(self, x: Any, training: bool | None = None) -> Any:
        return super().call(x)


def test_an_image_layer_that_switches_a_batchnorm_to_training_is_refused_and_the_advice_works() -> None:
    batch = photos()
    with pytest.raises(ModelError, match=r"Try: .*give that `call` an argument training=None"):
        sita.adapt(odd.built(Resized()))
    model = odd.built(ResizedInTraining())
    close(sita.adapt(model).predict_on_batch(batch), keras_reference.auto(model, batch, "logits"))


def test_a_layer_that_is_explicitly_in_training_mode_is_refused() -> None:
    inputs = keras.Input((16, 16, 3))
    x = layers.GaussianNoise(0.1, name="noisy")(layers.Resizing(12, 12)(inputs), training=True)
    with pytest.raises(ModelError, match="'noisy' is called with training=True"):
        sita.adapt(keras.Model(inputs, layers.Dense(5)(backbone()(x))))
