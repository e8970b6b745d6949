"""An answer as JSON; where every pixel gets a label, as a picture of the labels with the rest in its headers."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np

from ..methods import Prediction
from .batching import One

TOP = 5

Naming = Callable[[int, int], "str | None"]
"""Returns the name of a label of so many classes, where it is known."""


def changed(one: One) -> float | None:
    """Return whether the label is not the source model's, as 0 or 1; of label maps, the share of pixels."""
    return None if one.source is None else float((one.adapted.labels != one.source.labels).mean())


def prior(one: One) -> float | None:
    """Return λ of the most certain candidate; of label maps, the mean."""
    return None if one.adapted.priors is None else round(float(np.mean(one.adapted.priors)), 6)  # 0.8, not 0.80000001


def to_json(one: One, name: Naming, milliseconds: float) -> dict[str, Any]:
    """Return an image's answer."""
    top = _likeliest(one.adapted, name, TOP)
    share = changed(one)
    return {
        **top[0],
        "entropy": float(one.adapted.entropies),
        "prior": prior(one),
        "source": None if one.source is None else _likeliest(one.source, name, 1)[0],
        "changed": None if share is None else bool(share),
        "top": top,
        "rows": one.rows or None,
        "milliseconds": round(milliseconds, 3),
    }


def to_png(one: One) -> bytes:
    """Return a label map as a PNG: in 8 bits, or in 16 where there are more than 256 classes."""
    from PIL import Image

    small = one.adapted.probabilities.shape[-1] <= 256
    buffer = io.BytesIO()
    Image.fromarray(one.adapted.labels.astype(np.uint8 if small else np.uint16)).save(buffer, "PNG")
    return buffer.getvalue()


def to_headers(one: One, milliseconds: float) -> dict[str, str]:
    """Return what is to be said of a label map: means over its pixels."""
    facts = {
        "Entropy": float(one.adapted.entropies.mean()),
        "Prior": prior(one),
        "Changed": changed(one),
        "Rows": one.rows or None,
        "Milliseconds": round(milliseconds, 3),
    }
    return {f"X-Sita-{name}": f"{value:.6g}" for name, value in facts.items() if value is not None}


def _likeliest(predicted: Prediction, name: Naming, count: int) -> list[dict[str, Any]]:
    p = predicted.probabilities
    order = np.argsort(-p, kind="stable")[:count]
    return [{"label": int(label), "name": name(int(label), len(p)), "probability": float(p[label])} for label in order]
