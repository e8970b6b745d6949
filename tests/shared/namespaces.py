"""The arrays that the core computes with: numpy's, and those of the process's framework."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from sita_adapters.ops import NUMPY

FRAMEWORK = f"keras-{os.environ['KERAS_BACKEND']}" if "KERAS_BACKEND" in os.environ else "torch"


@dataclass(frozen=True)
class Namespace:
    """How to make an array of a numpy one, and back; `rounding` is what its widest floats leave of a mean."""

    ops: Any
    own: Callable[[Any], Any]
    numpy: Callable[[Any], np.ndarray]
    rounding: float = 1e-13


def make_namespace(name: str) -> Namespace:
    if name == "numpy":
        return Namespace(NUMPY, np.asarray, np.asarray)
    if name == "torch":
        import torch

        from sita_torch.ops import TORCH

        return Namespace(TORCH, lambda values: torch.from_numpy(np.asarray(values)), np.asarray)
    from keras import ops

    from sita_keras.ops import KERAS

    # JAX has float64 only where it is switched on, and Keras' torch backend makes float32 of numpy's.
    rounding = 1e-13 if name == "keras-tensorflow" else 1e-6
    return Namespace(KERAS, lambda v: ops.convert_to_tensor(np.asarray(v)), ops.convert_to_numpy, rounding)
