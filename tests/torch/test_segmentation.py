"""Dense prediction: every place votes for itself; views for segmentation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import reference
import torch
import torch_reference
from nets import dense, images

import sita_adapters as sita
from sita_adapters.inputs import ImageLayout
from sita_adapters.plan import make_plan
from sita_adapters.recipe import PAPER_PRIORS, resolve_recipe
from sita_torch.ops import TORCH

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rot90": lambda x: torch.rot90(x, 1, (-2, -1)),
    "rot270": lambda x: torch.rot90(x, 3, (-2, -1)),
    "hflip": lambda x: x.flip(-1),
}


@pytest.mark.parametrize("recipe", ["augbn", "ops"])
@pytest.mark.parametrize("dimensions", [1, 3])  # the contract has images
def test_every_place_votes_as_a_loop_in_float64(dimensions: int, recipe: str) -> None:
    model = dense(dimensions)
    x = images(2, 3, 10, 20).flatten(2) if dimensions == 1 else images(2, 3, 6, 16, 16)
    names = ["hflip"] if dimensions == 1 else ["rot90", "rot270"]
    augment = [VIEWS["hflip"]] if dimensions == 1 else "lossless"  # a signal has a caller's own views only
    changes = {"priors": 0.8} if recipe == "augbn" else {"top_k": 3}
    said = sita.adapt(model, recipe, augment=augment, **changes)(x)
    assert said.shape == model(x).shape
    views = [lambda x: x, *(VIEWS[name] for name in names)]
    if recipe == "augbn":
        rows, answers = reference.augbn_rows(0.8, len(names)), [0]
    else:
        rows, answers = reference.ops_rows(PAPER_PRIORS, len(names))
    close_calls = 0
    for image, found in zip(x, said, strict=True):
        outputs = torch_reference.run_rows(model, image, views, rows)
        candidates = np.stack([outputs[row].numpy() for row in answers])
        for place in np.ndindex(*candidates.shape[2:]):
            each = candidates[(slice(None), slice(None), *place)]
            if recipe != "augbn" and _is_close_call(each):
                close_calls += 1
                continue
            expected = each[0] if recipe == "augbn" else reference.vote(each, top_k=3)
            np.testing.assert_allclose(found[(slice(None), *place)].numpy(), expected, atol=2e-5)
    assert close_calls < 0.02 * said[:, 0].numel()


def _is_close_call(candidates: np.ndarray) -> bool:
    """Whether rounding may decide: which candidates are kept, which of them leads a tie, or what one of them says."""
    entropies = np.array([reference.entropy(list(z)) for z in candidates])
    order = np.argsort(entropies)
    gaps = np.diff(entropies[order])
    margins = np.diff(np.sort(candidates[order[:3]], axis=1)[:, -2:], axis=1)
    all_differ = len(set(candidates[order[:3]].argmax(1).tolist())) == 3
    return bool(gaps[2] < 1e-6 or margins.min() < 1e-5 or (all_differ and gaps[:2].min() < 1e-6))


def test_an_ensemble_is_the_mean_softmax_over_views_that_keep_pixels_in_place() -> None:
    model, x = dense(), images(2, 3, 16, 16)
    adapted = sita.adapt(model, "ensemble", task="segmentation")
    views = make_plan(resolve_recipe("ensemble", {}, "segmentation")).views
    layout = ImageLayout(TORCH, -3, (-2, -1))
    expected = torch.stack([model(v.apply(x, layout)).double().softmax(1) for v in views]).mean(0).log()
    torch.testing.assert_close(adapted(x).double(), expected, atol=1e-5, rtol=1e-5)


def test_pixels_with_a_sigmoid_each() -> None:
    model, x = dense(classes=1), images(2, 3, 16, 16)
    adapted = sita.adapt(model, "ops", scores="sigmoid", task="segmentation")
    with sita.observe(adapted) as seen:
        assert adapted(x).shape == (2, 1, 16, 16)
    assert seen.priors.shape == (2, 1, 16, 16)
    assert set(np.unique(seen.answers)) <= {0, 1}
