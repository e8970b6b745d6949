"""The figures of a study: curves over λ or batch size, gains by layer, and the spread over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sita_adapters.recipe import DEFAULT

from .chart_costs import draw_front, draw_views
from .chart_style import (
    FAINT,
    GRID,
    INK,
    WIDTH,
    Look,
    Page,
    looks_of,
    mark,
    shorten,
    text_width,
)
from .reading import (
    SOURCE,
    Json,
    Part,
    about,
    gain_of,
    main_part,
    number,
    plain_methods,
    score_axis,
    series_name,
    series_of,
    study_points,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_studies(results: Json) -> dict[str, Figure]:
    """Return the figures of the study, by name, if there is one."""
    study, part = results["setup"].get("study"), main_part(results)
    points = [point for point in study_points(results) if point.get(part)]
    figures: dict[str, Figure] = {}
    if study in ("lambda", "batch") and points:
        figures[f"study_{study}"] = draw_curves(results)
    if study == "layers" and points:
        figures["study_layers"] = draw_layers(results)
    if study in ("views", "defaults") and any(point.get("rows") for point in points):
        figures[f"study_{study}"] = draw_views(results) if study == "views" else draw_front(results)
    if any(len(method.get("seeds") or ()) > 1 for method in results["methods"]):
        figures["study_seeds"] = draw_seeds(results)
    return figures


_CURVES = 3.25
"""How tall the axes of curves are, in inches."""

_TITLES = {
    "lambda": "Score against the weight of the source statistics",
    "batch": "Score against batch size",
}


def draw_curves(results: Json) -> Figure:
    """Return the score against λ or batch size: one curve per series, a horizontal line for every other method."""
    study = results["setup"]["study"]
    series = series_of(study_points(results))
    others = [method for method in plain_methods(results) if method["name"] not in series]
    looks = looks_of([*series, *(method["name"] for method in others)])
    parts: list[Part] = [
        part for part in ("corrupted", "clean") if any(p.get(part) for ps in series.values() for p in ps)
    ]
    page = Page(
        3.9,
        _TITLES[study],
        about(results),
        [(name, looks[name]) for name in series],
        second="Horizontal lines: methods outside the study." if others else "",
    )
    names = 0.15 + max((text_width(method["name"], 8.5, bold=True) for method in others), default=0)
    names = min(names, 1.4)
    wide = (WIDTH - 0.7 - 0.15 - 0.55 * (len(parts) - 1)) / len(parts) - names
    for place, part in enumerate(parts):
        axes = page.axes(0.7 + place * (wide + names + 0.55), 0.05, wide, _CURVES)
        for name, points in series.items():
            _draw_curve(axes, points, part, looks[name])
        _set_ticks(axes, series, study)
        _draw_levels(axes, [m for m in others if m.get(part)], part, looks, names)
        axes.set_ylabel(score_axis(results, part), color=INK, fontsize=9.5)
        axes.grid(color=GRID, linewidth=0.6)
    return page.figure


def _draw_curve(axes: Axes, points: Sequence[Json], part: Part, look: Look) -> None:
    shown = [point for point in points if point.get(part)]
    x = [point["study"]["x"] for point in shown]
    low, score, high = ([point[part][key] for point in shown] for key in ("low", "score", "high"))
    axes.fill_between(x, low, high, color=look.colour, alpha=0.15, linewidth=0, zorder=2)
    axes.plot(x, score, **(mark(look) | {"linestyle": "-", "linewidth": 1.8}))


def _set_ticks(axes: Axes, series: dict[str, list[Json]], study: str) -> None:
    from matplotlib.ticker import NullLocator

    values = sorted({float(point["study"]["x"]) for points in series.values() for point in points})
    if study == "batch":
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlabel("images that share their statistics", color=INK, fontsize=9.5)
        axes.set_xticks(values, [f"{value:g}" for value in values])
    else:
        axes.set_xlabel("λ, weight of the source statistics", color=INK, fontsize=9.5)


def _draw_levels(axes: Axes, methods: Sequence[Json], part: Part, looks: dict[str, Look], room: float) -> None:
    """Draw a horizontal line per method, with its name at the right end, moved so that names do not overlap."""
    for method in methods:
        value, look = method[part], looks[method["name"]]
        # More bands than these two would cover each other.
        if method["name"] in (SOURCE, DEFAULT):
            axes.axhspan(value["low"], value["high"], color=look.colour, alpha=0.1, linewidth=0, zorder=1)
        axes.axhline(value["score"], color=look.colour, linewidth=1.4, linestyle=(0, (5, 2)), zorder=3)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    inch = (high - low) / _CURVES
    ordered = sorted(methods, key=lambda method: float(method[part]["score"]))
    places = spread_out([float(method[part]["score"]) for method in ordered], 0.155 * inch, low, high)
    for method, place in zip(ordered, places, strict=True):
        look = looks[method["name"]]
        axes.annotate(
            shorten(method["name"], room - 0.12, 8.5),
            (1, place),
            xycoords=axes.get_yaxis_transform(),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8.5,
            color=look.colour,
            fontweight="bold",
        )


def spread_out(values: Sequence[float], distance: float, low: float, high: float) -> list[float]:
    """Return ascending values, moved as little as possible so that they are `distance` apart between two ends."""
    groups: list[tuple[float, list[float]]] = []
    for value in values:
        members = [value]
        while groups and _first(members, distance, low, high) - groups[-1][0] < len(groups[-1][1]) * distance:
            members = groups.pop()[1] + members
        groups.append((_first(members, distance, low, high), members))
    return [first + place * distance for first, members in groups for place in range(len(members))]


def _first(members: Sequence[float], distance: float, low: float, high: float) -> float:
    """Return the place of a group's first member, with the group centred on its members' mean."""
    length = (len(members) - 1) * distance
    return max(low, min(float(np.mean(members)) - length / 2, high - length))


def draw_layers(results: Json) -> Figure:
    """Return what every group of layers gains over source; without source, the scores."""
    part = main_part(results)
    series = series_of(point for point in study_points(results) if point.get(part))
    looks = looks_of(series)
    points = [point for members in series.values() for point in members]
    gains = all(gain_of(point, part) for point in points)
    labels = list(dict.fromkeys(str(point["study"]["label"]) for point in sorted(points, key=_by_x)))
    thick = 0.8 / len(series)
    left = min(2.6, 0.35 + max(text_width(label, 9) for label in labels))
    tall = max(0.32, 0.17 * len(series)) * len(labels)
    clean = part == "corrupted" and any(point.get("gain_clean") for point in points) and gains
    legend: list[tuple[str, Look | str]] = [(name, looks[name].colour) for name in series]
    if clean:
        legend.append(("the same on clean images", _CLEAN_MARK))
    title = "What adapting each group of layers gains" if gains else "Score by adapted group of layers"
    page = Page(tall + 0.7, title, about(results), legend)
    axes = page.axes(left, 0.05, WIDTH - left - 0.85, tall)
    for place, (name, members) in enumerate(series.items()):
        for point in members:
            value = (gain_of(point, part) if gains else None) or point[part]
            y = labels.index(str(point["study"]["label"])) + (place - (len(series) - 1) / 2) * thick
            axes.barh(y, value["score"], 0.88 * thick, color=looks[name].colour, zorder=2)
            axes.hlines(y, value["low"], value["high"], color="#555555", linewidth=1, zorder=3)
            if clean and point.get("gain_clean"):
                axes.plot([point["gain_clean"]["score"]], [y], **mark(_CLEAN_MARK))
            axes.text(
                1.01,
                y,
                f"{number(point[part]['score'])} %",
                transform=axes.get_yaxis_transform(),
                va="center",
                fontsize=min(8.5, 50 * tall / len(labels) * thick),
                color=FAINT,
            )
    axes.axvline(0, color=INK, linewidth=0.8, zorder=4)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), [shorten(label, left - 0.3, 9) for label in labels])
    unit = f"points of {results['setup']['metric']} over source, {part} images" if gains else score_axis(results, part)
    axes.set_xlabel(unit + " (right: the score)", color=INK, fontsize=9.5)
    axes.xaxis.grid(color=GRID, linewidth=0.6)
    return page.figure


_CLEAN_MARK = Look(INK, "D", 5)


def _by_x(point: Json) -> float:
    return float(point["study"]["x"])


def draw_seeds(results: Json) -> Figure:
    """Return how far every seed's score is from the mean of its method, which is printed beside.

    The methods' means differ so much more than the seeds that on one axis a method's dots would coincide.
    """
    methods = [method for method in results["methods"] if len(method.get("seeds") or ()) > 1]
    looks = looks_of(map(series_name, methods))
    left = min(2.8, 0.45 + max(text_width(method["name"], 9) for method in methods))
    tall = 0.42 * len(methods)
    note = "One mark per seed; the band is one standard deviation to either side of the mean."
    page = Page(tall + 0.7, "The spread over seeds", about(results), second=note)
    axes = page.axes(left, 0.05, WIDTH - left - 1.35, tall)
    for line, method in enumerate(methods):
        look, scores = looks[series_name(method)], np.asarray(method["seeds"], float)
        mean, deviation = float(scores.mean()), float(scores.std(ddof=1))
        axes.barh(line, 2 * deviation, 0.62, left=-deviation, color=look.colour, alpha=0.2, zorder=2)
        axes.plot(scores - mean, np.full(len(scores), line), **(mark(look) | {"markersize": 6.5}))
        text = f"{number(mean, 2)} ± {number(deviation, 2)}"
        axes.text(1.02, line, text, transform=axes.get_yaxis_transform(), va="center", fontsize=9, color=INK)
    low, high = axes.get_xlim()
    reach = max(-low, high)
    axes.set_xlim(-reach, reach)
    axes.axvline(0, color=FAINT, linewidth=0.8, zorder=1)
    axes.set_ylim(len(methods) - 0.5, -0.5)
    axes.set_yticks(range(len(methods)), [shorten(method["name"], left - 0.35, 9) for method in methods])
    unit = f"points of {results['setup']['metric']} from the mean over seeds"
    axes.set_xlabel(f"{unit}, {main_part(results)} images (right: the mean, %)", color=INK, fontsize=9.5)
    axes.xaxis.grid(color=GRID, linewidth=0.6)
    return page.figure
