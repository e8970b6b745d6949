"""The `sita` command. The library does not import it. Public is `score`, with the `ModelSpec` that it takes."""

from .scoring import ModelSpec, Scored, score

__all__ = ["ModelSpec", "Scored", "score"]
