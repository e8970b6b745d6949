"""How a model's pixels are encoded, for the augmentations that work on colors.

A pixel of intensity u in [0, 1] reaches the model as x = (u · white − mean) / std, in the encoding's channel order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from .errors import InputError, suggestion


@dataclass(frozen=True)
class Inputs:
    """The encoding of a model's input pixels: x = (u · white − mean) / std for u in [0, 1].

    `mean` and `std` are per channel, in the order that the model sees them; `white` is the value of a white
    pixel before they apply (1, or 255 where bytes are expected).
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    white: float = 1.0
    order: Literal["rgb", "bgr"] = "rgb"

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _numbers(self.mean))
        object.__setattr__(self, "std", _numbers(self.std))
        positive = all(math.isfinite(value) and value > 0 for value in (*self.std, self.white))
        if not self.mean or not self.std or not positive or not all(map(math.isfinite, self.mean)):
            raise InputError(
                "Inputs expects finite means, and std and white above 0; "
                f"received mean={self.mean}, std={self.std}, white={self.white}."
            )
        if self.order not in ("rgb", "bgr"):
            raise InputError(f"Inputs expects order 'rgb' or 'bgr'; received {self.order!r}.")


def _numbers(values: Any) -> tuple[float, ...]:
    """Return one number a channel, or one for all."""
    return (float(values),) if isinstance(values, int | float) else tuple(float(value) for value in values)


_IMAGENET = Inputs(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))

ENCODINGS: dict[str, Inputs] = {
    "unit": Inputs(),
    "byte": Inputs(white=255.0),
    "imagenet": _IMAGENET,
    "torch": _IMAGENET,
    "tf": Inputs(mean=(1.0,), white=2.0),
    "caffe": Inputs(mean=(103.939, 116.779, 123.68), white=255.0, order="bgr"),
    "cifar10": Inputs(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2616)),
}
"""The usual encodings by name: "torch", "tf" and "caffe" are what keras.applications calls them."""


def resolve_inputs(inputs: Inputs | str | None) -> Inputs | None:
    """Return the encoding that a caller named, gave, or left open."""
    if inputs is None or isinstance(inputs, Inputs):
        return inputs
    if isinstance(inputs, str) and inputs in ENCODINGS:
        return ENCODINGS[inputs]
    hint = suggestion(inputs, ENCODINGS) if isinstance(inputs, str) else ""
    raise InputError(
        f"inputs= expects one of {', '.join(map(repr, ENCODINGS))} or an Inputs(mean=…, std=…); "
        f"received {inputs!r}.{hint}"
    )
