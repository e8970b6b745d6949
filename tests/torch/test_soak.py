"""A sample of `make soak`: nothing grows, threads and processes answer alike. And what does grow is noticed."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def soak(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What the other tests of this process left is not counted, which would take seconds each time."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("soak")
    gc.collect()
    gc.freeze()
    yield module
    gc.unfreeze()


def bad(lines: list[Any]) -> list[str]:
    return [str(line) for line in lines if not line.is_good]


def test_calls_and_adaptations_leave_nothing_behind(soak: Any) -> None:
    framework = soak.Torch()
    assert bad(soak.soak_calls(framework, 100)) == []
    assert bad(soak.soak_cycles(framework, 30)) == []


def test_threads_and_processes_answer_alike(soak: Any) -> None:
    framework = soak.Torch()
    lines = [*soak.compare_threads(framework, 8), *soak.compare_processes(framework)]
    assert len(lines) == 4
    assert bad(lines) == []


def test_what_grows_is_noticed(soak: Any) -> None:
    framework, kept = soak.Torch(), []
    model = framework.model()

    def leak(turn: int) -> None:
        kept.append(torch.zeros(3))
        model.register_forward_hook(lambda *_: None)

    lines = soak.soak("leaks", 20, leak, lambda: soak.count_all(framework, model))
    assert {line.what: line.late - line.early for line in lines if not line.is_good} == {
        "tensors": 18,
        "hooks on the source": 18,
    }
