"""From predictions to scores with 95 % intervals, and paired differences from the source model.

Images are the unit of resampling. The same images are run under every condition and by every method, so one resample of
the images gives a score of each, and differences are paired; `scipy.stats.bootstrap` cannot share its resamples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .methods import Prediction

RESAMPLES = 2000
_CALIBRATION_BINS = 15
_ENTROPY_BINS = 10
_DIGITS = 6

Entries = Sequence[Mapping[str, np.ndarray]]
"""What is kept of the images under one condition, one entry per seed."""


def make_entry(predicted: Prediction, labels: np.ndarray, ignore: int | None) -> dict[str, Any]:
    """Return what is kept of the predictions for N images: lists with one element per image."""
    kept = _keep_images(predicted, labels) if labels.ndim == 1 else _keep_maps(predicted, labels, ignore)
    return {name: np.round(values, _DIGITS).tolist() for name, values in kept.items()}


def _negative_log_likelihood(p: np.ndarray, labels: np.ndarray) -> np.ndarray:
    of_label = np.take_along_axis(p, labels[:, None], axis=1)[:, 0]
    return np.asarray(-np.log(np.maximum(of_label, np.finfo(np.float32).tiny)))


def _keep_images(predicted: Prediction, labels: np.ndarray) -> dict[str, np.ndarray]:
    p = predicted.probabilities
    kept = {
        "said": predicted.labels,
        "label": labels,
        "confidence": p.max(axis=1),
        "nll": _negative_log_likelihood(p, labels),
        "entropy": predicted.entropies,
    }
    return kept if predicted.priors is None else {**kept, "prior": predicted.priors}


def _keep_maps(predicted: Prediction, labels: np.ndarray, ignore: int | None) -> dict[str, np.ndarray]:
    """Sums over the pixels that count: per class the predicted, the true and the correct pixels; means of the rest."""
    classes = predicted.probabilities.shape[-1]
    values = None if predicted.priors is None else np.unique(predicted.priors)
    images = []
    for place, label_map in enumerate(labels):
        counts = np.ones(label_map.shape, bool) if ignore is None else label_map != ignore
        p, truth = predicted.probabilities[place][counts], label_map[counts]
        claim = predicted.labels[place][counts]
        right = claim == truth
        count, confidence, correct = _calibration_sums(p.max(axis=1), right)
        kept = {
            "hits": np.bincount(truth[right], minlength=classes),
            "claims": np.bincount(claim, minlength=classes),
            "truth": np.bincount(truth, minlength=classes),
            "nll": _negative_log_likelihood(p, truth).mean(),
            "entropy": predicted.entropies[place][counts].mean(),
            "pixels": len(truth),
            "bin_count": count,
            "bin_confidence": confidence,
            "bin_right": correct,
        }
        if values is not None and predicted.priors is not None:
            chosen = predicted.priors[place][counts]
            kept["prior_values"] = values
            kept["prior_count"] = [int((chosen == value).sum()) for value in values]
            kept["prior_right"] = [int((right & (chosen == value)).sum()) for value in values]
        images.append(kept)
    return {name: np.asarray([kept[name] for kept in images]) for name in images[0]}


def _calibration_sums(confidence: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return per bin of confidence: how many, the sum of their confidence, and how many are right."""
    place = np.minimum((confidence * _CALIBRATION_BINS).astype(int), _CALIBRATION_BINS - 1)
    return tuple(np.bincount(place, weights, minlength=_CALIBRATION_BINS) for weights in (None, confidence, right))


@dataclass(frozen=True, eq=False)
class Score:
    """A score in percent, and its value in every resample of the images."""

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
    """Return the weight of each image in each resample: (resamples, images), rows that sum to 1."""
    return np.random.default_rng(seed).multinomial(images, np.full(images, 1 / images), size=RESAMPLES) / images


def _rounded(value: float) -> float:
    return round(float(value), 4)


