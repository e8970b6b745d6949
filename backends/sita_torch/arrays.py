"""PyTorch tensors as the core's arrays."""

from __future__ import annotations

from typing import Any

import array_api_compat.torch as xp
import torch

from sita_adapters.arrays import Arrays


def _constant(values: Any, like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(values, dtype=like.dtype, device=like.device)


def _indices(values: Any, like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.int64, device=like.device)


TORCH = Arrays(xp, _constant, _indices)
