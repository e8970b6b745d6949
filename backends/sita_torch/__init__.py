"""The PyTorch backend of sita-adapters."""

from .backend import TorchBackend

backend = TorchBackend()

__all__ = ["TorchBackend", "backend"]
