"""PyTorch tensors as the core's arrays."""

from __future__ import annotations

import array_api_compat.torch as xp
import numpy as np
import torch

from sita_adapters.arrays import Arrays


def _constant(values: np.ndarray, like: torch.Tensor) -> torch.Tensor:
    dtype = like.dtype if values.dtype.kind == "f" else torch.int64
    return torch.as_tensor(values, dtype=dtype, device=like.device)


TORCH = Arrays(xp, _constant)
