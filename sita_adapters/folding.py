"""Models that fold more into their batch: time, tokens, patches.

A layer that sees B·R·T leading entries is taken to hold them as (B, R, T). A model that folds the other way round,
(T, B·R), as two concatenated streams do, would mix images. So two images are run, the first of them in two versions:
what changes must stay within the first half of the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import InputError

if TYPE_CHECKING:
    from .engine import Call

_NOTICEABLE = 1e-3
"""Of the largest change; rounding is far below."""


def parts_of_row(entries: Any, call: Call, name: str) -> Any:
    """Return T for a layer that sees this many leading entries, B·R·T; None where it is 1."""
    if call.ops.is_symbol(entries) or call.ops.is_symbol(call.entries):
        return None if entries is call.entries else entries // call.entries
    parts = int(entries // call.entries)
    if parts == 0 or entries != parts * call.entries:
        raise InputError(
            f"Layer {name!r} received {entries} leading entries for {call.entries} rows: the model folds its batch in "
            f"a way that cannot be followed. Expected a multiple of {call.entries}. Remedy: leave the layer out with "
            "layers=."
        )
    call.folds |= parts > 1
    return parts if parts > 1 else None


def probe_images(shape: Sequence[int], *, floating: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return two batches of two images; the first image differs, the second is the same."""
    random = np.random.default_rng(0)
    drawn = random.normal(size=(3, *shape)) if floating else random.integers(0, 256, (3, *shape))
    first, changed, second = drawn
    return np.stack([first, second]), np.stack([changed, second])


def check_entries(inputs_of_layers: Callable[[np.ndarray], list[tuple[str, np.ndarray]]], *batches: np.ndarray) -> None:
    """Raise where a layer's input mixes the entries of two images.

    `inputs_of_layers` runs the model on a batch of `probe_images` and returns the name and the input of each layer.
    """
    before, after = map(inputs_of_layers, batches)
    for (name, x), (_, y) in zip(before, after, strict=True):
        change = np.abs(x.astype(np.float64) - y).reshape(len(x), -1).max(axis=1)
        if len(x) % 2 or not change[len(x) // 2 :].max() <= _NOTICEABLE * change.max():
            raise InputError(
                f"Layer {name!r} receives the entries of an image apart from each other: the model concatenates "
                "batches, or folds time into them first, so that statistics would mix images. Expected an image's "
                "entries side by side, (N, T, …) reshaped to (N·T, …). Remedy: fold them so, or leave the layer out "
                "with layers=."
            )
