"""A framework's arrays, as the core sees them: a namespace to compute with, and a way to bring constants in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""An array of whichever framework runs: numpy, PyTorch, or what Keras computes with."""


@dataclass(frozen=True)
class Arrays:
    """`xp` has numpy's names (array_api_compat.torch, keras.ops, numpy itself).

    `constant(values, like)` makes a numpy array one of the framework's own: on the device of `like`, floats in its
    precision, integers as they are.
    """

    xp: Any
    constant: Callable[[np.ndarray, Array], Array]


def _numpy_constant(values: np.ndarray, like: Array) -> Array:
    return values.astype(like.dtype) if values.dtype.kind == "f" else values


NUMPY = Arrays(np, _numpy_constant)
