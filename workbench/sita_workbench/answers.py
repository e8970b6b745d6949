"""What is kept of a method's answers: per image, what every metric can be computed from."""

from __future__ import annotations

from typing import Any

import numpy as np

from .methods import Said

BINS = 15
"""Equal bins of confidence, for the calibration error."""

_DIGITS = 6


def record(said: Said, labels: np.ndarray, ignore: int | None) -> dict[str, Any]:
    """Return an entry of the ledger for N images: lists with an element an image."""
    made = _of_images(said, labels) if labels.ndim == 1 else _of_maps(said, labels, ignore)
    return {name: np.round(values, _DIGITS).tolist() for name, values in made.items()}


def _uncertainty(p: np.ndarray) -> np.ndarray:
    return np.asarray(-np.sum(p * np.log(np.where(p > 0, p, 1.0)), axis=1))


def _surprise(p: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """−log of the probability of the right class."""
    right = np.take_along_axis(p, labels[:, None], axis=1)[:, 0]
    return np.asarray(-np.log(np.maximum(right, np.finfo(np.float32).tiny)))


def _of_images(said: Said, labels: np.ndarray) -> dict[str, np.ndarray]:
    p = said.probabilities
    made = {
        "said": p.argmax(axis=1),
        "label": labels,
        "confidence": p.max(axis=1),
        "nll": _surprise(p, labels),
        "entropy": _uncertainty(p),
    }
    return made if said.priors is None else {**made, "prior": said.priors}


def _of_maps(said: Said, labels: np.ndarray, ignore: int | None) -> dict[str, np.ndarray]:
    """Sums over the pixels that count: per class what was said, what is there and both; means of the rest."""
    p = said.probabilities
    classes = p.shape[1]
    made: dict[str, list[Any]] = {name: [] for name in ("hits", "claims", "truth", "nll", "entropy", "pixels")}
    bins: dict[str, list[Any]] = {name: [] for name in ("bin_count", "bin_confidence", "bin_right")}
    priors: dict[str, list[Any]] = {"prior_values": [], "prior_count": [], "prior_right": []}
    values = None if said.priors is None else np.unique(said.priors)
    for place, truth_map in enumerate(labels):
        counts = truth_map != ignore if ignore is not None else np.ones(truth_map.shape, bool)
        pixels, truth = p[place][:, counts].T, truth_map[counts]
        claim = pixels.argmax(axis=1)
        right = claim == truth
        made["hits"].append(np.bincount(truth[right], minlength=classes))
        made["claims"].append(np.bincount(claim, minlength=classes))
        made["truth"].append(np.bincount(truth, minlength=classes))
        made["pixels"].append(len(truth))
        made["nll"].append(_surprise(pixels, truth).mean())
        made["entropy"].append(_uncertainty(pixels).mean())
        confidence = pixels.max(axis=1)
        bin_of = np.minimum((confidence * BINS).astype(int), BINS - 1)
        for name, weights in (("bin_count", None), ("bin_confidence", confidence), ("bin_right", right)):
            bins[name].append(np.bincount(bin_of, weights=weights, minlength=BINS))
        if values is not None and said.priors is not None:
            chosen = said.priors[place][counts]
            priors["prior_values"].append(values)
            priors["prior_count"].append([int((chosen == value).sum()) for value in values])
            priors["prior_right"].append([int((right & (chosen == value)).sum()) for value in values])
    everything = {**made, **bins, **(priors if values is not None else {})}
    return {name: np.asarray(each) for name, each in everything.items()}
