"""The result for one image: as JSON, or as the headers of a label map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..methods import Prediction
from ..predictor import Predictions


@dataclass(frozen=True, eq=False)
class ImageResult:
    """p (…, classes) and λ (…) of the adapted model for one image, p of the source model, rows that were run."""

    adapted: Prediction
    source: Prediction | None
    rows: int

    @property
    def changed(self) -> float | None:
        """Whether the label differs from the source model's, as 0 or 1; for label maps, the share of pixels."""
        return None if self.source is None else float((self.adapted.labels != self.source.labels).mean())

    @property
    def prior(self) -> float | None:
        """λ of the most confident candidate, rounded: 0.8, not 0.80000001; for label maps, the mean."""
        return None if self.adapted.priors is None else round(float(np.mean(self.adapted.priors)), 6)

    def to_json(self, names: Sequence[str], milliseconds: float) -> dict[str, Any]:
        """Return what a client gets for an image with one label."""
        top = _likeliest(self.adapted.probabilities, names)
        return {
            **top[0],
            **self._facts(milliseconds),
            "changed": None if self.changed is None else bool(self.changed),
            "source": None if self.source is None else _likeliest(self.source.probabilities, names)[0],
            "top": top,
        }

    def to_headers(self, milliseconds: float) -> dict[str, str]:
        """Return the headers of a label map."""
        facts = self._facts(milliseconds).items()
        return {f"X-Sita-{name.capitalize()}": f"{value:.6g}" for name, value in facts if value is not None}

    def _facts(self, milliseconds: float) -> dict[str, float | None]:
        return {
            "entropy": float(self.adapted.entropies.mean()),
            "prior": self.prior,
            "changed": self.changed,
            "rows": self.rows or None,
            "milliseconds": round(milliseconds, 3),
        }


def split(found: Predictions) -> list[ImageResult]:
    """Return the results of a batch one by one."""
    p, priors, source = found.adapted.probabilities, found.adapted.priors, found.source
    return [
        ImageResult(
            Prediction(p[index], None if priors is None else priors[index]),
            None if source is None else Prediction(source.probabilities[index]),
            int(rows),
        )
        for index, rows in enumerate(found.rows)
    ]


def _likeliest(p: np.ndarray, names: Sequence[str]) -> list[dict[str, Any]]:
    known = len(names) == len(p)
    return [
        {"label": int(label), "name": names[label] if known else None, "probability": float(p[label])}
        for label in np.argsort(-p, kind="stable")[:5]
    ]
