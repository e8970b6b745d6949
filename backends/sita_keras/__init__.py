"""The Keras backend of sita-adapters."""

from .backend import KerasBackend
from .model import AdaptedModel

backend = KerasBackend()

__all__ = ["AdaptedModel", "KerasBackend", "backend"]