def score(entries: Entries, weights: np.ndarray) -> Score:
    """Return the accuracy, or for label maps the mean IoU, over all seeds."""
    if "said" in entries[0]:
        right = np.mean([each["said"] == each["label"] for each in entries], axis=0)
        return Score(100 * float(right.mean()), 100 * weights @ right)
    hits, claims, truth = (np.mean([each[name] for each in entries], axis=0) for name in ("hits", "claims", "truth"))
    equal = np.full((1, len(hits)), 1 / len(hits))
    value = _mean_iou(equal @ hits, equal @ claims, equal @ truth)
    return Score(float(value[0]), _mean_iou(weights @ hits, weights @ claims, weights @ truth))


def _mean_iou(hits: np.ndarray, claims: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """100 · mean of hits / (claims + truth − hits) over the classes that occur."""
    union = claims + truth - hits
    iou = np.divide(hits, union, out=np.full(hits.shape, np.nan), where=union > 0)
    return np.asarray(100 * np.nanmean(iou, axis=1))


def calibration_error(entries: Entries) -> float:
    """ECE = Σ_bins share · |accuracy − confidence|, in percent, over 15 equal bins of confidence."""
    if "said" in entries[0]:
        count, confidence, right = _calibration_sums(_joined(entries, "confidence"), _right(entries))
    else:
        names = ("bin_count", "bin_confidence", "bin_right")
        count, confidence, right = (np.sum([each[name].sum(axis=0) for each in entries], axis=0) for name in names)
    return float(100 * np.abs(right - confidence).sum() / count.sum())


def _joined(entries: Entries, name: str) -> np.ndarray:
    return np.concatenate([each[name] for each in entries])


def _right(entries: Entries) -> np.ndarray:
    return np.concatenate([each["said"] == each["label"] for each in entries])


def summarise_condition(entries: Entries, weights: np.ndarray) -> tuple[Score, dict[str, Any]]:
    """Return the score under one condition, and everything that the results say of it."""
    found = score(entries, weights)
    return found, {
        "images": len(entries[0]["nll"]),
        **found.to_dict(),
        "nll": _rounded(_joined(entries, "nll").mean()),
        "ece": _rounded(calibration_error(entries)),
        "entropy": _rounded(_joined(entries, "entropy").mean()),
    }


def summarise_mean(scores: Sequence[Score], conditions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the means over conditions."""
    means = {name: _rounded(np.mean([each[name] for each in conditions])) for name in ("nll", "ece", "entropy")}
    return {**mean_score(scores).to_dict(), **means}


def count_priors(entries: Entries, values: Sequence[float]) -> dict[str, Any] | None:
    """Return how often each λ, or the nearest, was the most certain, and how often the answer was right then."""
    values = [round(value, _DIGITS) for value in sorted(values)]
    if "prior" in entries[0]:
        chosen, right = _nearest(_joined(entries, "prior"), values), _right(entries)
        count = [int((chosen == place).sum()) for place in range(len(values))]
        hits = [int((right & (chosen == place)).sum()) for place in range(len(values))]
        return {"values": values, "count": count, "right": hits}
    if "prior_values" not in entries[0]:
        return None
    totals = {value: np.zeros(2, int) for value in values}
    for each in entries:
        images = zip(each["prior_values"], each["prior_count"], each["prior_right"], strict=True)
        for value, *counted in (line for image in images for line in zip(*image, strict=True)):
            totals[values[int(_nearest(np.array([value], float), values)[0])]] += np.asarray(counted, int)
    counts, rights = np.array(list(totals.values())).T.tolist()
    return {"values": values, "count": counts, "right": rights}


def _nearest(chosen: np.ndarray, values: Sequence[float]) -> np.ndarray:
    return np.asarray(np.abs(chosen[:, None] - np.asarray(values)).argmin(axis=1))


def bin_entropies(entries: Entries, classes: int) -> dict[str, Any] | None:
    """Return how many images have an entropy in each of ten bins up to log(classes), and how many are right."""
    if "said" not in entries[0]:
        return None
    edges = np.linspace(0.0, np.log(classes), _ENTROPY_BINS + 1)
    place = np.clip(np.searchsorted(edges, _joined(entries, "entropy"), side="right") - 1, 0, _ENTROPY_BINS - 1)
    return {
        "edges": [_rounded(edge) for edge in edges],
        "count": np.bincount(place, minlength=_ENTROPY_BINS).tolist(),
        "right": np.bincount(place, weights=_right(entries), minlength=_ENTROPY_BINS).astype(int).tolist(),
    }
