"""Views drawn for every image, in PyTorch's layouts and graphs."""

from __future__ import annotations

import pytest
import torch
import torch_reference
from nets import dense, images, small
from torch_reference import assert_answers

import sita_adapters as sita
from sita_adapters.errors import InputError, RecipeError
from sita_adapters.inputs import ENCODINGS, ImageLayout
from sita_adapters.views import content_seed, make_views
from sita_torch.ops import TORCH


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
def test_views_are_drawn_by_seed_and_content(memory: torch.memory_format) -> None:
    """Every image equals a plain adaptation with just the views that its own seed draws."""
    model, batch = small(), images(3, 3, 16, 16)
    batch = batch.contiguous(memory_format=memory)
    adapted = sita.adapt(model, "augbn", augment="paper", resample=True, seed=5, inputs="imagenet")
    layout = ImageLayout(TORCH, -3, (-2, -1), ENCODINGS["imagenet"])
    with torch.inference_mode():
        together = adapted(batch)
        for place, image in enumerate(batch):
            seed = content_seed(image.permute(1, 2, 0).numpy(), 5)
            drawn = make_views("paper", 2, seed, "square")
            own = [lambda x, view=view: view.apply(x, layout) for view in drawn]
            expected = sita.adapt(model, "augbn", augment=own)(image[None])
            torch.testing.assert_close(together[place : place + 1], expected, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(adapted(image[None]), expected, rtol=1e-5, atol=1e-5)


def test_parts_of_a_plan_meet_the_same_views() -> None:
    model, batch = small(), images(2, 3, 16, 16)
    changes = {"augment": "paper", "resample": True, "inputs": "imagenet"}
    with torch.inference_mode():
        whole = sita.adapt(model, "ops", **changes)(batch)
        parts = sita.adapt(model, "ops", max_rows=6, **changes)(batch)
    torch.testing.assert_close(whole, parts, rtol=1e-5, atol=1e-5)


def test_a_mask_beside_the_images_needs_a_recipe_without_views() -> None:
    """It would not move with the views; what the error advises works."""

    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = dense()

        def forward(self, image: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.inner(image * mask)

    model, batch = Masked().eval(), images(3, 3, 16, 16)
    mask = (batch[:, :1] > 0).float()
    with pytest.raises(InputError, match=r"would not move with the pixels.*without such views \('auto'"):
        sita.adapt(model, "augbn", augment="rotate", resample=True)(batch, mask)
    assert_answers(sita.adapt(model)(batch, mask), torch_reference.answers(dense(), batch * mask))


def test_a_trace_cannot_draw() -> None:
    adapted = sita.adapt(small(), "augbn", augment="blur", resample=True, example=images(2, 3, 16, 16))
    with pytest.raises(RecipeError, match="resample: A compiled or exported model"):
        torch.jit.trace(adapted, images(2, 3, 16, 16))
