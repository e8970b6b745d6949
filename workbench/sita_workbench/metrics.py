"""From predictions to scores with 95 % intervals, and paired differences from the source model.

Images are the unit of resampling. The same images are run under every condition and by every method, so one resample of
the images gives a score of each, and differences are paired; `scipy.stats.bootstrap` cannot share its resamples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sita_adapters.errors import InputError

from .methods import Prediction, PreparedMethod

CHUNK = {"classification": 64, "segmentation": 8}
"""How many images are scored at once. Batches that share statistics must divide it."""

RESAMPLES = 2000
_CALIBRATION_BINS = 15
_ENTROPY_BINS = 10
_DIGITS = 6

Entry = Mapping[str, np.ndarray]
"""What is kept of images under one condition: arrays with one element per image."""


def score_images(
    prepared: PreparedMethod, images: np.ndarray, labels: np.ndarray, ignore: int | None
) -> dict[str, Any]:
    """Run a method on encoded images (N, h, w, channels); return what is kept of each, as `make_entry` does."""
    predicted = prepared.predict(images)
    *shape, classes = predicted.probabilities.shape
    counted = labels if ignore is None else labels[labels != ignore]
    if counted.size and (counted.min() < 0 or counted.max() >= classes):
        raise InputError(
            f"Expected labels from 0 to {classes - 1}, the model's classes; received {int(counted.min())} to "
            f"{int(counted.max())}. Try: a model of these classes, labels in its order, or `ignore` for the label of "
            "pixels that do not count."
        )
    if labels.shape != tuple(shape):
        raise InputError(
            f"Expected predictions for labels of shape {labels.shape}; the model returns {tuple(shape)}. "
            "Try: labels of this shape, or a model whose output has the size of its input."
        )
    return make_entry(predicted, labels, ignore, prepared.method.priors)


def make_entry(
    predicted: Prediction, labels: np.ndarray, ignore: int | None, priors: Sequence[float] = ()
) -> dict[str, Any]:
    """Return what is kept of the predictions for N images: lists with one element per image.

    `priors` are the values of λ to count; each chosen λ counts as the nearest of them.
    """
    if labels.ndim == 1:
        kept = _keep(predicted, labels, priors)
    else:
        maps = [_keep_map(predicted[i], labels[i], ignore, priors) for i in range(len(labels))]
        kept = {name: np.asarray([each[name] for each in maps]) for name in maps[0]}
    return {name: np.round(values, _DIGITS).tolist() for name, values in kept.items()}


def join_entries(parts: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return one entry for the images of several."""
    return {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0]}


def _keep(predicted: Prediction, labels: np.ndarray, priors: Sequence[float]) -> dict[str, np.ndarray]:
    of_label = np.take_along_axis(predicted.probabilities, labels[:, None], axis=1)[:, 0]
    kept = {
        "said": predicted.labels,
        "label": labels,
        "confidence": predicted.confidences,
        "nll": -np.log(np.maximum(of_label, np.finfo(np.float32).tiny)),
        "entropy": predicted.entropies,
    }
    if priors and predicted.priors is not None:
        kept["prior"] = np.searchsorted((np.asarray(priors[1:]) + priors[:-1]) / 2, predicted.priors)
    return kept


def _keep_map(
    predicted: Prediction, labels: np.ndarray, ignore: int | None, priors: Sequence[float]
) -> dict[str, np.ndarray]:
    """Return sums over the pixels that count: predicted, true and correct ones of each class; means of the rest."""
    classes = predicted.probabilities.shape[-1]
    counts = np.full(labels.shape, True) if ignore is None else labels != ignore
    pixels = _keep(predicted[counts], labels[counts], priors)
    right = pixels["said"] == pixels["label"]
    kept = {
        "hits": np.bincount(pixels["label"][right], minlength=classes),
        "claims": np.bincount(pixels["said"], minlength=classes),
        "truth": np.bincount(pixels["label"], minlength=classes),
        "nll": pixels["nll"].mean(),
        "entropy": pixels["entropy"].mean(),
        "bins": _calibration_sums(pixels["confidence"], right),
    }
    if "prior" in pixels:
        kept["priors"] = _count_priors(pixels["prior"], right, len(priors))
    return kept


def _count_priors(chosen: np.ndarray, right: np.ndarray, priors: int) -> np.ndarray:
    """Return how often each prior was chosen, and how often the prediction was right then."""
    return np.stack([np.bincount(chosen[which], minlength=priors) for which in (slice(None), right)])


