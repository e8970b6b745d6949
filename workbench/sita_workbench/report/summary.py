"""The answer of a benchmark: one sentence about the default recipe, notes, and the numbers to look at first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from sita_adapters.recipe import DEFAULT

from .reading import (
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
    points,
    significant,
    study_points,
    time_of,
)

ENOUGH = 50
"""Images per condition below which a report warns."""

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
class Summary:
    """Whether adaptation helps on these images, by how much and at what cost; what else to know; and key figures."""

    sentence: str
    notes: tuple[str, ...] = ()
    figures: tuple[KeyFigure, ...] = ()


def summarize(results: Json, timing: Json | None) -> Summary:
    """Return the summary of a report. A gain counts if its 95 % interval is above 0.

    It is about the default recipe; about the best one if the default was not run.
    """
    part = main_part(results)
    compared = [method for method in compared_methods(results, part) if gain_of(method, part)]
    source = find_source(results)
    if not compared or source is None or not source.get(part):
        return Summary("Whether it helps is unknown: the source model and a recipe are needed to compare.")
    best = highest(certain_gains(compared, part) or compared, part)
    main = next((method for method in compared if method["name"] == DEFAULT), best)
    best = main if best[part]["score"] <= main[part]["score"] else best
    if results["setup"]["weights"] == "random":
        return Summary("The weights are random: these scores say nothing about adaptation.")
    notes = tuple(_notes(results, timing, main, best, part))
    gained = _gain(main, part, results["setup"]["metric"])
    sentence = f"{_answer(main, part)}: {main['name']} {gained}{_cost(timing, main)}."
    return Summary(sentence, notes, tuple(_figures(results, timing, main, best, part)))


def _answer(method: Json, part: Part) -> str:
    return {"gain": "Yes, it helps", "loss": "No, it harms", "": "No certain gain"}[_sense(gain_of(method, part) or {})]


def _gain(method: Json, part: Part, metric: str = "") -> str:
    gain = gain_of(method, part) or {}
    verb = "loses" if gain["score"] < 0 else "gains"
    amount = points(abs(gain["score"])) + (f" of {metric}" if metric else "")
    return f"{verb} {amount} on {part} images (95 % interval {interval(gain, signed=True)})"


def _cost(timing: Json | None, method: Json) -> str:
    relative = (time_of(timing, method) or {}).get("relative")
    if relative is not None:
        return f", at {number(relative)} times the source model's time"
    rows = method.get("rows")
    return f", for {rows} {'row' if rows == 1 else 'rows'} per image" if rows else ""


def _notes(results: Json, timing: Json | None, main: Json, best: Json, part: Part) -> Iterator[str]:
    images, clean = results["setup"]["images"], main.get("gain_clean")
    if images < ENOUGH:
        yield (
            f"Only {images} {'image' if images == 1 else 'images'} per condition: a difference of a few points may be "
            f"chance. Use at least {ENOUGH}."
        )
    if best is not main:
        yield f"Best is {best['name']}: it {_gain(best, part)}{_cost(timing, best)}."
    if part == "clean":
        yield "Only clean images were run."
    elif clean is None:
        yield f"Clean images were not run, so what {main['name']} costs there is unknown."
    else:
        yield f"{main['name']} {_gain(main, 'clean')}{'' if _sense(clean) else ', no certain difference'}."
    studied = [point for point in study_points(results) if point.get(part)]
    if len(studied) > 1:
        top = highest(studied, part)
        yield (
            f"Of the {len(studied)} points of the study, {top['name']} is highest: {number(top[part]['score'])} %. The "
            "best of many on the same images is partly luck: confirm it on other images."
        )


def _sense(gain: Json) -> Sense:
    return "gain" if gain["low"] > 0 else "loss" if gain["high"] < 0 else ""


def _figures(results: Json, timing: Json | None, main: Json, best: Json, part: Part) -> Iterator[KeyFigure]:
    source = find_source(results) or {}
    value = source[part]
    note = f"{results['setup']['metric']} on {part} images ({interval(value)})"
    yield KeyFigure("source model", number(value["score"]), "%", note)
    for method, rank in [(main, "best" if main is best else "the default"), (best, "best")][: 1 + (main is not best)]:
        gain = gain_of(method, part) or {}
        yield _points_figure(f"{method['name']}, {rank}", gain, f"{number(method[part]['score'])} %; ")
    if part == "corrupted":
        label, gain = f"{main['name']} on clean images", main.get("gain_clean") or {}
        if gain:
            yield _points_figure(label, gain, "" if _sense(gain) else "no certain difference; ")
        else:
            yield KeyFigure(label, "not run", "", "what it costs there is unknown")
    time, plain = time_of(timing, main), time_of(timing, source)
    if time and plain:
        note = f"{significant(time['ms'])} ms per image, the source model {significant(plain['ms'])} ms"
        yield KeyFigure(f"time of {main['name']}", number(time["relative"]), "×", note)
    elif main.get("rows"):
        yield KeyFigure(f"cost of {main['name']}", str(main["rows"]), "× rows", "time was not measured")


def _points_figure(label: str, gain: Json, note: str) -> KeyFigure:
    spans = f"{note}95 % interval {interval(gain, signed=True)}"
    return KeyFigure(label, number(gain["score"], signed=True), "points", spans, _sense(gain))
