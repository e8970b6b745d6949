"""A benchmark's results in a paragraph of plain words."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from .reading import (
    SOURCE,
    Json,
    Part,
    certain_gains,
    count_corrupted,
    find_source,
    gain_of,
    highest,
    interval,
    main_part,
    number,
    plain_methods,
    points,
    significant,
    study_points,
    time_of,
)


def write_verdict(results: Json, timing: Json | None) -> str:
    """Return which recipe is best, what it gains and how certainly, what it costs, and what it loses."""
    part = main_part(results)
    scored = [method for method in plain_methods(results) if method.get(part)]
    recipes = [method for method in scored if method["name"] != SOURCE]
    studied = [point for point in study_points(results) if point.get(part)]
    if not scored and not studied:
        return "There are no scores: no method was run on any image."
    if recipes:
        said = _compare(results, timing, recipes, part)
        return " ".join([*said, *_say_study(results, studied, part, recipes)])
    if studied:
        return " ".join([*_compare(results, timing, studied, part), _warn_of_chance(len(studied))])
    source = scored[0]
    said = [f"Only source was run, so there is nothing to compare it with: {_score(results, source, part)}."]
    if part == "corrupted" and source.get("clean"):
        said.append(f"{_score(results, source, 'clean', brief=True)}.")
    return " ".join([*said, _say_time(timing, source)])


def _compare(results: Json, timing: Json | None, recipes: Sequence[Json], part: Part) -> list[str]:
    if find_source(results) is None or not any(gain_of(recipe, part) for recipe in recipes):
        best = highest(recipes, part)
        said = [
            f"{best['name']} is highest: {_score(results, best, part)}.",
            "Source was not run, so it is not known whether anything was gained.",
        ]
        return [*said, _say_time(timing, best), *_say_only_clean(part)]
    compared = [recipe for recipe in recipes if gain_of(recipe, part)]
    top = highest(compared, part)
    certain = certain_gains(compared, part)
    if not certain:
        return [_say_none_gains(results, top, part, len(compared)), *_say_only_clean(part)]
    best = highest(certain, part)
    gain = _gain(best, part)
    said = [
        f"{best['name']} is best: {_score(results, best, part)}, {points(gain['score'])} more than source "
        f"(95 % interval of the gain {interval(gain, signed=True)}).",
    ]
    if top is not best:
        other = _gain(top, part)
        said.append(
            f"{top['name']} scores higher ({number(top[part]['score'])} %), but the interval of its gain, "
            f"{interval(other, signed=True)}, includes 0."
        )
    said += [_say_time(timing, best), *_say_only_clean(part)]
    if part == "corrupted":
        said.append(_say_clean(best))
    return [*said, *_say_cheaper(timing, best, certain, part), *_say_seeds(best)]


def _say_none_gains(results: Json, best: Json, part: Part, count: int) -> str:
    gain = _gain(best, part)
    which = "the only one, " if count == 1 else "the best, "
    stands = (
        f"{which}{best['name']}, has {_score(results, best, part)}, {number(gain['score'], signed=True)} against source"
    )
    if gain["high"] < 0:
        return f"No recipe gains: {stands}, which is a loss (95 % interval {interval(gain, signed=True)})."
    span = interval(gain, signed=True)
    return f"No recipe gains: {stands}, and the 95 % interval of the difference, {span}, includes 0."


def _say_time(timing: Json | None, method: Json) -> str:
    time = time_of(timing, method)
    if time is None:
        rows = method.get("rows")
        cost = (
            f"; it runs {rows} {'row' if rows == 1 else 'rows'} per image" if rows and method["name"] != SOURCE else ""
        )
        return (
            ("Time was not measured" if not (timing or {}).get("methods") else "Its time was not measured") + cost + "."
        )
    relative = time.get("relative")
    times = f", {number(relative)} times source's" if relative is not None and method["name"] != SOURCE else ""
    return f"It takes {significant(time['ms'])} ms per image{times}."


def _say_clean(best: Json) -> str:
    gain = best.get("gain_clean")
    if not gain:
        return "Clean images were not run, so what it loses on them is not known."
    said = f"(95 % interval {interval(gain, signed=True)})"
    if gain["high"] < 0:
        return f"On clean images it loses {points(-gain['score'])} {said}."
    if gain["low"] > 0:
        return f"On clean images it gains {points(gain['score'])} {said}."
    return (
        f"On clean images it makes no certain difference: {number(gain['score'], signed=True)}, "
        f"95 % interval {interval(gain, signed=True)}, which includes 0."
    )


def _say_only_clean(part: Part) -> list[str]:
    return ["Corrupted images were not run: this is about clean ones alone."] if part == "clean" else []


def _say_cheaper(timing: Json | None, best: Json, certain: Sequence[Json], part: Part) -> list[str]:
    """Name the recipe that gains most among those that take at most half the time, if it keeps half of the gain."""
    time = time_of(timing, best)
    if time is None:
        return []
    quick = [m for m in certain if (its := time_of(timing, m)) and its["ms"] <= time["ms"] / 2]
    quick = [method for method in quick if _gain(method, part)["score"] >= _gain(best, part)["score"] / 2]
    if not quick:
        return []
    other = highest(quick, part)
    its = time_of(timing, other) or {}
    gain = _gain(other, part)
    return [
        f"For less time, {other['name']} gains {points(gain['score'])} (95 % interval {interval(gain, signed=True)}) "
        f"in {significant(its['ms'])} ms."
    ]


def _say_seeds(best: Json) -> list[str]:
    seeds = [float(score) for score in best.get("seeds") or ()]
    if len(seeds) < 2:
        return []
    mean, deviation = number(statistics.fmean(seeds), 2), number(statistics.stdev(seeds), 2)
    return [f"Over {len(seeds)} seeds it scores {mean} ± {deviation} % (standard deviation)."]


def _say_study(results: Json, studied: Sequence[Json], part: Part, recipes: Sequence[Json]) -> list[str]:
    if not studied:
        return []
    best = highest(studied, part)
    score = _score(results, best, part, brief=True)
    said = f"Of the {len(studied)} points of the study, {best['name']} is highest: {score}"
    gain = gain_of(best, part)
    if gain:
        said += f", {number(gain['score'], signed=True)} against source (95 % interval {interval(gain, signed=True)})"
    top = highest(recipes, part)
    against = "above" if best[part]["score"] > top[part]["score"] else "not above"
    return [f"{said}; that is {against} {top['name']}.", _warn_of_chance(len(studied))]


def _warn_of_chance(count: int) -> str:
    if count < 2:
        return ""
    return f"The best of {count} on the same images is partly luck: confirm it on other images."


def _gain(method: Json, part: Part) -> Json:
    gain = gain_of(method, part)
    assert gain is not None
    return gain


def _score(results: Json, method: Json, part: Part, *, brief: bool = False) -> str:
    value, setup = method[part], results["setup"]
    count = count_corrupted(results)
    of = f"mean of {count} conditions with {setup['images']} images each; " if count > 1 and part == "corrupted" else ""
    return (
        f"{number(value['score'])} % {setup['metric']} on {part} images "
        f"({'' if brief else of}95 % interval {interval(value)})"
    )
