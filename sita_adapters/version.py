"""The version, where both the build and the running library read it."""

__version__ = "0.1.0"
