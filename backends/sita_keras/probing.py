"""How a twin runs, looked at once, when a model is adapted: which layers it calls, and how it folds its batch.

A layer that sees B·R·T leading entries is taken to hold them as (B, R, T): time or tokens folded in after the batch. A
model that folds the other way round, (T, B·R), would have images mixed without a word. So two images are run, the first
of them in two versions: what changes must stay within the first half of the entries.
"""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
from keras import ops
from keras.src.backend import compute_output_spec

from sita_adapters.errors import BypassError, InputError, SitaError, SitaWarning

from .blending import check_fold
from .calls import Call
from .layers import Body

_OPEN_SIZE = 64
"""The size of an image where the model takes any."""

_NOTICEABLE = 1e-3
"""Of the largest change; rounding is far below."""


def check_run(body: Body, names: dict[int, str], image: Any) -> None:
    """Raise or warn where layers, named by id, that should blend are not called, or would be handed mixed images."""
    if not body.plan.blends:
        return
    leading = 2 * body.plan.rows
    sizes: dict[int, set[int | None]] = {}
    call = Call(leading, watch=lambda layer, x: sizes.setdefault(id(layer), set()).add(x.shape[0]))
    rows = keras.KerasTensor((leading, *image.shape[1:]), dtype=image.dtype)
    compute_output_spec(lambda x: body.run(x, call), rows)
    _check_called(body, names, sizes)
    for layer, found in sizes.items():
        for size in found - {None}:
            check_fold(size or 0, leading, names[layer])
    if any(found != {leading} for found in sizes.values()):
        _check_entries(body, names, image)


def _check_called(body: Body, names: dict[int, str], called: dict[int, Any]) -> None:
    missed = [name for layer, name in names.items() if layer not in called]
    model = type(body.source).__name__
    if not called:
        raise BypassError(
            f"{model} calls none of its {len(names)} adapted layers, so nothing would be adapted. Expected layers that "
            "are called, not their variables used by functions (ops.batch_normalization)."
        )
    if missed:
        warnings.warn(
            f"{model} does not call {len(missed)} of its {len(names)} adapted layers, which so have no effect: "
            f"{', '.join(missed)}. Remedy: leave them out with layers=, if that is as it should be.",
            SitaWarning,
            stacklevel=5,
        )


def _check_entries(body: Body, names: dict[int, str], image: Any) -> None:
    random = np.random.default_rng(0)
    shape = [size or _OPEN_SIZE for size in image.shape[1:]]
    floating = keras.backend.is_float_dtype(image.dtype)
    first, changed, second = random.normal(size=(3, *shape)) if floating else random.integers(0, 256, (3, *shape))
    before, after = (_entries(body, np.stack([one, second]), image.dtype) for one in (first, changed))
    for (layer, x), (_, y) in zip(before, after, strict=True):
        change = np.abs(x - y).reshape(len(x), -1).max(axis=1)
        if change[len(x) // 2 :].max() > _NOTICEABLE * change.max():
            raise InputError(
                f"Layer {names[layer]!r} receives the entries of an image apart from each other: the model "
                "concatenates batches, or folds time into them first, so that statistics would mix images. Expected an "
                "image's entries side by side, (N, T, …) reshaped to (N·T, …). Remedy: fold them so, or leave the "
                "layer out with layers=."
            )


def _entries(body: Body, pair: np.ndarray, dtype: str) -> list[tuple[int, np.ndarray]]:
    """Return what every layer is handed in a run on two images."""
    seen: list[tuple[int, np.ndarray]] = []

    def watch(layer: Any, x: Any) -> None:
        seen.append((id(layer), ops.convert_to_numpy(ops.cast(x, "float32"))))

    try:
        body.run(ops.convert_to_tensor(pair, dtype=dtype), Call(2, watch=watch))
    except SitaError:
        raise
    except Exception as error:
        raise InputError(
            f"{type(body.source).__name__} folds its batch, and how cannot be found out: on two images of shape "
            f"{pair.shape[1:]} it fails ({error}). Remedy: build it for images of one size, (N, T, …) reshaped to "
            "(N·T, …), or leave the layers behind the fold out with layers=."
        ) from error
    return seen
