"""The answer of a benchmark in one sentence, and the numbers that a reader looks for first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sita_adapters.recipe import DEFAULT

from .reading import (
    SOURCE,
    Json,
    Part,
    certain_gains,
    compared_methods,
    find_source,
    gain_of,
    highest,
    interval,
    main_part,
    number,
    plain_methods,
    points,
    significant,
    time_of,
)

Sense = Literal["gain", "loss", ""]


@dataclass(frozen=True)
class KeyFigure:
    """A number with what it is, what to compare it with, and whether it is a certain gain or loss."""

    label: str
    value: str
    unit: str
    note: str
    sense: Sense = ""


@dataclass(frozen=True)
class Headline:
    """Whether adaptation helps on these images, by how much and at what cost; and its key figures."""

    sentence: str
    figures: tuple[KeyFigure, ...] = ()


def make_headline(results: Json, timing: Json | None) -> Headline:
    """Return the headline of a report. A gain counts where its 95 % interval is above 0."""
    part = main_part(results)
    compared = [method for method in compared_methods(results, part) if gain_of(method, part)]
    source = find_source(results)
    if not compared or source is None or not source.get(part):
        return Headline("Whether it helps is not known: there is nothing to compare.")
    certain = certain_gains(compared, part)
    best = highest(certain or compared, part)
    sentence = f"{_say_gain(results, best, part)}{_say_cost(timing, best)}."
    if results["setup"]["weights"] == "random":
        sentence = "The weights are random: these scores say nothing about adaptation."
    figures = [_score(results, source, part), _compare(best, part, "best" if certain else "the highest")]
    figures += _default(results, timing, best, part)
    if part == "corrupted":
        figures.append(_clean(best))
    return Headline(sentence, (*figures, *_cost(timing, best, source)))


def _say_gain(results: Json, best: Json, part: Part) -> str:
    gain, metric, name = gain_of(best, part) or {}, results["setup"]["metric"], best["name"]
    span = f"95 % interval {interval(gain, signed=True)}"
    match _sense(gain):
        case "gain":
            return f"Yes, it helps: {name} gains {points(gain['score'])} of {metric} on {part} images ({span})"
        case "loss":
            return f"No: on {part} images even the best, {name}, loses {points(-gain['score'])} of {metric} ({span})"
    change = f"{number(gain['score'], signed=True)} points of {metric}"
    return f"No certain gain on {part} images: the best, {name}, has {change} ({span})"


def _say_cost(timing: Json | None, best: Json) -> str:
    relative = (time_of(timing, best) or {}).get("relative")
    if relative is not None:
        return f", at {number(relative)} times the source model's time"
    rows = best.get("rows")
    return f", for {rows} {'row' if rows == 1 else 'rows'} per image" if rows else ""


def _sense(gain: Json) -> Sense:
    return "gain" if gain["low"] > 0 else "loss" if gain["high"] < 0 else ""


def _score(results: Json, source: Json, part: Part) -> KeyFigure:
    value = source[part]
    note = f"{results['setup']['metric']} on {part} images ({interval(value)})"
    return KeyFigure("source model", number(value["score"]), "%", note)


def _compare(method: Json, part: Part, rank: str, beside: str = "") -> KeyFigure:
    gain = gain_of(method, part) or {}
    note = f"{number(method[part]['score'])} %{beside}; 95 % interval {interval(gain, signed=True)}"
    return _points_figure(f"{method['name']}, {rank}", gain, note)


def _points_figure(label: str, gain: Json, note: str) -> KeyFigure:
    return KeyFigure(label, number(gain["score"], signed=True), "points", note, _sense(gain))


def _default(results: Json, timing: Json | None, best: Json, part: Part) -> Sequence[KeyFigure]:
    """Return what `sita.adapt(model)` does by default, where that is another recipe than the best."""
    for method in plain_methods(results):
        if method["name"] == DEFAULT and method is not best and gain_of(method, part):
            relative = (time_of(timing, method) or {}).get("relative")
            beside = "" if relative is None else f" at {number(relative)} × time"
            return [_compare(method, part, "the default", beside)]
    return []


def _clean(best: Json) -> KeyFigure:
    label, gain = f"{best['name']} on clean images", best.get("gain_clean")
    if not gain:
        return KeyFigure(label, "not run", "", "what it loses there is not known")
    note = f"{'' if _sense(gain) else 'no certain difference; '}95 % interval {interval(gain, signed=True)}"
    return _points_figure(label, gain, note)


def _cost(timing: Json | None, best: Json, source: Json) -> Sequence[KeyFigure]:
    time, plain = time_of(timing, best), time_of(timing, source)
    if time is None or plain is None or best["name"] == SOURCE:
        rows = best.get("rows")
        return [KeyFigure(f"cost of {best['name']}", str(rows), "× rows", "time was not measured")] if rows else []
    note = f"{significant(time['ms'])} ms per image, the source model {significant(plain['ms'])} ms"
    return [KeyFigure(f"time of {best['name']}", number(time["relative"]), "×", note)]