def _calibration_sums(confidence: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return per bin of confidence: how many, the sum of their confidence, and how many are right."""
    place = np.minimum((confidence * _CALIBRATION_BINS).astype(int), _CALIBRATION_BINS - 1)
    return np.stack([np.bincount(place, weights, _CALIBRATION_BINS) for weights in (None, confidence, right)])


@dataclass(frozen=True, eq=False)
class Score:
    """A score in percent, and its value in every resample of the images."""

    value: float
    resampled: np.ndarray

    def __sub__(self, other: Score) -> Score:
        return Score(self.value - other.value, self.resampled - other.resampled)

    def to_dict(self) -> dict[str, float]:
        """Return the score and its 95 % interval."""
        low, high = np.percentile(self.resampled, [2.5, 97.5])
        return {"score": _rounded(self.value), "low": _rounded(low), "high": _rounded(high)}


Condition = tuple[Score, dict[str, Any]]
"""A score under one condition, and everything that the results say of it."""


def mean_score(scores: Sequence[Score]) -> Score:
    """Return the mean over conditions, resample by resample."""
    resampled = np.mean([score.resampled for score in scores], axis=0)
    return Score(float(np.mean([score.value for score in scores])), resampled)


def draw_weights(images: int, seed: int = 0) -> np.ndarray:
    """Return the weight of each image in each resample: (resamples, images), rows that sum to 1."""
    return np.random.default_rng(seed).multinomial(images, np.full(images, 1 / images), size=RESAMPLES) / images


def _rounded(value: float) -> float:
    return round(float(value), 4)


def score(entry: Entry, weights: np.ndarray) -> Score:
    """Return the accuracy, or for label maps the mean IoU."""
    if "said" in entry:
        right = _right(entry)
        return Score(100 * float(right.mean()), 100 * weights @ right)
    counted = entry["hits"], entry["claims"], entry["truth"]
    value = _mean_iou(*(each.sum(axis=0, keepdims=True) for each in counted))
    return Score(float(value[0]), _mean_iou(*(weights @ each for each in counted)))


def _mean_iou(hits: np.ndarray, claims: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """100 · mean of hits / (claims + truth − hits) over the classes that occur."""
    union = claims + truth - hits
    iou = np.divide(hits, union, out=np.full(hits.shape, np.nan), where=union > 0)
    return np.asarray(100 * np.nanmean(iou, axis=1))


def calibration_error(entry: Entry) -> float:
    """ECE = Σ_bins share · |accuracy − confidence|, in percent, over 15 equal bins of confidence."""
    sums = _calibration_sums(entry["confidence"], _right(entry)) if "said" in entry else entry["bins"].sum(axis=0)
    count, confidence, right = sums
    return float(100 * np.abs(right - confidence).sum() / count.sum())


def _right(entry: Entry) -> np.ndarray:
    return np.asarray(entry["said"] == entry["label"])


def summarize_condition(entry: Entry, weights: np.ndarray) -> Condition:
    """Return the score under one condition, NLL, ECE and entropy."""
    found = score(entry, weights)
    return found, {
        "images": len(entry["nll"]),
        **found.to_dict(),
        "nll": _rounded(entry["nll"].mean()),
        "ece": _rounded(calibration_error(entry)),
        "entropy": _rounded(entry["entropy"].mean()),
    }


def summarize_mean(scores: Sequence[Score], conditions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the means over conditions."""
    means = {name: _rounded(np.mean([each[name] for each in conditions])) for name in ("nll", "ece", "entropy")}
    return {**mean_score(scores).to_dict(), **means}


def summarize_group(own: Sequence[Condition], source: Sequence[Condition]) -> dict[str, Any]:
    """Return a method's means over conditions, and its paired gain over the source model under the same conditions."""
    scores, facts = zip(*own, strict=True)
    gain = mean_score(scores) - mean_score([score for score, _ in source])
    return {**summarize_mean(scores, facts), "gain": gain.to_dict()}


def count_priors(entry: Entry, priors: Sequence[float]) -> dict[str, Any]:
    """Return how often each λ was the most certain, and how often the prediction was right then."""
    counts = _count_priors(entry["prior"], _right(entry), len(priors)) if "prior" in entry else entry["priors"].sum(0)
    count, right = counts.tolist()
    return {"values": [round(prior, _DIGITS) for prior in priors], "count": count, "right": right}


def bin_entropies(entry: Entry, classes: int) -> dict[str, Any]:
    """Return how many images have an entropy in each of ten bins up to log(classes), and how many are right."""
    edges = np.linspace(0.0, np.log(classes), _ENTROPY_BINS + 1)
    place = np.clip(np.searchsorted(edges, entry["entropy"], side="right") - 1, 0, _ENTROPY_BINS - 1)
    right = place[_right(entry)]
    return {
        "edges": [_rounded(edge) for edge in edges],
        "count": np.bincount(place, minlength=_ENTROPY_BINS).tolist(),
        "right": np.bincount(right, minlength=_ENTROPY_BINS).tolist(),
    }
