"""How figures and tables read the results of a benchmark, and how they print numbers."""

from __future__ import annotations

import math
from typing import Any, Literal

Json = dict[str, Any]
Part = Literal["corrupted", "clean"]

SOURCE = "source"
CLEAN = "clean"


def main_part(results: Json) -> Part:
    """Return the part that methods are ranked by: corrupted images, or clean ones if only these were run."""
    return "corrupted" if results["methods"][0]["corrupted"] else "clean"


def gain_of(method: Json, part: Part) -> Json | None:
    """Return a method's paired gain over source on a part."""
    gain: Json | None = (method[part] or {}).get("gain")
    return gain


def time_of(timing: Json | None, method: Json) -> Json:
    """Return a method's time; empty if it was not measured."""
    times: Json = (timing or {}).get("methods") or {}
    return times.get(method["name"]) or {}


_DATA_NAMES = {"cifar10c": "CIFAR-10-C", "cifar100c": "CIFAR-100-C", "imagenet-c": "ImageNet-C", "camvid": "CamVid"}


def title(results: Json) -> str:
    """Return the model and the data: a known data set by its name, any other by that of its file or folder."""
    setup = results["setup"]
    kind, _, path = setup["data"].partition(":")
    return f"{setup['model']} on {_DATA_NAMES.get(kind) or path or kind}"


def number(value: float | None, digits: int = 1, *, signed: bool = False) -> str:
    """Return a number as it is printed, with a true minus sign; a dash for None and NaN."""
    if value is None or math.isnan(value):
        return "–"
    rounded = round(value, digits) + 0.0  # not "-0.0"
    text = f"{rounded:+.{digits}f}" if signed and rounded else f"{rounded:.{digits}f}"
    return text.replace("-", "−")


def interval(value: Json, *, signed: bool = False) -> str:
    """Return the 95 % interval of a score or a gain, as it is printed."""
    return f"{number(value['low'], signed=signed)} to {number(value['high'], signed=signed)}"
