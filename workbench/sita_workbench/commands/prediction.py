"""The predictions that `sita predict` shows: of a model, source and adapted, or of an exported file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..methods import Prediction
from ..predictor import Predictor


@dataclass(frozen=True, eq=False)
class Answer:
    """An image, and what the adapted and the source model predict for it: p (…, classes) and λ (…) of one image.

    An exported file reports λ, and what the source model says, only if it has diagnostics.
    """

    path: Path
    adapted: Prediction
    source: Prediction | None = None

    @property
    def classes(self) -> int:
        """How many classes the model has."""
        return int(self.adapted.probabilities.shape[-1])

    @property
    def changed(self) -> float:
        """Whether the label differs from the source model's; of label maps, the share of pixels."""
        return 0.0 if self.source is None else float((self.adapted.labels != self.source.labels).mean())


def predict_file(predictor: Predictor, path: Path, pixels: np.ndarray) -> Answer:
    """Return what is predicted for an image in bytes (h, w, 3)."""
    found = predictor.answer(pixels[None])
    adapted, source = found.adapted, found.source
    priors = None if adapted.priors is None else adapted.priors[0]
    return Answer(
        path,
        Prediction(adapted.probabilities[0], priors),
        None if source is None else Prediction(source.probabilities[0]),
    )
