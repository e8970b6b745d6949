"""What an exported file must answer, and whether it does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .description import Description
from .errors import ExportError
from .runtimes import Shape, first_line, open_exported
from .voting import probabilities

TITLES = {
    "onnx": "ONNX",
    "pt2": "torch.export",
    "torchscript": "TorchScript",
    "litert": "LiteRT",
    "saved_model": "SavedModel",
}

TOLERANCE = 1e-4
"""How far a probability of the file may be from the adapted model's."""

_STRAY_PIXELS = 1e-3
"""The share of an output's places that may be further off. Where two candidates are as certain as each other to the
last digits, rounding decides which of them counts; of many thousand pixels a few are such."""


@dataclass(frozen=True, eq=False)
class Expected:
    """Images, the adapted model's outputs on them in the file's order, and where its vote is a near tie, (N, …)."""

    images: np.ndarray
    outputs: list[np.ndarray]
    near_ties: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Check:
    """What an exported file takes (None: any number), and what it must answer.

    `batches` have several numbers of images. Which of the outputs the scores are is `scores_place`; None where none is
    known to be.
    """

    input_shape: Shape
    batches: tuple[Expected, ...]
    scores_place: int | None


def verify(path: Path, format: str, check: Check, description: Description, class_axis: int) -> float:
    """Return the largest difference from the adapted model's answers; raise where it is too large."""
    file = open_exported(path, format)
    largest = 0.0
    for batch in check.batches:
        images, expected = batch.images, batch.outputs
        try:
            answered = file.run(images)
        except Exception as error:
            raise ExportError(
                f"{file.runtime} cannot run the exported {TITLES[format]} on {len(images)} images: "
                f"{first_line(error)} Remedy: another format."
            ) from error
        if [array.shape for array in answered] != [array.shape for array in expected]:
            shapes = " and ".join(", ".join(str(a.shape) for a in arrays) for arrays in (expected, answered))
            raise ExportError(
                f"On {len(images)} images the adapted model and the exported {TITLES[format]} put out the shapes "
                f"{shapes}. The model's graph depends on its example. Remedy: another format, or "
                "an example of as many images as you will run."
            )
        for place, (wanted, given) in enumerate(zip(expected, answered, strict=True)):
            is_scores = place == check.scores_place
            gaps = _differences(wanted, given, description.scores if is_scores else None, class_axis)
            ties = batch.near_ties
            if is_scores and ties is not None and ties.shape == gaps.shape and not ties.all():
                gaps = np.where(ties, 0.0, gaps)
            largest = max(largest, float(gaps.max(initial=0.0)))
            if not np.mean(~(gaps <= TOLERANCE)) <= (_STRAY_PIXELS if is_scores and gaps.ndim > 1 else 0.0):
                raise ExportError(
                    f"The exported {TITLES[format]} answers otherwise than the adapted model: on {len(images)} images "
                    f"by up to {float(gaps.max()):.1e}, more than {TOLERANCE:.0e}. Nothing was written. Remedy: "
                    "another format, or another example, if two candidates of this one are equally certain."
                )
    return largest


def _differences(expected: np.ndarray, answered: np.ndarray, scores: str | None, class_axis: int) -> np.ndarray:
    """Return how far apart answers are: of scores the largest difference of a probability at every place.

    Of other outputs the difference of every number, relative to the largest of them or to 1, whichever is larger.
    """
    wanted, given = (array.astype(np.float64) for array in (expected, answered))
    if scores is None:
        return np.asarray(np.abs(wanted - given) / max(1.0, float(np.abs(wanted).max(initial=0.0))))
    gaps = np.abs(probabilities(wanted, scores, class_axis) - probabilities(given, scores, class_axis))
    return np.asarray(gaps.max(axis=class_axis) if gaps.ndim > 1 else gaps)
