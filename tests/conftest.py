"""One framework a process: PyTorch, or, where KERAS_BACKEND is set, Keras on that backend."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

BACKEND = os.environ.get("KERAS_BACKEND")
DATA = Path(os.environ.get("SITA_DATA", Path(__file__).parent.parent.parent / "shared" / "data"))
OTHERS = Path(__file__).parent / ("keras" if BACKEND is None else "torch")

settings.register_profile("tests", deadline=None, max_examples=60)
settings.register_profile("long", deadline=None, max_examples=9000)  # make fuzz
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "tests"))


def pytest_configure(config: pytest.Config) -> None:
    """Set up the framework, but not in the process that only hands tests to the workers.

    Tests run side by side, a process a core: threads of their own would only fight over the cores.
    """
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    if BACKEND is None:
        import torch

        import sita_workbench.models.torchvision_compat  # noqa: F401  (before timm and torchvision)

        torch.set_num_threads(1)
        # Sizes that a trace may freeze: classes, candidates, what is folded into the batch.
        config.addinivalue_line("filterwarnings", "ignore::torch.jit.TracerWarning")
    else:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
            os.environ.setdefault(name, "1")
        if BACKEND == "jax":  # most of the time of its tests is XLA's, for programs that run once
            quick = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
            os.environ.setdefault("XLA_FLAGS", f"{quick} --xla_cpu_multi_thread_eigen=false")


def pytest_report_header() -> str:
    return "tests of PyTorch" if BACKEND is None else f"tests of Keras on {BACKEND}"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    return True if collection_path == OTHERS else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not DATA.is_dir():
        reason = pytest.mark.skip(reason=f"needs real data: no folder {DATA} (SITA_DATA names another)")
        for item in items:
            if "real" in item.keywords:
                item.add_marker(reason)


@pytest.fixture(scope="session")
def data() -> Path:
    return DATA


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    if BACKEND is None:
        import torch

        torch.manual_seed(0)
