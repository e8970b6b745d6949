"""The `sita` command. The library does not import it. `score`, `ModelSpec`, `Scored` and `benchmark` are public."""

import os
from typing import TYPE_CHECKING, Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before onnxruntime is imported: it would report to Microsoft

from .scoring import ModelSpec, Scored, score

if TYPE_CHECKING:
    from .benchmarking import benchmark

__all__ = ["ModelSpec", "Scored", "benchmark", "score"]


def __getattr__(name: str) -> Any:
    """Import `benchmark` when it is used: it needs scipy."""
    if name == "benchmark":
        from .benchmarking import benchmark

        return benchmark
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
