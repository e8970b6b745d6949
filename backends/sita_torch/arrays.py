"""PyTorch tensors as the core's arrays."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import array_api_compat.torch as compat
import torch

from sita_adapters.arrays import Arrays


def _constant(values: Any, like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(values, dtype=like.dtype, device=like.device)


def _indices(values: Any, like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.int64, device=like.device)


# What every layer computes with goes without array_api_compat's checks of the types, which are alike here.
_DIRECT = {"matmul": torch.matmul, "sqrt": torch.sqrt, "where": torch.where, "clip": torch.clamp}
_xp = SimpleNamespace(**{name: getattr(compat, name) for name in dir(compat) if not name.startswith("__")} | _DIRECT)

TORCH = Arrays(_xp, _constant, _indices)
