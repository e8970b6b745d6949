"""What a recipe answers for a PyTorch model that returns one tensor: one image at a time, in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import reference
import torch
from torch import nn

PAPER_PRIORS = tuple(0.5 + 0.5 * p / 7 for p in range(8))
VIEWS = [lambda x, k=k: torch.rot90(x, k, dims=(-2, -1)) for k in (0, 1, 3)]
FLIPS = [lambda x: x, lambda x: x.flip(-2), lambda x: x.flip(-1)]

RECIPES: dict[str, dict[str, Any]] = {"auto": {}, "shift": {}, "augbn": {"priors": 0.9}, "ops": {}, "bn": {}}
"""The recipes that `answers` knows, and the fields that `adapt` takes for them."""

ROWS = {
    "auto": (reference.AUTO_ROWS, [0, 1]),
    "shift": (reference.augbn_rows(reference.Rule(0.375, 0.5), 0), [0]),
    "augbn": (reference.augbn_rows(0.9, 2), [0]),
    "ops": reference.ops_rows(PAPER_PRIORS, 2),
    "ops_shared": reference.shared_rows(PAPER_PRIORS, 2),
    "bn": (reference.augbn_rows(16 / 17, 0), [0]),
}


def answers(
    model: nn.Module,
    batch: torch.Tensor,
    recipe: str = "auto",
    kind: str | None = "logits",
    whole: bool = False,
    **options: Any,
) -> torch.Tensor:
    """Return the answers for a batch; classes on axis 1. `options` are those of `reference.run_rows`.

    Without a `kind`, the output holds no scores. `whole`: one row supplies the answer, because others stand beside it.
    """
    rows, candidates = ROWS[recipe]
    views = VIEWS if batch.shape[-1] == batch.shape[-2] else FLIPS
    found = []
    for image in batch:
        calls: list[list[reference.LayerCall]] = []
        output = reference.run_rows(model, image, views, rows, calls=calls, **options)
        scores = np.stack([output[row].movedim(0, -1).numpy() for row in candidates])
        if recipe == "auto":
            shift = reference.image_shift(calls[1])
            if kind is None:
                answer = scores[int(shift > reference.SELECTION_SHIFT)]
            else:
                weight = reference.adapted_weight(shift, *scores, kind)
                answer = scores[int(weight > 0.5)] if whole else reference.mix(*scores, weight, kind)
        elif len(candidates) > 1:
            answer = reference.vote(scores, 5 if recipe == "ops_shared" else 3)
        else:
            answer = scores[0]
        found.append(torch.from_numpy(answer).movedim(-1, 0))
    return torch.stack(found)


def assert_answers(found: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    """Within a tolerance, relative to the largest score."""
    assert found.shape == expected.shape
    atol = tolerance * max(1.0, *expected.abs().flatten().tolist(), 0.0)
    torch.testing.assert_close(found.detach().double(), expected, rtol=tolerance, atol=atol)
