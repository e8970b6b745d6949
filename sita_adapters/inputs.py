"""How a model's pixels are encoded, for the augmentations that work on colors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from .errors import InputError, suggestion


@dataclass(frozen=True)
class Inputs:
    """The encoding of a model's input pixels: x = (u · white − mean) / std for an intensity u in [0, 1].

    `mean` and `std` are per channel, or one for all, in the `order` that the model sees the channels in; `white` is
    the value of a white pixel before they apply (1, or 255 where bytes are expected).
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    white: float = 1.0
    order: Literal["rgb", "bgr"] = "rgb"

    def __post_init__(self) -> None:
        for field in ("mean", "std"):
            object.__setattr__(self, field, tuple(np.ravel(getattr(self, field)).astype(float).tolist()))
        positive = np.array([*self.std, self.white])
        finite = self.mean and self.std and np.isfinite([*self.mean, *positive]).all()
        if not finite or not (positive > 0).all() or self.order not in ("rgb", "bgr"):
            raise InputError(
                f"Inputs: expected finite means, std and white above 0, and order 'rgb' or 'bgr'; received {self}."
            )


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
    encoding = ENCODINGS.get(inputs) if isinstance(inputs, str) else inputs
    if inputs is None or isinstance(encoding, Inputs):
        return encoding
    raise InputError(
        f"inputs: expected one of {', '.join(map(repr, ENCODINGS))} or an Inputs(mean=…, std=…); "
        f"received {inputs!r}.{suggestion(str(inputs), ENCODINGS)}"
    )
