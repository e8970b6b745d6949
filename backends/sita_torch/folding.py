"""Whether a model that folds more into its batch keeps an image's rows together.

A layer that sees B·R·T leading entries is taken to hold them as (B, R, T): time or tokens folded in after the batch. A
model that folds the other way round, (T, B·R), as two concatenated streams do, would have images mixed without a
word. A NaN tells: put into the first of two images, it must stay within the first half of the entries.
"""

from __future__ import annotations

import torch

from sita_adapters.errors import InputError


def check_entries(x: torch.Tensor, name: str) -> None:
    """Raise unless a layer that is run on a `spoilt_pair` has all NaN in the first half of its entries."""
    spoilt = x.isnan().flatten(1).any(1)
    if x.shape[0] % 2 or bool(spoilt[x.shape[0] // 2 :].any()):
        raise InputError(
            f"Layer {name!r} receives the entries of an image apart from each other: the model concatenates batches, "
            "or folds time into them first, so that statistics would mix images. Expected an image's entries side by "
            "side, (N, T, …) flattened to N·T. Remedy: fold them so, or leave the layer out with layers=."
        )


def spoilt_pair(image: torch.Tensor) -> torch.Tensor:
    """Return two images, the first of them NaN."""
    return torch.cat([torch.full_like(image[:1], float("nan")), image[:1]])
