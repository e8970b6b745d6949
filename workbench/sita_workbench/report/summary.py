"""The answer of a benchmark: one sentence about the default recipe, notes, and the numbers to look at first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sita_adapters.recipe import DEFAULT

from .reading import SOURCE, Json, Part, gain_of, interval, main_part, number, plain_methods, study_points, time_of

ENOUGH = 50
"""Images per condition below which a report warns."""

_ANSWERS = {"gain": "Yes, it helps", "loss": "No, it harms", "": "No certain gain"}


@dataclass(frozen=True)
class KeyFigure:
    """A number with what it is, what to compare it with, and whether it is a certain "gain" or "loss"."""

    label: str
    value: str
    unit: str
    note: str
    sense: str = ""


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
    source = next((method for method in plain_methods(results) if method["name"] == SOURCE), {})
    # In a study without other recipes, its points are compared with the source model.
    compared = [method for method in plain_methods(results) if gain_of(method, part)]
    compared = compared or [point for point in study_points(results) if gain_of(point, part)]
    if not compared or not source.get(part):
        return Summary("Whether it helps is unknown: the source model and a recipe are needed to compare.")
    if results["setup"]["weights"] == "random":
        return Summary("The weights are random: these scores say nothing about adaptation.")
    best = _highest([m for m in compared if _sense(gain_of(m, part)) == "gain"] or compared, part)
    main = next((method for method in compared if method["name"] == DEFAULT), best)
    best = main if best[part]["score"] <= main[part]["score"] else best
    answer, gained = _ANSWERS[_sense(gain_of(main, part))], _gained(main, part, results["setup"]["metric"])
    return Summary(
        f"{answer}: {main['name']} {gained}{_cost(timing, main)}.",
        tuple(_notes(results, timing, main, best)),
        tuple(_key_figures(results, timing, source, main, best)),
    )


def _highest(methods: list[Json], part: Part) -> Json:
    """Return the method with the highest score; among equal ones, the one with the fewest rows."""
    return max(methods, key=lambda method: (float(method[part]["score"]), -float(method.get("rows") or 1e9)))


def _sense(gain: Json | None) -> str:
    if gain is None:
        return ""
    return "gain" if gain["low"] > 0 else "loss" if gain["high"] < 0 else ""


def _gained(method: Json, part: Part, metric: str = "") -> str:
    gain = gain_of(method, part) or {}
    verb, amount = "loses" if gain["score"] < 0 else "gains", number(abs(gain["score"]))
    unit = ("point" if amount == "1.0" else "points") + (f" of {metric}" if metric else "")
    return f"{verb} {amount} {unit} on {part} images (95 % interval {interval(gain, signed=True)})"


def _cost(timing: Json | None, method: Json) -> str:
    relative, rows = time_of(timing, method).get("relative"), method.get("rows")
    if relative is not None:
        return f", at {number(relative)} times the source model's time"
    return f", for {rows} {'row' if rows == 1 else 'rows'} per image" if rows else ""


def _notes(results: Json, timing: Json | None, main: Json, best: Json) -> Iterator[str]:
    part, images = main_part(results), results["setup"]["images"]
    if images < ENOUGH:
        counted = f"{images} {'image' if images == 1 else 'images'}"
        yield f"Only {counted} per condition: a few points may be chance. Use at least {ENOUGH}."
    if best is not main:
        yield f"{best['name']} is best: it {_gained(best, part)}{_cost(timing, best)}."
    if part == "clean":
        yield "Only clean images were run."
    elif not main.get("gain_clean"):
        yield f"Clean images were not run: the effect of {main['name']} on them is unknown."
    else:
        certain = "" if _sense(main["gain_clean"]) else ", no certain difference"
        yield f"{main['name']} {_gained(main, 'clean')}{certain}."
    studied = [point for point in study_points(results) if point.get(part)]
    if len(studied) > 1:
        top = _highest(studied, part)
        yield (
            f"Of the {len(studied)} points of the study, {top['name']} is highest: {number(top[part]['score'])} %. The "
            "best of many on the same images is partly luck: confirm it on other images."
        )


def _key_figures(results: Json, timing: Json | None, source: Json, main: Json, best: Json) -> Iterator[KeyFigure]:
    part, name = main_part(results), main["name"]
    note = f"{results['setup']['metric']} on {part} images ({interval(source[part])})"
    yield KeyFigure("source model", number(source[part]["score"]), "%", note)
    yield _gain_figure(f"{name}, {'best' if main is best else 'the default'}", main, part)
    if best is not main:
        yield _gain_figure(f"{best['name']}, best", best, part)
    if part == "corrupted" and main.get("gain_clean"):
        yield _gain_figure(f"{name} on clean images", main, "clean")
    time = time_of(timing, main)
    if time:
        own, plain = number(time["ms"], 2), number(time_of(timing, source).get("ms"), 2)
        note = f"{own} ms per image, the source model {plain} ms"
        yield KeyFigure(f"time of {name}", number(time["relative"]), "×", note)
    elif main.get("rows"):
        yield KeyFigure(f"cost of {name}", str(main["rows"]), "× rows", "time was not measured")


def _gain_figure(label: str, method: Json, part: Part) -> KeyFigure:
    gain = gain_of(method, part) or {}
    note = f"{number(method[part]['score'])} %; 95 % interval {interval(gain, signed=True)}"
    return KeyFigure(label, number(gain["score"], signed=True), "points", note, _sense(gain))
