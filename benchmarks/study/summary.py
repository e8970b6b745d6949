"""From what was kept of every image to scores, gains with intervals, and calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sita_workbench.corruptions import KINDS
from sita_workbench.metrics import (
    Score,
    calibration_error,
    draw_weights,
    join_entries,
    mean_score,
    summarize_condition,
    summarize_mean,
)

from .measure import COUNTS, SEVERITIES, open_log
from .networks import NETWORKS, Folders

Entry = Mapping[str, np.ndarray]


def summarize(name: str, folders: Folders) -> dict[str, Any]:
    """Return a network's results: by recipe on clean images and at each severity, and on the images of `ops`."""
    log = open_log(name, folders)
    entries = {
        key: {recipe: _as_arrays(kept) for recipe, kept in entry["recipes"].items()}
        for key, entry in log.entries.items()
        if "recipes" in entry
    }
    clean = {"held out": entries["clean"]}
    if "clean, choose" in entries:
        clean["all"] = {
            recipe: join_entries([kept, entries["clean, choose"][recipe]]) for recipe, kept in entries["clean"].items()
        }
    found: dict[str, Any] = {
        "calibrate": log.entries["calibrate"],
        "images": {"clean": _count(clean["held out"]), "corrupted": _count(entries[f"{KINDS[0]}/5"])},
        "clean": {which: _compare([each]) for which, each in clean.items()},
        "severities": {str(s): _compare([entries[f"{kind}/{s}"] for kind in KINDS]) for s in SEVERITIES},
        "kinds": {str(s): _by_kind([entries[f"{kind}/{s}"] for kind in KINDS]) for s in SEVERITIES},
    }
    some = {}
    for severity in COUNTS[NETWORKS[name].kind].ops_severities:
        positions_of_ops = [log.entries[f"{kind}/{severity}"]["ops"] for kind in KINDS]
        restricted = [
            {recipe: kept if recipe == "ops" else _take(kept, where) for recipe, kept in entries[key].items()}
            for key, where in zip([f"{kind}/{severity}" for kind in KINDS], positions_of_ops, strict=True)
        ]
        some[str(severity)] = _compare(restricted)
        found["images"]["ops"] = len(positions_of_ops[0])
    found["with ops"] = some
    return found


def _as_arrays(kept: Mapping[str, Any]) -> Entry:
    return {name: np.asarray(values) for name, values in kept.items()}


def _take(kept: Entry, positions: Sequence[int]) -> Entry:
    return {name: values[list(positions)] for name, values in kept.items()}


def _count(recipes: Mapping[str, Entry]) -> int:
    return len(recipes["source"]["nll"])


def _compare(conditions: Sequence[Mapping[str, Entry]]) -> dict[str, Any]:
    """Return score, gain over the source, ECE and NLL of each recipe that ran on all images, over all conditions."""
    weights = draw_weights(_count(conditions[0]))
    recipes = [recipe for recipe, kept in conditions[0].items() if len(kept["nll"]) == weights.shape[1]]
    scores: dict[str, Score] = {}
    found: dict[str, Any] = {}
    for recipe in recipes:
        pairs = [summarize_condition(each[recipe], weights) for each in conditions]
        scores[recipe] = mean_score([score for score, _ in pairs])
        found[recipe] = summarize_mean([score for score, _ in pairs], [facts for _, facts in pairs])
        del found[recipe]["entropy"]
        found[recipe]["ece"] = round(calibration_error(join_entries([each[recipe] for each in conditions])), 4)
    for recipe in recipes:
        found[recipe]["gain"] = (scores[recipe] - scores["source"]).to_dict()
        if recipe != "auto" and "auto" in scores:
            found[recipe]["over auto"] = (scores[recipe] - scores["auto"]).to_dict()
    return found


def _by_kind(conditions: Sequence[Mapping[str, Entry]]) -> dict[str, dict[str, float]]:
    """Return what each recipe gains under each kind of corruption."""
    compared = {kind: _compare([each]) for kind, each in zip(KINDS, conditions, strict=True)}
    return {recipe: {kind: compared[kind][recipe]["gain"]["score"] for kind in KINDS} for recipe in compared[KINDS[0]]}
