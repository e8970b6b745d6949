from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

import sita_workbench.models.torchvision_compat  # noqa: F401  (before timm and torchvision)

DATA = Path(os.environ.get("SITA_DATA", Path(__file__).parent.parent.parent / "shared" / "data"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not DATA.is_dir():
        reason = pytest.mark.skip(reason=f"needs real data: no folder {DATA} (SITA_DATA names another)")
        for item in items:
            if "real" in item.keywords:
                item.add_marker(reason)


@pytest.fixture(scope="session")
def data() -> Path:
    return DATA


# Tests run side by side, a process a core: threads of their own would only fight over the cores.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _reproducible() -> None:
    torch.manual_seed(0)
