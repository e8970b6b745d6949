"""The old name of `torchvision_compat`, which tests/conftest.py imports."""

from .torchvision_compat import LIBRARY  # noqa: F401
