"""Views drawn for every image, in PyTorch's layouts and graphs."""

from __future__ import annotations

import pytest
import torch
from nets import dense, images, small

import sita_adapters as sita
from sita_adapters.inputs import ENCODINGS
from sita_adapters.view_steps import Canvas
from sita_adapters.views import content_seed, make_views
from sita_torch.ops import TORCH


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_views_are_drawn_by_seed_and_content(layout: torch.memory_format) -> None:
    """Every image equals a plain adaptation with just the views that its own seed draws."""
    model, batch = small(), images(3, 3, 16, 16)
    batch = batch.contiguous(memory_format=layout)
    adapted = sita.adapt(model, "augbn", augment="paper", resample=True, seed=5, inputs="imagenet")
    canvas = Canvas(TORCH, "square", -3, (-2, -1), ENCODINGS["imagenet"])
    with torch.inference_mode():
        together = adapted(batch)
        for place, image in enumerate(batch):
            seed = content_seed(image.permute(1, 2, 0).numpy(), 5)
            drawn = make_views("paper", 2, seed, "square")
            own = [lambda x, view=view: view.apply(x, canvas) for view in drawn]
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


def test_a_mask_turns_with_the_views_of_its_own_image() -> None:
    """The mask is the image's own first channel: wherever views move pixels, the two stay alike."""

    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = dense()
            self.gap = 0.0

        def forward(self, image: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            self.gap = float((image[:, :1] - mask).abs().max())
            return self.inner(image)

    adapted = sita.adapt(Masked().eval(), "augbn", augment="rotate", n_views=2, resample=True)
    batch = images(3, 3, 16, 16)
    with torch.inference_mode():
        adapted(batch, batch[:, :1])
    assert adapted.gap < 1e-6


def test_a_trace_cannot_draw() -> None:
    adapted = sita.adapt(small(), "augbn", augment="blur", resample=True)
    with pytest.raises(sita.RecipeError, match="resample: A compiled or exported model"):
        torch.jit.trace(adapted, images(2, 3, 16, 16))
