"""The two settings of the paper's studies: a batch that shares its statistics, and views drawn for every image."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import reference
import torch
from nets import dense, images, small
from sita_torch.arrays import TORCH

import sita_adapters as sita
from sita_adapters.inputs import ENCODINGS
from sita_adapters.view_steps import Canvas
from sita_adapters.views import content_seed, make_views

TURNS = (0, 1, 3)


def batch_rows(count: int, prior: float) -> list[reference.Row]:
    """Every image weighs ½/B, every view ½/(nB), for all rows of the batch."""
    n = len(TURNS) - 1
    weights = {
        len(TURNS) * b + i: (0.5 if i == 0 else 0.5 / n) / count for b in range(count) for i in range(len(TURNS))
    }
    return [reference.Row(row, prior, weights) for row in range(count * len(TURNS))]


def test_a_batch_that_shares_its_statistics_equals_the_reference() -> None:
    model, batch = small().double(), images(4, 3, 16, 16).double()
    views = [lambda _, b=b, k=k: torch.rot90(batch[b : b + 1], k, dims=(-2, -1)) for b in range(4) for k in TURNS]
    rows = reference.run_rows(model, batch[0], views, batch_rows(4, 0.6))
    expected = torch.stack([rows[len(TURNS) * b] for b in range(4)])
    with torch.inference_mode():
        found = sita.adapt(model, "augbn", priors=0.6, share="batch")(batch)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_without_views_and_prior_it_is_the_frameworks_own_training_mode() -> None:
    model, batch = small(), images(8, 3, 16, 16)
    trained = copy.deepcopy(model).train()
    with torch.inference_mode():
        found = sita.adapt(model, "ptn", share="batch")(batch)
        expected = trained(batch)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("recipe", ["bn", "augbn", "ops", "ops_shared"])
def test_one_image_shares_with_nobody(recipe: str) -> None:
    model, batch = small(), images(1, 3, 16, 16)
    with torch.inference_mode():
        shared, alone = sita.adapt(model, recipe, share="batch")(batch), sita.adapt(model, recipe)(batch)
    torch.testing.assert_close(shared, alone, rtol=1e-5, atol=1e-6)


def test_a_shared_batch_says_so_and_does_not_run_in_parts() -> None:
    adapted = sita.adapt(small(), "augbn", share="batch")
    assert "statistics of the whole batch" in str(sita.describe(adapted))
    with pytest.raises(sita.RecipeError, match=r"max_rows: with share='batch'.*Remedy: smaller batches"):
        sita.adapt(small(), "augbn", share="batch", max_rows=8)
    with pytest.raises(sita.RecipeError, match="share: expected 'image' or 'batch'; received 'all'"):
        sita.adapt(small(), share="all")


@pytest.mark.parametrize("frozen", [False, True])
def test_views_are_drawn_by_seed_and_content(frozen: bool) -> None:
    """Every image equals a plain adaptation with just the views that its own seed draws."""
    model, batch = small(), images(3, 3, 16, 16)
    batch = batch.contiguous(memory_format=torch.channels_last) if frozen else batch
    adapted = sita.adapt(model, "augbn", augment="paper", resample=True, seed=5, inputs="imagenet")
    canvas = Canvas(TORCH, -3, (-2, -1), ENCODINGS["imagenet"])
    with torch.inference_mode():
        together = adapted(batch)
        for place, image in enumerate(batch):
            seed = content_seed(image.permute(1, 2, 0).numpy(), 5)
            drawn = make_views("paper", 2, seed, "square")
            own = [lambda x, view=view: view.apply(x, canvas) for view in drawn]
            expected = sita.adapt(model, "augbn", augment=own)(image[None])
            torch.testing.assert_close(together[place : place + 1], expected, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(adapted(image[None]), expected, rtol=1e-5, atol=1e-5)


def test_another_image_or_seed_draws_other_views() -> None:
    image = np.zeros((4, 4, 3), np.float32)
    other = image.copy()
    other[0, 0, 0] = 1e-6
    seeds = {content_seed(image, 0), content_seed(image, 1), content_seed(other, 0), content_seed(image[:2], 0)}
    assert len(seeds) == 4
    assert content_seed(image.astype(np.float64), 0) == content_seed(image, 0)


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


def test_what_is_not_random_is_not_resampled_and_no_graph_draws() -> None:
    with pytest.raises(sita.RecipeError, match="resample: nothing in augment='lossless'"):
        sita.adapt(small(), resample=True)
    with pytest.raises(sita.RecipeError, match="resample: nothing"):
        sita.adapt(small(), "bn", resample=True)
    adapted = sita.adapt(small(), "augbn", augment="blur", resample=True)
    assert "drawn for every image" in str(sita.describe(adapted))
    with pytest.raises(sita.RecipeError, match="resample: A compiled or exported model"):
        torch.jit.trace(adapted, images(2, 3, 16, 16))
