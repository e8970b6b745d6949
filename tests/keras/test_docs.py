"""The blocks of README and documentation that are about Keras run as they stand."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import documented
import keras
import pytest
from keras.src.applications import resnet

import sita_workbench.models.torchvision_compat  # noqa: F401  (before torchvision, to which weights are ported)

pytestmark = pytest.mark.skipif(os.environ.get("KERAS_BACKEND") != "tensorflow", reason="what they print names it")
PAGES = [page for page in documented.PAGES if documented.code_of(page, "keras")]


def narrow_resnet(depths: tuple[int, ...], weights: None) -> keras.Model:
    """ResNet50 with an eighth of its channels, and as deep as a page shows it: the layers have their names."""

    def stack(x: Any) -> Any:
        for stage, blocks in enumerate(depths, 2):
            width = 8 * 2 ** (stage - 2)
            x = resnet.stack_residual_blocks_v1(x, width, blocks, stride1=1 if stage == 2 else 2, name=f"conv{stage}")
        return x

    return resnet.ResNet(stack, preact=False, use_bias=True, weights=weights, name="resnet50")


@pytest.mark.parametrize(
    "page",
    # These compile a ResNet50, for `compare` in both frameworks; README's block runs every time on a shallow network.
    [pytest.param(page, marks=[pytest.mark.slow] * (page.stem in ("frameworks", "start_keras"))) for page in PAGES],
    ids=lambda page: page.stem,
)
def test_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    depths = (3, 4, 6, 3) if page.stem == "start_keras" else (1, 1, 1, 1)
    build = keras.applications.ResNet50 if page.stem == "frameworks" else functools.partial(narrow_resnet, depths)
    build = documented.seeded(build, lambda: keras.utils.set_random_seed(0), weights=None)
    monkeypatch.setattr(keras.applications, "ResNet50", build)
    documented.forbid_network(monkeypatch)
    documented.run_page(page, "keras", tmp_path, monkeypatch)


def test_there_are_such_pages() -> None:
    assert {page.stem for page in PAGES} >= {"README", "start_keras", "frameworks"}
