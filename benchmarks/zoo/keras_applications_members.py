"""keras.applications: one member of each family, without weights of its own."""

from __future__ import annotations

import functools
from typing import Any

from .members import Member

_SMALLEST = {
    "densenet": ("DenseNet121", 64),
    "efficientnet": ("EfficientNetB0", 64),
    "efficientnet_v2": ("EfficientNetV2B0", 64),
    "inception_resnet_v2": ("InceptionResNetV2", 75),
    "inception_v3": ("InceptionV3", 75),
    "mobilenet": ("MobileNet", 64),
    "mobilenet_v2": ("MobileNetV2", 64),
    "mobilenet_v3": ("MobileNetV3Small", 64),
    "nasnet": ("NASNetMobile", 64),
    "resnet": ("ResNet50", 64),
    "resnet_v2": ("ResNet50V2", 64),
    "xception": ("Xception", 71),
}
"""The class, and a small image: at 32 pixels, where most would run, nothing is left to take a variance of."""
_WITHOUT = {"convnext": "ConvNeXtTiny", "vgg16": "VGG16", "vgg19": "VGG19"}


def members() -> list[Member]:
    """Return one member of each family."""
    library = "keras.applications"
    found = [
        Member(library, family, name, functools.partial(_build, name, size), ((size, size, 3),))
        for family, (name, size) in _SMALLEST.items()
    ]
    return [*found, *(Member(library, family, name, None) for family, name in _WITHOUT.items())]


def _build(name: str, size: int) -> Any:
    import keras

    # Without the last softmax, which would hide large differences behind probabilities near 0.
    settings: dict[str, Any] = {"weights": None, "classes": 10, "classifier_activation": None}
    return getattr(keras.applications, name)(input_shape=(size, size, 3), **settings)
