"""The array operations that the core needs from a framework. Numpy is the reference; a backend overrides some."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""An array of the current framework: numpy, PyTorch, or Keras' backend."""

FUNCTIONS = (
    *("exp", "log", "sqrt", "matmul", "minimum", "maximum", "where", "clip"),
    *("sum", "mean", "max", "min"),
    *("reshape", "moveaxis", "swapaxes", "squeeze", "stack", "flip", "take", "zeros_like"),
)
"""The functions that `Ops` has under numpy's names, with numpy's arguments."""


class SymbolicError(ValueError):
    """The values of an array were requested while a compiler or exporter traces. It has none then."""


class Ops:
    """Array operations on numpy. A `like` argument gives the dtype and the device of the result.

    A subclass names the module that its `FUNCTIONS` come from: `class TorchOps(Ops, functions=torch)`. It may define
    some of them itself.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...  # FUNCTIONS

    def __init_subclass__(cls, functions: Any = None) -> None:
        super().__init_subclass__()
        for name in FUNCTIONS if functions is not None else ():
            if name not in vars(cls):
                setattr(cls, name, staticmethod(getattr(functions, name)))

    def lerp(self, start: Array, end: Array, weight: Any) -> Array:
        """Return (1 − w) · start + w · end."""
        return (1 - weight) * start + weight * end

    def addcmul(self, addend: Array, x: Array, y: Array) -> Array:
        """Return addend + x · y."""
        return addend + x * y

    def addcdiv(self, addend: Array, x: Array, y: Array) -> Array:
        """Return addend + x / y."""
        return addend + x / y

    def is_array(self, value: Any) -> bool:
        """Whether this is an array that a model takes or returns."""
        return isinstance(value, np.ndarray)

    def is_float(self, array: Array) -> bool:
        """Whether an array holds floating-point numbers."""
        return bool(np.issubdtype(array.dtype, np.floating))

    def shape(self, array: Array) -> Sequence[Any]:
        """Return the sizes of an array; some may be symbols while a graph is traced."""
        return array.shape  # type: ignore[no-any-return]

    def positions(self, array: Array, channel_axis: int) -> Any:
        """Return the number of spatial positions of images or features: all axes except the batch and the channels."""
        sizes = [*self.shape(array)[1:]]
        del sizes[channel_axis % len(array.shape) - 1]
        return math.prod(sizes)

    def is_symbol(self, size: Any) -> bool:
        """Whether a size is known only when the graph runs."""
        return False

    def is_traced(self, array: Array) -> bool:
        """Whether a compiler or exporter is tracing. Arrays have no values then."""
        return False

    def is_exported(self) -> bool:
        """Whether a file is being written, for a runtime that fuses constant statistics into convolutions."""
        return False

    def constant(self, values: Any, like: Array) -> Array:
        """Return numbers as an array."""
        return np.asarray(values, dtype=like.dtype)

    def scalar(self, value: Any, like: Array) -> Any:
        """Return a number in the form that is fastest for the framework."""
        return value

    def indices(self, values: Any, like: Array) -> Array:
        """Return integers as an array."""
        return np.asarray(values, dtype=np.int64)

    def cast(self, array: Array, like: Array) -> Array:
        """Return an array with the dtype and device of another."""
        return array.astype(like.dtype)

    def precise(self, array: Array) -> Array:
        """Return an array in float32, or unchanged if it is more precise."""
        return array.astype(np.result_type(array.dtype, np.float32))

    def as_constants(self, function: Callable[..., tuple[np.ndarray, ...]], *numbers: Any) -> tuple[Any, ...]:
        """Call a function of plain numbers that returns numpy arrays; a compiler must treat these as constants."""
        return function(*numbers)

    def copy(self, array: Array) -> Array:
        """Return a copy of an array, because a model could write to it."""
        return np.array(array)

    def concat(self, arrays: Sequence[Array], axis: int) -> Array:
        """Return arrays joined along an axis."""
        return np.concatenate(arrays, axis=axis)

    def stack_rows(self, rows: Sequence[Array], like: Array) -> Array:
        """Return R arrays (B, …) as one (B·R, …), with consecutive rows per image, in the memory format of `like`."""
        return self.reshape(self.stack(rows, axis=1), (-1, *self.shape(rows[0])[1:]))

    def repeat_rows(self, array: Array, times: int) -> Array:
        """Return an array with each of its entries repeated in place."""
        return np.repeat(array, times, axis=0)

    def for_every_image(self, values: Array, like: Array) -> Array:
        """Return values (C,) once for every image of an array (B, R, C): (B, 1, C)."""
        return self.zeros_like(like[:, :1]) + values

    def to_numpy(self, array: Array) -> np.ndarray:
        """Return an array's values; raise a SymbolicError if it has none."""
        return np.asarray(array)

    def map_batches(self, function: Callable[[list[Array]], Any], batch: list[Array], size: int) -> list[Any]:
        """Call a function on chunks of at most `size` batch entries; return the results."""
        starts = range(0, batch[0].shape[0], size)
        return [function([array[start : start + size] for array in batch]) for start in starts]

    def after(self, arrays: Sequence[Array]) -> AbstractContextManager[Any]:
        """Return a context whose operations wait for these arrays, to limit memory."""
        return contextlib.nullcontext()


class _NumpyOps(Ops, functions=np):
    """The same, with numpy's own functions."""


NUMPY = _NumpyOps()
