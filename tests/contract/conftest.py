"""The `backend` that this process tests, and which tests are slow on it."""

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


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "slow_on(*backends): slow where Keras runs on one of these. TensorFlow and JAX compile every operation of an "
        "uncompiled call; what is Keras' own code is always tested on its torch backend. The innermost marker decides.",
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marker = item.get_closest_marker("slow_on")
        if marker is not None and NAME.removeprefix("keras-") in marker.args:
            item.add_marker(pytest.mark.slow)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes `file` or `network` runs for each that the framework has."""
    if "file" in metafunc.fixturenames:
        # JAX writes by way of TensorFlow, and takes half a minute; torch.export a quarter.
        lengthy = framework().files if NAME == "keras-jax" else ("model.pt2",)
        marks = {name: [pytest.mark.slow] for name in lengthy}
        metafunc.parametrize("file", [pytest.param(name, marks=marks.get(name, [])) for name in framework().files])
    if "network" in metafunc.fixturenames:
        # tests/torch compares all three with a reference, and tests/keras with PyTorch's; the zoo's sample has others.
        often = framework().networks[:1] if NAME == "torch" else ()
        group = pytest.mark.xdist_group("networks")  # which are built once a process
        metafunc.parametrize(
            "network",
            [
                pytest.param(name, marks=[group] if name in often else [group, pytest.mark.slow])
                for name in framework().networks
            ],
        )
