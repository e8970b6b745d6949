"""The Keras backend of sita-adapters."""

from .backend import AdaptedModel, KerasBackend

backend = KerasBackend()

__all__ = ["AdaptedModel", "KerasBackend", "backend"]
