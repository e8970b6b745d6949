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

from .methods import SOURCE, Prediction

CHUNK = {"classification": 64, "segmentation": 8}
"""How many images are scored at once, which limits the memory of their predictions."""

METRIC = {"classification": "accuracy", "segmentation": "mIoU"}

RESAMPLES = 2000
_CALIBRATION_BINS = 15

Entry = Mapping[str, np.ndarray]
"""What is kept of images under one condition: arrays with one element per image."""


def make_entry(predicted: Prediction, labels: np.ndarray, ignore: int | None) -> dict[str, Any]:
    """Check labels (N, …) against the predictions; return what is kept: lists with one element per image."""
    *shape, classes = predicted.probabilities.shape
    counted = labels if ignore is None else labels[labels != ignore]
    if counted.size and (counted.min() < 0 or counted.max() >= classes):
        raise InputError(
            f"Expected labels from 0 to {classes - 1}, the model's classes; received {int(counted.min())} to "
            f"{int(counted.max())}. Try: a model with these classes, labels in its order, or `ignore` with the label "
            "of the pixels to ignore."
        )
    if labels.shape != tuple(shape):
        raise InputError(
            f"Expected predictions for labels of shape {labels.shape}; the model returns {tuple(shape)}. "
            "Try: labels of this shape, or a model whose output has the size of its input."
        )
    if labels.ndim == 1:
        kept = _keep(predicted.probabilities, labels)
    else:
        maps = [_keep_map(p, each, ignore) for p, each in zip(predicted.probabilities, labels, strict=True)]
        kept = {name: np.asarray([each[name] for each in maps]) for name in maps[0]}
    return {name: np.round(values, 6).tolist() for name, values in kept.items()}


def join_entries(parts: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return one entry for the images of several."""
    return {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0]}


def _keep(p: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    predicted = Prediction(p)
    of_label = np.take_along_axis(p, labels[:, None], axis=1)[:, 0]
    return {
        "said": predicted.labels,
        "label": labels,
        "confidence": predicted.confidences,
        "nll": -np.log(np.maximum(of_label, np.finfo(np.float32).tiny)),
        "entropy": predicted.entropies,
    }


def _keep_map(p: np.ndarray, labels: np.ndarray, ignore: int | None) -> dict[str, np.ndarray]:
    """Return sums over the pixels that count: predicted, true and correct ones of each class; means of the rest."""
    counts = np.full(labels.shape, True) if ignore is None else labels != ignore
    pixels = _keep(p[counts], labels[counts])
    right = _right(pixels)
    return {
        "hits": np.bincount(pixels["label"][right], minlength=p.shape[-1]),
        "claims": np.bincount(pixels["said"], minlength=p.shape[-1]),
        "truth": np.bincount(pixels["label"], minlength=p.shape[-1]),
        "nll": pixels["nll"].mean(),
        "entropy": pixels["entropy"].mean(),
        "bins": _calibration_sums(pixels["confidence"], right),
    }


def _right(entry: Entry) -> np.ndarray:
    return np.asarray(entry["said"] == entry["label"])


def _calibration_sums(confidence: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return per bin of confidence: how many, the sum of their confidence, and how many are right."""
    bins = np.minimum((confidence * _CALIBRATION_BINS).astype(int), _CALIBRATION_BINS - 1)
    return np.stack([np.bincount(bins, weights, _CALIBRATION_BINS) for weights in (None, confidence, right)])


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


ConditionScore = tuple[Score, dict[str, Any]]
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


def summarize_condition(entry: Entry, weights: np.ndarray) -> ConditionScore:
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


Parts = dict[str, dict[str, list[dict[str, Any]]]]
"""What `make_entry` returned for some images after others, by method and condition."""


def compare(parts: Parts, groups: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Return by method its facts by condition ("conditions"), and under the name of each group of conditions the means.

    A group also has the paired `gain` over the source model, and for classification the share of `changed` labels.
    """
    entries = {name: {each: join_entries(some) for each, some in own.items()} for name, own in parts.items()}
    counts = dict.fromkeys(len(entry["nll"]) for entry in entries[SOURCE].values())
    # Conditions of the same images share their resamples; those of other images have independent ones.
    weights = {count: draw_weights(count, seed) for seed, count in enumerate(counts)}
    found = {
        name: {condition: summarize_condition(entry, weights[len(entry["nll"])]) for condition, entry in own.items()}
        for name, own in entries.items()
    }
    return {
        name: {"conditions": {condition: facts for condition, (_, facts) in own.items()}}
        | {group: _compare_group(name, entries, found, conditions) for group, conditions in groups.items()}
        for name, own in found.items()
    }


def _compare_group(
    name: str,
    entries: Mapping[str, Mapping[str, Entry]],
    found: Mapping[str, Mapping[str, ConditionScore]],
    conditions: Sequence[str],
) -> dict[str, Any] | None:
    if not conditions:
        return None
    scores, facts = zip(*(found[name][condition] for condition in conditions), strict=True)
    means = summarize_mean(scores, facts)
    if name == SOURCE:
        return {**means, "gain": None, "changed": None}
    gain = mean_score(scores) - mean_score([found[SOURCE][condition][0] for condition in conditions])
    own, source = (join_entries([entries[each][condition] for condition in conditions]) for each in (name, SOURCE))
    changed = _rounded(np.mean(own["said"] != source["said"])) if "said" in own else None  # label maps are not kept
    return {**means, "gain": gain.to_dict(), "changed": changed}
