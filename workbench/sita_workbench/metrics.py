"""From what was kept of every image to scores, their 95 % intervals, and paired differences against the source.

Images are the unit that is resampled: the same images are seen under every condition and by every method, so that one
draw of images gives a score of each, and differences are paired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .answers import BINS

RESAMPLES = 2000
_ENTROPY_BINS = 10

Entries = Sequence[Mapping[str, np.ndarray]]
"""What was kept of the images under one condition, once for every seed."""


@dataclass(frozen=True, eq=False)
class Score:
    """A score in percent, and what it is in every resample of the images."""

    value: float
    resampled: np.ndarray

    def __sub__(self, other: Score) -> Score:
        return Score(self.value - other.value, self.resampled - other.resampled)

    def to_dict(self) -> dict[str, float]:
        """Return the score and its interval."""
        low, high = np.percentile(self.resampled, [2.5, 97.5])
        return {"score": _rounded(self.value), "low": _rounded(low), "high": _rounded(high)}


def mean_score(scores: Sequence[Score]) -> Score:
    """Return the mean over conditions, resample by resample."""
    return Score(
        float(np.mean([score.value for score in scores])), np.mean([score.resampled for score in scores], axis=0)
    )


def draw_weights(images: int, seed: int = 0) -> np.ndarray:
    """Return how much each image counts in each resample: (resamples, images), lines that sum to 1."""
    return np.random.default_rng(seed).multinomial(images, np.full(images, 1 / images), size=RESAMPLES) / images


def _rounded(value: float) -> float:
    return round(float(value), 4)


def score(entries: Entries, weights: np.ndarray) -> Score:
    """Return the accuracy, or where places were labelled the mean IoU, over all seeds."""
    if "said" in entries[0]:
        right = np.mean([each["said"] == each["label"] for each in entries], axis=0)
        return Score(100 * float(right.mean()), 100 * weights @ right)
    hits, claims, truth = (np.mean([each[name] for each in entries], axis=0) for name in ("hits", "claims", "truth"))
    alike = np.full(len(hits), 1 / len(hits))
    value = _mean_iou(alike[None] @ hits, alike[None] @ claims, alike[None] @ truth)
    return Score(float(value[0]), _mean_iou(weights @ hits, weights @ claims, weights @ truth))


def _mean_iou(hits: np.ndarray, claims: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """100 · mean over the classes that are anywhere of hits / (claims + truth − hits)."""
    union = claims + truth - hits
    iou = np.divide(hits, union, out=np.full(hits.shape, np.nan), where=union > 0)
    return np.asarray(100 * np.nanmean(iou, axis=1))


def calibration_error(entries: Entries) -> float:
    """ECE = Σ_bins share · |accuracy − confidence|, in percent, over 15 equal bins of confidence."""
    if "said" in entries[0]:
        confidence = np.concatenate([each["confidence"] for each in entries])
        right = np.concatenate([each["said"] == each["label"] for each in entries])
        place = np.minimum((confidence * BINS).astype(int), BINS - 1)
        count = np.bincount(place, minlength=BINS)
        sure = np.bincount(place, weights=confidence, minlength=BINS)
        hits = np.bincount(place, weights=right, minlength=BINS)
    else:
        names = ("bin_count", "bin_confidence", "bin_right")
        count, sure, hits = (np.sum([each[name].sum(axis=0) for each in entries], axis=0) for name in names)
    return float(100 * np.abs(hits - sure).sum() / count.sum())


def _mean_of(entries: Entries, name: str) -> float:
    return float(np.mean([each[name] for each in entries]))


def summarise_condition(entries: Entries, weights: np.ndarray) -> tuple[Score, dict[str, Any]]:
    """Return the score under one condition, and everything there is to say of it."""
    found = score(entries, weights)
    return found, {
        "images": len(entries[0]["nll"]),
        **found.to_dict(),
        "nll": _rounded(_mean_of(entries, "nll")),
        "ece": _rounded(calibration_error(entries)),
        "entropy": _rounded(_mean_of(entries, "entropy")),
    }


def summarise_mean(scores: Sequence[Score], conditions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the means over conditions."""
    means = {name: _rounded(np.mean([each[name] for each in conditions])) for name in ("nll", "ece", "entropy")}
    return {**mean_score(scores).to_dict(), **means}


def count_priors(entries: Entries, values: Sequence[float]) -> dict[str, Any] | None:
    """Return how often each λ was the most certain, and how often it was right then."""
    values = [round(value, 6) for value in sorted(values)]
    if "prior" in entries[0]:
        chosen = np.concatenate([each["prior"] for each in entries])
        right = np.concatenate([each["said"] == each["label"] for each in entries])
        count = [int((chosen == value).sum()) for value in values]
        hits = [int((right & (chosen == value)).sum()) for value in values]
        return {"values": values, "count": count, "right": hits}
    if "prior_values" in entries[0]:
        totals = {value: [0, 0] for value in values}
        for each in entries:
            for lambdas, counts, rights in zip(
                each["prior_values"], each["prior_count"], each["prior_right"], strict=True
            ):
                for value, count_, right_ in zip(lambdas, counts, rights, strict=True):
                    totals[float(value)][0] += int(count_)
                    totals[float(value)][1] += int(right_)
        return {
            "values": values,
            "count": [totals[value][0] for value in values],
            "right": [totals[value][1] for value in values],
        }
    return None


def bin_entropies(entries: Entries, classes: int) -> dict[str, Any] | None:
    """Return how many images have an entropy in each of ten bins up to log(classes), and how many are right."""
    if "said" not in entries[0]:
        return None
    edges = np.linspace(0.0, np.log(classes), _ENTROPY_BINS + 1)
    entropies = np.concatenate([each["entropy"] for each in entries])
    right = np.concatenate([each["said"] == each["label"] for each in entries])
    place = np.clip(np.searchsorted(edges, entropies, side="right") - 1, 0, _ENTROPY_BINS - 1)
    return {
        "edges": [_rounded(edge) for edge in edges],
        "count": np.bincount(place, minlength=_ENTROPY_BINS).tolist(),
        "right": np.bincount(place, weights=right, minlength=_ENTROPY_BINS).astype(int).tolist(),
    }
