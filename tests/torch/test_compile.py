"""torch.compile in one graph, for every kind of view, and as few compilations as the plain model needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo.testing
import torch_reference
from nets import dense, images, small
from reliable_rules import reliable
from torch._subclasses import FakeTensorMode
from torch_reference import assert_answers

import sita_adapters as sita

VIEWS = ("blur", "rotate", "color", "median", "sharpen")


def compilations(model: torch.nn.Module, batches: list[torch.Tensor]) -> tuple[int, list[torch.Tensor]]:
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    with torch.inference_mode():
        answers = [compiled(batch) for batch in batches]
    return counter.frame_count, answers


def test_views_that_compute_pixels_compile_to_one_graph() -> None:
    batch = images(2, 3, 16, 16)
    adapted = sita.adapt(small(), "augbn", example=batch, augment=VIEWS, inputs="imagenet")
    _, (answer,) = compilations(adapted, [batch])
    with torch.inference_mode():
        torch.testing.assert_close(answer, adapted(batch), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("recipe", "model"),
    [
        ("auto", small),
        ("restore", small),
        ("ops_shared", dense),
        ("by reliability", small),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                *(("auto", dense), ("shift", small), ("shift", dense), ("ops_shared", small)),
                ("by reliability", dense),
            )
        ),
    ],
)
def test_every_recipe_compiles_to_one_graph(recipe: str, model: Any) -> None:
    """Against the float64 reference, too."""
    batch = images(2, 3, 16, 16)
    adapted = sita.adapt(model(), reliable(model()) if recipe == "by reliability" else recipe, example=batch)
    _, (answer,) = compilations(adapted, [batch])
    with torch.inference_mode():
        torch.testing.assert_close(answer, adapted(batch), rtol=1e-5, atol=1e-5)
    if recipe in ("auto", "shift") or (recipe == "ops_shared" and model is small):
        assert_answers(answer.clone(), torch_reference.answers(model(), batch, recipe))


def test_an_unprobed_model_is_probed_outside_the_graph() -> None:
    torch._dynamo.reset()
    adapted, batch = sita.adapt(small()), images(2, 3, 16, 16)
    compiled = torch.compile(adapted, backend="eager")
    with torch.inference_mode():
        for _ in range(2):
            assert_answers(compiled(batch).clone(), torch_reference.answers(small(), batch))


# Convolutions are compiled again from 16 rows on, whoever calls them: 3 rows per image stay below that.
@pytest.mark.parametrize(
    "shapes",
    [
        pytest.param(((2, 16), (3, 16), (5, 16)), id="batches", marks=pytest.mark.slow),
        pytest.param(((2, 16), (2, 20), (2, 26), (2, 38)), id="images", marks=pytest.mark.slow),
    ],
)
def test_other_sizes_cost_no_more_compilations_than_the_plain_models(shapes: tuple[tuple[int, int], ...]) -> None:
    batches = [images(count, 3, size, size) for count, size in shapes]
    adapted = sita.adapt(small(), "augbn", example=batches[0])
    plain, _ = compilations(small(), batches)
    count, answers = compilations(adapted, batches)
    assert count == plain
    for answer, batch in zip(answers, batches, strict=True):
        with torch.inference_mode():
            torch.testing.assert_close(answer, adapted(batch), rtol=1e-5, atol=1e-6)


def test_no_value_is_read_back() -> None:
    """A fake tensor has none to read."""
    for recipe in ("augbn", "ops", "auto", reliable(small())):
        adapted = sita.adapt(small(), recipe, example=images(2, 3, 16, 16))
        with torch.inference_mode(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
            assert adapted(mode.from_tensor(images(2, 3, 16, 16))).shape == (2, 7)
