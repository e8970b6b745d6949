"""The `backend` that this process tests the promises on."""

from __future__ import annotations

import functools
import os
from typing import Any

import pytest

NAME = f"keras-{os.environ['KERAS_BACKEND']}" if "KERAS_BACKEND" in os.environ else "torch"


@functools.cache
def framework() -> Any:
    if NAME == "torch":
        from torch_framework import TorchFramework

        return TorchFramework()
    from keras_framework import KerasFramework

    return KerasFramework()


@pytest.fixture(scope="session", params=[NAME])
def backend() -> Any:
    """What builds, runs and looks into the models of one framework."""
    return framework()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `file` or `network` runs for each that the framework has."""
    if "file" in metafunc.fixturenames:
        metafunc.parametrize("file", framework().files)
    if "network" in metafunc.fixturenames:
        # Keras builds them alike, whatever computes; JAX takes minutes to compile them.
        marks = [pytest.mark.slow] if NAME in ("keras-jax", "keras-torch") else []
        metafunc.parametrize("network", [pytest.param(name, marks=marks) for name in framework().networks])
