"""PyTorch tensors as the core's arrays."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import array_api_compat.torch as compat
import numpy as np
import torch

from sita_adapters.errors import RecipeError
from sita_adapters.ops import Ops, SymbolicError

_CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def is_traced() -> bool:
    """Whether a compiler or exporter is tracing: it fuses plain operations, and there are no values to look at."""
    return torch.compiler.is_compiling() or is_exported()


def is_exported() -> bool:
    """Whether torch.jit, torch.export or an exporter to ONNX is tracing."""
    return (
        torch._C._get_tracing_state() is not None
        or torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None
    )


@functools.lru_cache(maxsize=1024)
def _as_tensor(value: float, dtype: torch.dtype) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.tensor(value, dtype=dtype, device="cpu")


def as_kept_tensor(array: Any) -> torch.Tensor:
    """Return an array as a tensor that calls in any mode may use."""
    with torch.inference_mode(False):
        return torch.as_tensor(array)


class TorchOps(Ops, functions=compat):
    """Array operations on tensors, run at once."""

    # Every layer computes with these; they skip array_api_compat's checks of the types, which are the same here.
    matmul, sqrt, log, exp = (staticmethod(each) for each in (torch.matmul, torch.sqrt, torch.log, torch.exp))
    sum, where, reshape = (staticmethod(each) for each in (torch.sum, torch.where, torch.reshape))
    minimum, maximum = staticmethod(torch.clamp_max), staticmethod(torch.clamp_min)
    lerp = staticmethod(torch.lerp)  # type: ignore[assignment]
    addcmul, addcdiv = staticmethod(torch.addcmul), staticmethod(torch.addcdiv)  # type: ignore[assignment]

    def mean(self, x: torch.Tensor, axis: Any, keepdims: bool = False) -> torch.Tensor:
        """Return the mean along one axis or several; along one, faster than `torch.mean` for few numbers."""
        if type(axis) is not int or x.shape[axis] == 0:
            return torch.mean(x, axis, keepdims)
        return torch.sum(x, axis, keepdims) * self.scalar(1 / x.shape[axis], x)  # type: ignore[no-any-return]

    def is_array(self, value: Any) -> bool:
        """Whether this is a dense (strided) tensor, not a sparse or nested one."""
        return isinstance(value, torch.Tensor) and value.layout == torch.strided

    def is_float(self, array: torch.Tensor) -> bool:
        return array.is_floating_point()

    def constant(self, values: Any, like: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(values, dtype=like.dtype, device=like.device)

    def scalar(self, value: Any, like: torch.Tensor) -> Any:
        """Return a number as a tensor of rank 0: on a CPU, PyTorch takes 4 µs to convert a Python number."""
        plain = type(value) is float and like.is_cpu and type(like) is torch.Tensor and like.is_floating_point()
        return _as_tensor(value, like.dtype) if plain else value

    def indices(self, values: Any, like: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.int64, device=like.device)

    def cast(self, array: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return a tensor in the dtype and on the device of another; asked first, since every layer does it often."""
        return array if array.dtype is like.dtype and array.device == like.device else array.to(like)

    def precise(self, array: torch.Tensor) -> torch.Tensor:
        return array if array.dtype in (torch.float32, torch.float64) else array.float()

    def as_constants(self, function: Callable[..., tuple[np.ndarray, ...]], *numbers: Any) -> tuple[torch.Tensor, ...]:
        return tuple(torch.from_numpy(array) for array in function(*numbers))

    def copy(self, array: torch.Tensor) -> torch.Tensor:
        return array.clone()

    def concat(self, arrays: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
        return torch.cat(list(arrays), dim=axis)

    def stack_rows(self, rows: Sequence[torch.Tensor], like: torch.Tensor) -> torch.Tensor:
        """Return R tensors (B, …) as one (B·R, …), channels last where `like` is."""
        stacked = torch.stack(list(rows), dim=1).flatten(0, 1)
        last = _CHANNELS_LAST.get(like.ndim)
        if last is None or like.is_contiguous() or not like.is_contiguous(memory_format=last):
            return stacked
        return stacked.contiguous(memory_format=last)

    def repeat_rows(self, array: torch.Tensor, times: Any) -> torch.Tensor:
        return array.repeat_interleave(times, 0)

    def for_every_image(self, values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return values.expand(like.shape[0], 1, -1)

    def to_numpy(self, array: torch.Tensor) -> np.ndarray:
        """Return a tensor as numpy's, which has no bfloat16."""
        values = array.detach().cpu()
        return np.asarray((values.float() if values.dtype is torch.bfloat16 else values).numpy())


class TracedOps(TorchOps):
    """The same while a compiler or exporter traces: tensors have no values, and sizes may be symbols or tensors."""

    # In ONNX, PyTorch's own would be more nodes: a choice between two formulas, a factor of 1.
    mean = staticmethod(torch.mean)  # type: ignore[assignment]
    lerp, addcmul, addcdiv = Ops.lerp, Ops.addcmul, Ops.addcdiv  # type: ignore[assignment]

    def is_traced(self, array: torch.Tensor) -> bool:
        return True

    def is_exported(self) -> bool:
        return torch._C._get_tracing_state() is not None

    def positions(self, array: torch.Tensor, channel_axis: int) -> int:
        sizes = [*array.shape[1:]]
        del sizes[channel_axis % array.ndim - 1]
        return math.prod(map(int, sizes) if self.is_exported() else sizes)

    def scalar(self, value: Any, like: torch.Tensor) -> Any:
        return value

    def as_constants(self, function: Callable[..., tuple[np.ndarray, ...]], *numbers: Any) -> tuple[torch.Tensor, ...]:
        """Return tensors, which a compiler treats as constants, however they were computed."""
        if torch.compiler.is_compiling():
            computed = [number + 0 for number in numbers]  # the compiler then specializes on a symbolic size
            return _constants(function.__module__, function.__name__, *computed)
        return super().as_constants(function, *[int(n) if isinstance(n, torch.Tensor) else n for n in numbers])

    def for_every_image(self, values: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """In ONNX, an expansion is a dozen nodes."""
        return Ops.for_every_image(self, values, like) if self.is_exported() else super().for_every_image(values, like)

    def to_numpy(self, array: torch.Tensor) -> np.ndarray:
        raise SymbolicError

    def map_batches(self, function: Callable[..., Any], batch: list[torch.Tensor], size: int) -> list[Any]:
        if self.is_exported():
            raise RecipeError(
                "max_rows: a trace would keep the number of rounds that its example needs, and drop images of larger "
                "batches. Try: trace a model that is adapted without max_rows."
            )
        return super().map_batches(function, batch, size)


def _constants(module: str, name: str, *numbers: float) -> tuple[torch.Tensor, ...]:
    with torch.inference_mode(False):
        return tuple(torch.from_numpy(array) for array in getattr(sys.modules[module], name)(*numbers))


# What torch.compiler.assume_constant_result sets; calling it would import the compiler.
_constants._dynamo_marked_constant = True  # type: ignore[attr-defined]

TORCH, TRACED = TorchOps(), TracedOps()
