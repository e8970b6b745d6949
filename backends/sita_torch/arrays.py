"""PyTorch tensors as the core's arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import array_api_compat.torch as compat
import numpy as np
import torch

from sita_adapters.arrays import Arrays


def _constant(values: Any, like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(values, dtype=like.dtype, device=like.device)


def _indices(values: Any, like: torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(values, dtype=torch.int64, device=like.device)


def _numbers(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return mask.to(like.dtype)


def _evaluated(function: Callable[..., tuple[np.ndarray, ...]], *numbers: Any) -> tuple[torch.Tensor, ...]:
    """Return tensors, which a compiler takes for constants and does not ask how they came about."""
    if torch.compiler.is_compiling():
        looked_at = [number + 0 for number in numbers]  # as the compiler has at a number that it computed with
        return _constants(function.__module__, function.__name__, *looked_at)  # type: ignore[no-any-return]
    plain = [int(n) if isinstance(n, torch.Tensor) else n for n in numbers]  # a trace has sizes as tensors
    return tuple(torch.from_numpy(array) for array in function(*plain))


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _constants(module: str, name: str, *numbers: float) -> tuple[torch.Tensor, ...]:
    with torch.inference_mode(False):
        return tuple(torch.from_numpy(array) for array in getattr(sys.modules[module], name)(*numbers))


def _lerp(start: torch.Tensor, end: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if torch.onnx.is_in_onnx_export():  # which would write a choice between two formulas
        return (1 - weight) * start + weight * end
    return torch.lerp(start, end, weight)


# What every layer computes with goes without array_api_compat's checks of the types, which are alike here.
_DIRECT = {
    "matmul": torch.matmul,
    "sqrt": torch.sqrt,
    "where": torch.where,
    "maximum": torch.clamp_min,
    "lerp": _lerp,
}
_xp = SimpleNamespace(**{name: getattr(compat, name) for name in dir(compat) if not name.startswith("__")} | _DIRECT)

TORCH = Arrays(_xp, _constant, _indices, _numbers, _evaluated)
