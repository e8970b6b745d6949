"""The answer for one image: as JSON, or as a PNG of labels with the rest in its headers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..label_maps import encode_label_map
from ..methods import Prediction
from ..predictor import Answers


@dataclass(frozen=True, eq=False)
class Answer:
    """p (…, classes) and λ (…) of the adapted model for one image, p of the source model, rows that were run."""

    adapted: Prediction
    source: Prediction | None
    rows: int

    @property
    def changed(self) -> float | None:
        """Whether the label is not the source model's, as 0 or 1; of label maps, the share of pixels."""
        return None if self.source is None else float((self.adapted.labels != self.source.labels).mean())

    @property
    def prior(self) -> float | None:
        """λ of the most certain candidate, rounded: 0.8, not 0.80000001; of label maps, the mean."""
        return None if self.adapted.priors is None else round(float(np.mean(self.adapted.priors)), 6)

    def to_json(self, names: Sequence[str], milliseconds: float) -> dict[str, Any]:
        """Return what a client gets for an image with one label."""
        top = _likeliest(self.adapted, names, 5)
        return {
            **top[0],
            **self._facts(milliseconds),
            "changed": None if self.changed is None else bool(self.changed),
            "source": None if self.source is None else _likeliest(self.source, names, 1)[0],
            "top": top,
        }

    def to_png(self) -> bytes:
        """Return a label map as a PNG."""
        return encode_label_map(self.adapted.labels, self.adapted.probabilities.shape[-1])

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


def split(answers: Answers) -> list[Answer]:
    """Return the answers of a batch one by one."""
    adapted, source = answers.adapted, answers.source
    return [
        Answer(
            Prediction(adapted.probabilities[index], None if adapted.priors is None else adapted.priors[index]),
            None if source is None else Prediction(source.probabilities[index]),
            int(answers.rows[index]),
        )
        for index in range(len(adapted.probabilities))
    ]


def _likeliest(predicted: Prediction, names: Sequence[str], count: int) -> list[dict[str, Any]]:
    p = predicted.probabilities
    known = len(names) == len(p)
    return [
        {"label": int(label), "name": names[label] if known else None, "probability": float(p[label])}
        for label in np.argsort(-p, kind="stable")[:count]
    ]
