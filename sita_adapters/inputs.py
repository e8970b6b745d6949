"""How a model's images are laid out, and how their pixels are encoded, for the views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .errors import InputError, suggestion
from .ops import Array, Ops


@dataclass(frozen=True)
class Inputs:
    """The encoding of a model's input pixels: x = (u · white − mean) / std for an intensity u in [0, 1].

    Attributes:
        mean: One value per channel, or one for all.
        std: One value per channel, or one for all.
        white: The value of a white pixel before normalization: 1, or 255 for bytes.
        order: The channel order that the model expects, "rgb" or "bgr". `mean` and `std` are in this order.
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
            expected = "finite means, std and white above 0, and order 'rgb' or 'bgr'"
            raise InputError(f"Inputs: expected {expected}; received {self}.")


@dataclass(frozen=True)
class ImageLayout:
    """The layout of image arrays, with axes counted from the end, and the array operations."""

    ops: Ops
    channel: int
    axes: tuple[int, ...]
    inputs: Inputs | None = None

    def per_channel(self, values: Any, like: Array) -> Array:
        """Return one value per channel, or one for all, as an array that applies to images."""
        column = np.asarray(values, dtype=np.float32).reshape(-1, *[1] * (-self.channel - 1))
        return self.ops.constant(column, like)


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
"""Common encodings by name. keras.applications uses the names "torch", "tf" and "caffe"."""


def resolve_inputs(inputs: Inputs | str | None) -> Inputs | None:
    """Return the encoding that a caller named or passed; None if there is none."""
    encoding = ENCODINGS.get(inputs) if isinstance(inputs, str) else inputs
    if inputs is None or isinstance(encoding, Inputs):
        return encoding
    raise InputError(
        f"inputs: expected one of {', '.join(map(repr, ENCODINGS))} or an Inputs(mean=…, std=…); "
        f"received {inputs!r}.{suggestion(str(inputs), ENCODINGS)}"
    )
