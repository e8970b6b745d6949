"""From what was kept of every image to scores, gains with intervals, and calibration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sita_workbench.metrics import (
    Entry,
    Score,
    calibration_error,
    draw_weights,
    join_entries,
    mean_score,
    summarize_condition,
    summarize_mean,
)

from .measure import GROUPS, WITH_OPS, open_log
from .networks import Folders
from .rows import PREVIOUS

NEW = ("auto", "restore", "calibrated")
"""The recipes that are compared with the previous default."""


def summarize(name: str, folders: Folders) -> dict[str, Any]:
    """Return a network's results by recipe: in each group of conditions, by kind, and on the images of `ops`."""
    log = open_log(name, folders)
    log.close()
    groups: dict[str, list[dict[str, Entry]]] = {group: [] for group in GROUPS}
    some: list[dict[str, Entry]] = []
    for group, conditions in GROUPS.items():
        for condition in conditions:
            kept = log.entries[str(condition)]
            every = {recipe: join_entries([entry]) for recipe, entry in kept["recipes"].items()}
            ops = every.pop("ops", None)
            groups[group].append(every)
            if ops is not None:
                some.append({recipe: _take(entry, kept["ops"]) for recipe, entry in every.items()} | {"ops": ops})
    found = {
        "calibrate": {fact: log.entries["calibrate"][fact] for fact in ("k", "notes")},
        "images": {group: len(each[0]["source"]["nll"]) for group, each in groups.items()},
        "groups": {group: compare(each) for group, each in groups.items()},
        "kinds": {group: _by_kind(group, groups[group]) for group in (WITH_OPS, "hold-out")},
    }
    if some:
        found["images"]["ops"] = len(some[0]["ops"]["nll"])
        found["with ops"] = compare(some)
    return found


def _take(entry: Entry, positions: Sequence[int]) -> Entry:
    return {name: values[list(positions)] for name, values in entry.items()}


def compare(conditions: Sequence[Mapping[str, Entry]]) -> dict[str, Any]:
    """Return score, ECE, NLL and paired gains of each recipe, over all conditions."""
    weights = draw_weights(len(conditions[0]["source"]["nll"]))
    scores: dict[str, Score] = {}
    found: dict[str, Any] = {}
    for recipe in conditions[0]:
        pairs = [summarize_condition(each[recipe], weights) for each in conditions]
        scores[recipe] = mean_score([score for score, _ in pairs])
        found[recipe] = summarize_mean([score for score, _ in pairs], [facts for _, facts in pairs])
        del found[recipe]["entropy"]
        found[recipe]["ece"] = round(calibration_error(join_entries([each[recipe] for each in conditions])), 4)
    for recipe, facts in found.items():
        facts["gain"] = (scores[recipe] - scores["source"]).to_dict()
        if recipe in NEW and PREVIOUS in scores:
            facts["over previous"] = (scores[recipe] - scores[PREVIOUS]).to_dict()
        if recipe != "auto" and "ops" in scores:
            facts["over auto"] = (scores[recipe] - scores["auto"]).to_dict()
    return found


def _by_kind(group: str, conditions: Sequence[Mapping[str, Entry]]) -> dict[str, dict[str, float]]:
    """Return what each recipe gains under each kind of corruption."""
    kinds = [condition.corruption for condition in GROUPS[group]]
    compared = {kind: compare([each]) for kind, each in zip(kinds, conditions, strict=True)}
    return {
        recipe: {kind: found[recipe]["gain"]["score"] for kind, found in compared.items()} for recipe in conditions[0]
    }
