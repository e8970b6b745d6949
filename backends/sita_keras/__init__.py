"""The Keras backend of sita-adapters."""

from .backend import KerasBackend
from .call import AdaptedModel

backend = KerasBackend()

__all__ = ["AdaptedModel", "KerasBackend", "backend"]
