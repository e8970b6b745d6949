"""torch.compile in one graph, for every kind of view, and as few compilations as the plain model needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo.testing
from nets import images, small
from torch._subclasses import FakeTensorMode

import sita_adapters as sita


def compilations(model: torch.nn.Module, batches: list[torch.Tensor]) -> tuple[int, list[torch.Tensor]]:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    with torch.inference_mode():
        answers = [compiled(batch) for batch in batches]
    return counter.frame_count, answers


@pytest.mark.parametrize(
    "settings",
    [{}, {"augment": (("blur", "rotate", "colour"),), "inputs": "imagenet"}],
    ids=["lossless", "interpolated"],
)
def test_every_view_compiles_to_one_graph(settings: dict[str, Any]) -> None:
    adapted, batch = sita.adapt(small(), "augbn", **settings), images(2, 3, 16, 16)
    _, (answer,) = compilations(adapted, [batch])
    with torch.inference_mode():
        torch.testing.assert_close(answer, adapted(batch), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("recipe", ["auto", "shift"])
def test_a_sample_of_the_places_compiles_to_one_graph(recipe: str) -> None:
    """At 40 × 40 every fifth line of the first layers is measured."""
    adapted, batch = sita.adapt(small(), recipe), images(2, 3, 40, 40)
    _, (answer,) = compilations(adapted, [batch])
    with torch.inference_mode():
        torch.testing.assert_close(answer, adapted(batch), rtol=1e-5, atol=1e-6)
        everywhere = sita.adapt(small(), recipe, places=None)(batch)
    assert (answer - everywhere).abs().max() > 1e-4


# Convolutions are compiled again from 16 rows on, whoever calls them: 3 rows per image stay below that.
@pytest.mark.parametrize(
    "shapes",
    [
        pytest.param(((2, 16), (3, 16), (5, 16)), id="batches"),
        pytest.param(((2, 16), (2, 20), (2, 26), (2, 38)), id="images", marks=pytest.mark.slow),
    ],
)
def test_other_sizes_cost_no_more_compilations_than_the_plain_models(shapes: tuple[tuple[int, int], ...]) -> None:
    batches = [images(count, 3, size, size) for count, size in shapes]
    adapted = sita.adapt(small(), "augbn")
    plain, _ = compilations(small(), batches)
    count, answers = compilations(adapted, batches)
    assert count == plain
    for answer, batch in zip(answers, batches, strict=True):
        with torch.inference_mode():
            torch.testing.assert_close(answer, adapted(batch), rtol=1e-5, atol=1e-6)


def test_no_value_is_read_back() -> None:
    """A fake tensor has none to read."""
    for recipe in ("augbn", "ops"):
        with torch.inference_mode(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert sita.adapt(small(), recipe)(mode.from_tensor(images(2, 3, 16, 16))).shape == (2, 7)
