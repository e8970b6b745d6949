"""torch.compile in one graph, for every kind of view, and as few compilations as the plain model needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo.testing
from nets import images, small
from torch._subclasses import FakeTensorMode

import sita_adapters as sita


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


def compilations(model: torch.nn.Module, sizes: tuple[int, ...]) -> tuple[int, list[torch.Tensor]]:
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    with torch.inference_mode():
        answers = [compiled(images(size, 3, 16, 16)) for size in sizes]
    return counter.frame_count, answers


@pytest.mark.parametrize(
    "settings",
    [{}, {"augment": (("blur", "rotate", "colour"),), "inputs": "imagenet"}],
    ids=["lossless", "interpolated"],
)
def test_every_view_compiles_to_one_graph(settings: dict[str, Any]) -> None:
    adapted = sita.adapt(small(), "augbn", **settings)
    _, (answer,) = compilations(adapted, (2,))
    with torch.inference_mode():
        torch.testing.assert_close(answer, adapted(images(2, 3, 16, 16)), rtol=1e-5, atol=1e-6)


def test_batch_sizes_cost_no_more_compilations_than_the_plain_models() -> None:
    # Convolutions are compiled anew from 16 rows on, whoever calls them: 3 rows an image stay below that.
    sizes = (2, 3, 5)
    plain, _ = compilations(small(), sizes)
    torch._dynamo.reset()
    adapted = sita.adapt(small(), "augbn")
    count, answers = compilations(adapted, sizes)
    assert count == plain
    with torch.inference_mode():
        torch.testing.assert_close(answers[-1], adapted(images(5, 3, 16, 16)), rtol=1e-5, atol=1e-6)


def test_no_value_is_read_back() -> None:
    """A fake tensor has none to read."""
    for recipe in ("augbn", "ops"):
        with torch.inference_mode(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert sita.adapt(small(), recipe)(mode.from_tensor(images(2, 3, 16, 16))).shape == (2, 7)
