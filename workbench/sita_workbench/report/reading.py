"""How figures and reports read the results of a benchmark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

Json = dict[str, Any]
Part = Literal["corrupted", "clean"]

SOURCE = "source"
CLEAN = "clean"
NOTHING = "–"
"""Printed where there is no number."""


def plain_methods(results: Json) -> list[Json]:
    """Return the methods outside the study."""
    return [method for method in results["methods"] if not method.get("study")]


def study_points(results: Json) -> list[Json]:
    """Return the points of the study's curves."""
    return [method for method in results["methods"] if method.get("study")]


def series_of(points: Iterable[Json]) -> dict[str, list[Json]]:
    """Return a study's points by series, each in the order of x."""
    series: dict[str, list[Json]] = {}
    for point in points:
        series.setdefault(str(point["study"]["series"]), []).append(point)
    return {name: sorted(members, key=lambda point: float(point["study"]["x"])) for name, members in series.items()}


def series_name(method: Json) -> str:
    """Return the series of a study's point, or a method's own name."""
    return str(method["study"]["series"] if method.get("study") else method["name"])


def find_source(results: Json) -> Json | None:
    """Return the unadapted model's method, if it was run."""
    return next((method for method in plain_methods(results) if method["name"] == SOURCE), None)


def main_part(results: Json) -> Part:
    """Return the part that methods are ranked by: corrupted images, or clean ones where only these were run."""
    return "corrupted" if any(method.get("corrupted") for method in results["methods"]) else "clean"


def gain_of(method: Json, part: Part) -> Json | None:
    """Return a method's paired gain over source on a part."""
    gain: Json | None = method.get("gain" if part == "corrupted" else "gain_clean")
    return gain


def compared_methods(results: Json, part: Part) -> list[Json]:
    """Return what is compared with source: the methods outside the study, or its points where there are none."""
    methods = [method for method in plain_methods(results) if method["name"] != SOURCE and method.get(part)]
    return methods or [point for point in study_points(results) if point.get(part)]


def certain_gains(methods: Iterable[Json], part: Part) -> list[Json]:
    """Return the methods whose gain has a 95 % interval above 0."""
    return [method for method in methods if (gain := gain_of(method, part)) and gain["low"] > 0]


def highest(methods: Sequence[Json], part: Part) -> Json:
    """Return the method with the highest score; among equal ones, the one with the fewest rows."""
    return max(methods, key=lambda method: (float(method[part]["score"]), -float(method.get("rows") or 1e9)))


def time_of(timing: Json | None, method: Json) -> Json | None:
    """Return a method's time, where it was measured."""
    times: Json = (timing or {}).get("methods") or {}
    found: Json | None = times.get(method["name"])
    return found


def is_corrupted(condition: str) -> bool:
    """Say whether a condition's name, "fog/5" or "clean", is that of a corruption."""
    return condition != CLEAN


def corruption_of(condition: str) -> str:
    """Return the name of a condition without its severity."""
    return condition.rpartition("/")[0] or condition


def words(condition: str) -> str:
    """Return a condition's name as it is printed."""
    return condition.replace("_", " ")


_DATA_NAMES = {"cifar10c": "CIFAR-10-C", "cifar100c": "CIFAR-100-C", "imagenet-c": "ImageNet-C", "camvid": "CamVid"}


def title(results: Json) -> str:
    """Return the model and the data: a known data set by its name, any other by that of its file or folder."""
    setup = results["setup"]
    kind, _, place = setup["data"].partition(":")
    return f"{setup['model']} on {_DATA_NAMES.get(kind) or place or kind}"


def about(results: Json) -> str:
    """Return a line that says what was run."""
    return f"{title(results)}, {results['setup']['images']} images under each condition"


def count_corrupted(results: Json) -> int:
    """Return how many of the conditions are corrupted."""
    return sum(map(is_corrupted, results["setup"]["conditions"]))


def describe_part(results: Json, part: Part) -> str:
    """Return the images that a part's score covers."""
    count = count_corrupted(results)
    if part == "clean":
        return "clean images"
    return "corrupted images" if count == 1 else f"corrupted images (mean of {count} conditions)"


def describe_timing(timing: Json) -> str:
    """Return where and how times were measured, as far as it is known."""
    facts = {"threads": timing.get("threads"), "batch": timing.get("batch"), "rounds": timing.get("rounds")}
    known = [f"{name}: {value}" for name, value in facts.items() if value]
    return ", ".join([*filter(None, [timing.get("machine")]), *known])


def score_axis(results: Json, part: Part | None = None) -> str:
    """Return an axis label with its unit."""
    metric = results["setup"]["metric"]
    return f"{metric}, %" if part is None else f"{metric} on {part} images, %"


def number(value: float | None, digits: int = 1, *, signed: bool = False) -> str:
    """Return a number as it is printed, with a true minus sign; a dash for None and NaN."""
    if value is None or math.isnan(value):
        return NOTHING
    rounded = round(value, digits) + 0.0  # not "-0.0"
    text = f"{rounded:+.{digits}f}" if signed and rounded else f"{rounded:.{digits}f}"
    return text.replace("-", "−")


def interval(value: Json, *, signed: bool = False) -> str:
    """Return the 95 % interval of a score or a gain, as it is printed."""
    return f"{number(value.get('low'), signed=signed)} to {number(value.get('high'), signed=signed)}"


def points(value: float) -> str:
    """Return a difference of scores, with its unit."""
    return f"{number(value)} {'point' if number(value) == '1.0' else 'points'}"


def significant(value: float | None) -> str:
    """Return a time or a ratio with about three digits."""
    if value is None or math.isnan(value):
        return NOTHING
    return number(value, 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2)
