"""Long use: calls and adaptations leave nothing behind, and processes answer alike, to the last bit."""

from __future__ import annotations

import gc
import multiprocessing
import resource
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sita_adapters as sita

IMAGES = torch.randn(5, 3, 12, 12, generator=torch.Generator().manual_seed(1))


ALLOWED = {"objects": 150, "kilobytes": 6000}
"""By how much each may grow: the interpreter and the allocator have caches of their own."""


def make_model() -> nn.Module:
    """A model with running statistics that are not the images'."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
    )
    model(torch.randn(16, 3, 12, 12) * 2 + 1)
    return model.eval()


def answer(_: object = None) -> np.ndarray:
    """The answers of a model that is made and adapted here."""
    torch.set_num_threads(1)
    with torch.inference_mode():
        return np.asarray(sita.adapt(make_model(), "ops_shared")(IMAGES))


def grown(step: Callable[[int], Any], steps: int) -> dict[str, int]:
    """What there is more of after all steps than after the first fifth of them."""

    def count() -> dict[str, int]:
        gc.collect()
        alive = [type(item) for item in gc.get_objects()]
        return {
            "tensors": sum(issubclass(kind, torch.Tensor) for kind in alive),
            "modules": sum(issubclass(kind, nn.Module) for kind in alive),
            "objects": len(alive),
            "kilobytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        }

    for number in range(steps // 5):
        step(number)
    before = count()
    for number in range(steps // 5, steps):
        step(number)
    more = {name: value - before[name] for name, value in count().items()}
    return {name: value for name, value in more.items() if value > ALLOWED.get(name, 0)}


@pytest.mark.parametrize("observed", [False, True], ids=["plain", "observed"])
def test_calls_leave_nothing_behind(observed: bool) -> None:
    adapted = sita.adapt(make_model(), "ops_shared")

    def call(number: int) -> None:
        with torch.inference_mode():
            if observed:
                with sita.observe(adapted):
                    adapted(IMAGES[: 1 + number % 5])
            else:
                adapted(IMAGES[: 1 + number % 5])

    assert not grown(call, 300)


def test_adaptations_leave_nothing_behind() -> None:
    model = make_model()
    hooks = [len(module._forward_pre_hooks) for module in model.modules()]

    def cycle(_: int) -> None:
        with torch.inference_mode():
            sita.unwrap(sita.adapt(model))(IMAGES)

    assert not grown(cycle, 100)
    assert [len(module._forward_pre_hooks) for module in model.modules()] == hooks


def test_what_grows_is_noticed() -> None:
    kept: list[torch.Tensor] = []
    assert grown(lambda number: kept.append(torch.zeros(number + 1)), 50) == {"tensors": 40}


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_processes_answer_alike(start: str) -> None:
    with multiprocessing.get_context(start).Pool(2) as pool:
        for found in pool.map(answer, range(2)):
            np.testing.assert_array_equal(found, answer())
