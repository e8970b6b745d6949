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

    `constant(values, like)` makes a numpy array or a list one of the framework's own, on the device and in the
    precision of `like`; `indices(values, like)` makes one of integers. `numbers(mask, like)` is 1 where the mask is
    true and 0 elsewhere, in the precision of `like`. `evaluated(function, …)` calls a function of plain numbers that
    gives numpy arrays; where a compiler is following, it must take what comes for a constant.
    """

    xp: Any
    constant: Callable[[Any, Array], Array]
    indices: Callable[[Any, Array], Array]
    numbers: Callable[[Array, Array], Array]
    evaluated: Callable[..., tuple[Any, ...]] = lambda function, *numbers: function(*numbers)


NUMPY = Arrays(
    np,
    constant=lambda values, like: np.asarray(values, dtype=like.dtype),
    indices=lambda values, like: np.asarray(values, dtype=np.int64),
    numbers=lambda mask, like: mask.astype(like.dtype),
)
