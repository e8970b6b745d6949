"""The probe of a PyTorch model: what it runs, and what it leaves alone."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torch_reference
from around import Around, batch, count_forwards, net
from torch import nn
from torch_reference import assert_answers

import sita_adapters as sita
from sita_adapters.errors import ModelError


@pytest.mark.parametrize("make", [net, lambda: Around(lambda self, x, mean: self.net(x - mean.view(-1, 1, 1)))])
def test_a_probe_is_a_few_small_runs_once_for_each_signature(make: Any) -> None:
    model = make()
    adapted = sita.adapt(model, "bn")
    runs = count_forwards(next(m for m in adapted.modules() if isinstance(m, nn.Conv2d)))
    others = () if isinstance(model, nn.Sequential) else (torch.zeros(3),)
    adapted(batch(5), *others)
    *probed, call = runs
    assert call == 5
    assert len(probed) <= 6
    assert sum(probed) <= 8
    runs.clear()
    for count, size in ((5, 32), (1, 32), (2, 24)):
        adapted(batch(count, (size, size)), *others)
    assert runs == [5, 1, 2]
    adapted.double()(batch(2).double(), *(each.double() for each in others))
    assert len(runs) > 4


def test_the_check_of_a_layer_copies_that_layer_alone() -> None:
    """Of a class of the user's own, each layer is checked on a copy."""

    class Own(nn.BatchNorm2d):
        """Behaves like its base class."""

    class Large:
        copies = 0

        def __deepcopy__(self, _: Any) -> Large:
            Large.copies += 1
            return self

    model = nn.Sequential(nn.Conv2d(3, 4, 3), *(Own(4) for _ in range(20)), nn.Flatten()).eval()
    model.large = Large()
    sita.adapt(model, "bn", example=torch.rand(2, 3, 8, 8))
    assert Large.copies <= 4


def test_an_example_is_probed_ahead() -> None:
    adapted = sita.adapt(net(), "bn", example=batch(2))
    runs = count_forwards(adapted[0])
    adapted(batch(3))
    assert runs == [3]
    assert sita.describe(adapted).scores == "logits"


def test_no_random_state_is_touched() -> None:
    model, x = net(), batch()
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    sita.adapt(model, "augbn", augment="paper", inputs="unit")(x)
    sita.adapt(model, example=x)
    after = torch.get_rng_state(), np.random.get_state()[1], random.getstate()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert (before[1] == after[1]).all()
    assert before[2] == after[2]


def test_a_probe_rewinds_no_other_threads_random_numbers() -> None:
    drawn: list[float] = []
    stop = threading.Event()

    def draw() -> None:
        while not stop.wait(1e-4):  # without a pause it would hold Python's lock all the time
            drawn.append(random.random())

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for _ in range(3):
            sita.adapt(net())(batch(2))
    finally:
        stop.set()
        thread.join()
    assert len(set(drawn)) == len(drawn)


def test_two_threads_may_probe_at_once() -> None:
    adapted, ready = sita.adapt(net()), threading.Barrier(4)
    batches = [batch(1 + i, (size, size)) for i, size in enumerate((32, 24, 32, 24))]

    def run(x: torch.Tensor) -> torch.Tensor:
        ready.wait()
        with torch.no_grad():
            return adapted(x)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, batches))
    for x, answer in zip(batches, found, strict=True):
        assert_answers(answer, torch_reference.answers(net(), x))


def test_adapting_imports_no_compiler_and_no_exporter() -> None:
    code = (
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "import sita_adapters as sita\n"
        "from torch import nn\n"
        "model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
        "sita.adapt(model.eval())(torch.rand(2, 3, 8, 8))\n"
        "heavy = ('torch._dynamo.', 'torch._inductor.', 'onnx.', 'sympy.')\n"
        "print(sorted(name for name in set(sys.modules) - before if f'{name}.'.startswith(heavy)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("mixes", [False, True])
def test_rounding_that_a_network_magnifies_is_told_from_mixing(mixes: bool) -> None:
    """As in untrained networks: rounding differs with the number of images."""

    def run(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * (1 + 2e-7 * (len(x) - 2))
        return self.net(torch.sin(3e4 * (y + 0.01 * y.mean(0, keepdim=True) if mixes else y)))

    adapted = sita.adapt(Around(run), "augbn")
    if mixes:
        with pytest.raises(ModelError, match="influence each other"):
            adapted(batch())
    else:
        assert adapted(batch()).isfinite().all()
