"""The `sita` command. The library does not import it. Public is `score`, with the `ModelSpec` that it takes."""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before onnxruntime is imported: it would report to Microsoft

from .scoring import ModelSpec, Scored, score

__all__ = ["ModelSpec", "Scored", "score"]
