"""What Keras computes with, on any of its backends, as the core's arrays."""

from __future__ import annotations

from typing import Any

from keras import ops

from sita_adapters.arrays import Arrays


def _constant(values: Any, like: Any) -> Any:
    return ops.convert_to_tensor(values, dtype=like.dtype)


def _indices(values: Any, like: Any) -> Any:
    return ops.convert_to_tensor(values, dtype="int32")


def _numbers(mask: Any, like: Any) -> Any:
    return ops.cast(mask, like.dtype)


KERAS = Arrays(ops, _constant, _indices, _numbers)
