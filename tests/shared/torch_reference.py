"""What a PyTorch model answers, one image at a time, in float64."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import reference
import torch
from torch import nn

TURNS = [lambda x, k=k: torch.rot90(x, k, dims=(-2, -1)) for k in (0, 1, 3)]
FLIPS = [lambda x: x, lambda x: x.flip(-2), lambda x: x.flip(-1)]

RECIPES: dict[str, dict[str, Any]] = {"auto": {}, "shift": {}, "augbn": {"priors": 0.9}, "ops": {}, "bn": {}}
"""The recipes that most tests use, and the fields that `adapt` takes for them."""


def run_rows(
    model: nn.Module,
    image: torch.Tensor,
    views: Sequence[Callable[[torch.Tensor], torch.Tensor]],
    rows: Sequence[reference.Row],
    *,
    channel_axis: int = 1,
    adapted: Collection[str] | None = None,
    calls: list[list[reference.LayerCall]] | None = None,
) -> Any:
    """Return the output of every row of one image (without batch axis), in float64.

    The rows run as one batch through a copy of the model. Behind every layer with running statistics its output is
    replaced: each row goes through a layer of its own, whose statistics are overwritten by the blend, so the
    framework's own layer does the rest. `adapted` names the layers; `calls` takes what each row measured.
    """
    model = copy.deepcopy(model).double().eval()
    norms = {name: module for name, module in model.named_modules() if hasattr(module, "running_var")}
    measured: list[list[reference.LayerCall]] = [[] for _ in rows] if calls is None else calls
    measured.extend([] for _ in range(len(rows) - len(measured)))
    for name, norm in norms.items():
        if adapted is None or name in adapted:
            hook = functools.partial(_normalize_row_by_row, copy.deepcopy(norm), name, rows, measured, channel_axis)
            norm.register_forward_hook(hook)
    with torch.no_grad():
        output = model(torch.cat([views[row.view](image.double()[None]) for row in rows]))
    assert any(measured) or all(row.prior == 1 for row in rows), "no layer ran"
    return list(output) if isinstance(output, torch.Tensor) else output


def _normalize_row_by_row(  # noqa: PLR0917
    layer: nn.Module,
    name: str,
    rows: Sequence[reference.Row],
    measured: list[list[reference.LayerCall]],
    channel_axis: int,
    _: nn.Module,
    args: tuple[torch.Tensor],
    output: torch.Tensor,
) -> torch.Tensor:
    """A row may have several entries of the batch: time or tokens that are folded in."""
    parts = args[0].unflatten(0, (len(rows), -1)).unbind(0)
    by_channel = [part.movedim(channel_axis, 0).flatten(1).numpy() for part in parts]
    means, variances = (np.stack([getattr(each, kind)(axis=1) for each in by_channel]) for kind in ("mean", "var"))
    answers, area = [], reference.first_area(measured, by_channel[0].shape[1])
    for r, (row, part) in enumerate(zip(rows, parts, strict=True)):
        own = copy.deepcopy(layer)
        source = own.running_mean.flatten().numpy(), own.running_var.flatten().numpy()
        mean, variance, call = reference.blend(row, means, variances, source, own.eps, area, name)
        own.running_mean.copy_(torch.from_numpy(mean.copy()).view_as(own.running_mean))
        own.running_var.copy_(torch.from_numpy(variance.copy()).view_as(own.running_var))
        measured[r] += [] if call is None else [call]
        answers.append(own(part))
    return torch.cat(answers).reshape_as(output)


def answers(
    model: nn.Module,
    batch: torch.Tensor,
    recipe: str = "auto",
    kind: str | None = "logits",
    whole: bool = False,
    **options: Any,
) -> torch.Tensor:
    """Return the answers of a model that returns one tensor; classes on axis 1. `options` are those of `run_rows`.

    Without a `kind`, the output holds no scores. `whole`: one row supplies the answer, because others stand beside it.
    """
    views = TURNS if batch.shape[-1] == batch.shape[-2] else FLIPS
    priors = (0.9,) if recipe == "augbn" else reference.PAPER_PRIORS
    rows, candidates = reference.rows_of(recipe, len(views) - 1, priors)
    found = []
    for image in batch:
        calls: list[list[reference.LayerCall]] = []
        output = run_rows(model, image, views, rows, calls=calls, **options)
        scores = np.stack([output[row].movedim(0, -1).numpy() for row in candidates])
        if recipe == "auto":
            weights = reference.mix_weights(scores, [reference.image_shift(each) for each in calls], kind)
            selects = whole or kind is None
            answer = scores[np.argmax(weights)] if selects else reference.mix(scores, weights, kind)
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
