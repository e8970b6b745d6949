"""The blocks of README and documentation that are about Keras run as they stand."""

from __future__ import annotations

import os
from pathlib import Path

import documented
import keras
import pytest

import sita_workbench.models.torchvision_compat  # noqa: F401  (before torchvision, to which weights are ported)

pytestmark = pytest.mark.skipif(os.environ.get("KERAS_BACKEND") != "tensorflow", reason="what they print names it")
PAGES = [page for page in documented.PAGES if documented.code_of(page, "keras")]


@pytest.mark.parametrize(
    "page",
    # Both frameworks compile a ResNet50 for `compare`; test_frameworks_agree.py does it every time with small networks.
    [pytest.param(page, marks=[pytest.mark.slow] if page.stem == "frameworks" else []) for page in PAGES],
    ids=lambda page: page.stem,
)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = documented.seeded(keras.applications.ResNet50, lambda: keras.utils.set_random_seed(0), weights=None)
    monkeypatch.setattr(keras.applications, "ResNet50", build)
    documented.forbid_network(monkeypatch)
    documented.run_page(page, "keras", tmp_path, monkeypatch)


def test_there_are_such_pages() -> None:
    assert {page.stem for page in PAGES} >= {"README", "start_keras", "frameworks"}
