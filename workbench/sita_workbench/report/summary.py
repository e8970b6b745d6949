"""The answer of a benchmark: one sentence about the default recipe, notes, and the numbers to look at first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sita_adapters.recipe import DEFAULT

from .reading import Json, Part, gain_of, interval, main_part, number, time_of

ENOUGH, FEW = 50, 20
"""Images per condition below which a report warns, or gives no answer."""

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

    It describes the default recipe, or the best one if the default was not run.
    """
    part = main_part(results)
    compared = [method for method in results["methods"] if gain_of(method, part)]
    if not compared:
        return Summary("Whether it helps is unknown: the comparison needs the source model and a recipe.")
    if results["setup"]["weights"].startswith("random"):
        return Summary("The weights are random: these scores say nothing about adaptation.")
    certain = [method for method in compared if _sense(gain_of(method, part)) == "gain"]
    # Among equal scores, the one with the fewest rows is best.
    best = max(certain or compared, key=lambda m: (float(m[part]["score"]), -float(m["rows"] or 1e9)))
    main = next((method for method in compared if method["name"] == DEFAULT), best)
    best = main if best[part]["score"] <= main[part]["score"] else best
    answer, gained = _ANSWERS[_sense(gain_of(main, part))], _gained(main, part, results["setup"]["metric"])
    answer = "Too few images for an answer" if results["setup"]["images"] < FEW else answer
    return Summary(
        f"{answer}: {main['name']} {gained}{_cost(timing, main)}.",
        tuple(_notes(results, timing, main, best)),
        tuple(_key_figures(results, timing, main, best)),
    )


def _sense(gain: Json | None) -> str:
    return "" if gain is None else "gain" if gain["low"] > 0 else "loss" if gain["high"] < 0 else ""


def _gained(method: Json, part: Part, metric: str = "") -> str:
    gain = method[part]["gain"]
    verb, unit = "loses" if gain["score"] < 0 else "gains", f"points of {metric}" if metric else "points"
    amount = number(abs(gain["score"]))
    return f"{verb} {amount} {unit} on {part} images (95 % interval {interval(gain, signed=True)})"


def _cost(timing: Json | None, method: Json) -> str:
    if time := time_of(timing, method):
        return f", at {number(time['relative'])} times the source model's time"
    return f", for {method['rows']} {'row' if method['rows'] == 1 else 'rows'} per image" if method["rows"] else ""


def _notes(results: Json, timing: Json | None, main: Json, best: Json) -> Iterator[str]:
    part, images = main_part(results), results["setup"]["images"]
    if images < ENOUGH:
        counted = f"{images} {'image' if images == 1 else 'images'}"
        yield f"Only {counted} per condition: the interval is not reliable. Use at least {ENOUGH}."
    if best is not main:
        yield f"{best['name']} is best: it {_gained(best, part)}{_cost(timing, best)}."
    if part == "clean":
        yield "Only clean images were run."
    elif not main["clean"]:
        yield f"Clean images were not run: the effect of {main['name']} on them is unknown."
    else:
        certain = "" if _sense(gain_of(main, "clean")) else ", no certain difference"
        yield f"{main['name']} {_gained(main, 'clean')}{certain}."


def _key_figures(results: Json, timing: Json | None, main: Json, best: Json) -> Iterator[KeyFigure]:
    part, name, source = main_part(results), main["name"], results["methods"][0]
    note = f"{results['setup']['metric']} on {part} images ({interval(source[part])})"
    yield KeyFigure("source model", number(source[part]["score"]), "%", note)
    yield _gain_figure(f"{name}, {'best' if main is best else 'the default'}", main, part)
    if best is not main:
        yield _gain_figure(f"{best['name']}, best", best, part)
    if part == "corrupted" and main["clean"]:
        yield _gain_figure(f"{name} on clean images", main, "clean")
    if time := time_of(timing, main):
        own, plain = number(time["ms"], 2), number(time_of(timing, source)["ms"], 2)
        yield KeyFigure(
            f"time of {name}", number(time["relative"]), "×", f"{own} ms per image; source model {plain} ms"
        )
    elif main["rows"]:
        yield KeyFigure(f"cost of {name}", str(main["rows"]), "× rows", "time was not measured")


def _gain_figure(label: str, method: Json, part: Part) -> KeyFigure:
    gain = method[part]["gain"]
    note = f"{number(method[part]['score'])} %; 95 % interval {interval(gain, signed=True)}"
    return KeyFigure(label, number(gain["score"], signed=True), "points", note, _sense(gain))
