"""From what was kept of every image to scores and gains with intervals, by half and on all images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sita_workbench.metrics import Entry, Score, draw_weights, join_entries, score

from ..study.networks import Folders
from .images import SETS, Kind
from .measure import CHUNK, GROUPS, MANY_ROWS, RECIPES, key_of, open_log
from .networks import NETWORKS

HALVES = {"choosing": slice(0, None, 2), "confirming": slice(1, None, 2), "all": slice(None)}
"""Which images are in each half, in the order of their names."""


def summarize(name: str, folders: Folders, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a network's results: by set, metric, half and recipe; and what its rows measured on each set.

    Recipes with many rows keep their stored results if they did not run this time.
    """
    log = open_log(name, folders)
    log.close()
    found: dict[str, Any] = {}
    for images in NETWORKS[name].sets:
        files = SETS[images].list_files(folders)
        groups = np.array([SETS[images].group_of(file) for file in files])
        starts = range(0, len(files), CHUNK)
        keys = {group: [key_of(images, group, start) for start in starts] for group in GROUPS}
        entries = {
            group: [log.entries[key] for key in own] for group, own in keys.items() if set(own) <= set(log.entries)
        }
        recipes = {
            recipe: join_entries([entry["recipes"][recipe] for entry in own])
            for own in entries.values()
            for recipe in own[0]["recipes"]
        }
        metrics = metrics_of(SETS[images].kind)
        scores = {metric: _compare(recipes, groups, metric) for metric in metrics}
        _keep_stored(scores, stored.get(images, {}).get("scores", {}))
        found[images] = {
            "images": len(files),
            "groups": len(np.unique(groups)),
            "scores": scores,
            "rows": _describe(recipes, [entry["rows"] for entry in entries["cheap"]], metrics[0]),
        }
    if "clean" in log.entries:
        found["clean"] = {"images": len(log.entries["clean"]["rows"]["rule"]["shift"])}
        found["clean"] |= _means(log.entries["clean"]["rows"])
    return found


def _keep_stored(scores: dict[str, dict[str, Any]], stored: Mapping[str, Any]) -> None:
    """Add the stored scores and gains of the recipes with many rows, if they did not run."""
    for metric, halves in scores.items():
        for half, recipes in halves.items():
            for recipe in MANY_ROWS:
                known = stored.get(metric, {}).get(half, {}).get(recipe)
                if known and recipe not in recipes:
                    recipes[recipe] = {fact: known[fact] for fact in ("score", "low", "high", "gain")}


def metrics_of(kind: Kind) -> tuple[str, ...]:
    """Return the metrics of a kind of images, the one of README's table first."""
    return {"retina": ("Dice",), "faces": ("accuracy", "balanced accuracy")}.get(kind, ("accuracy",))


def _compare(recipes: Mapping[str, Entry], groups: np.ndarray, metric: str) -> dict[str, dict[str, Any]]:
    """Return by half the score of each recipe, and what it gains over the source."""
    found: dict[str, dict[str, Any]] = {}
    for half, where in HALVES.items():
        weights = draw_group_weights(groups[where])
        scores = {
            recipe: METRICS[metric]({fact: values[where] for fact, values in recipes[recipe].items()}, weights)
            for recipe in RECIPES
            if recipe in recipes
        }
        found[half] = {
            recipe: {**each.to_dict(), "gain": (each - scores["source"]).to_dict()} for recipe, each in scores.items()
        }
    return found


def draw_group_weights(groups: np.ndarray) -> np.ndarray:
    """Return the weight of each image in each resample: images of one group are drawn, or left out, together."""
    names, group_of_image = np.unique(groups, return_inverse=True)
    weights = draw_weights(len(names))[:, group_of_image]
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def dice(entry: Entry, weights: np.ndarray) -> Score:
    """Return the mean over images of 2 · |A ∩ B| / (|A| + |B|), in percent, for the pixels A and B of class 1."""
    each = 200 * entry["hits"][:, 1] / (entry["claims"] + entry["truth"])[:, 1]
    return Score(float(each.mean()), weights @ each)


def balanced_accuracy(entry: Entry, weights: np.ndarray) -> Score:
    """Return the mean over classes of the share of their images that are right, in percent."""
    right, own = entry["said"] == entry["label"], entry["label"][:, None] == np.unique(entry["label"])
    with np.errstate(invalid="ignore"):  # a class may be missing from a resample
        resampled = np.nanmean((weights @ (own & right[:, None])) / (weights @ own), axis=1)
    return Score(100 * float(np.mean([right[of].mean() for of in own.T])), 100 * resampled)


METRICS = {"accuracy": score, "balanced accuracy": balanced_accuracy, "Dice": dice}


def _describe(recipes: Mapping[str, Entry], rows: list[dict[str, Any]], metric: str) -> dict[str, float]:
    """Return the score of the adapted row of `auto` alone, and the means of what the rows measured."""
    rule = recipes["rule"]
    alone = METRICS[metric](rule, draw_weights(len(rule["nll"])))
    joined = {row: join_entries([part[row] for part in rows]) for row in rows[0]}
    return {"adapted row": alone.to_dict()["score"], **_means(joined)}


def _means(rows: Mapping[str, Any]) -> dict[str, float]:
    """Return the means over images of D, of the weight of the adapted row, and of the confidence of both rows."""
    facts = {
        "shift": rows["rule"]["shift"],
        "weight": rows["rule"]["weight"],
        "confidence": rows["rule"]["confidence"],
        "confidence of the source": rows["source"]["confidence"],
    }
    return {name: round(float(np.mean(values)), 4) for name, values in facts.items()}
