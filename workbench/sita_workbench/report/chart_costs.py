"""Scores against rows per image: the curves of the study of views, and the Pareto front of the settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .chart_style import FAINT, GRID, INK, MARGIN, WIDTH, Look, Page, Tag, looks_of, mark, shorten, write_tags
from .reading import (
    Json,
    about,
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

_LEFT, _TALL = 0.75, 4.0
# Points of several series at the same cost stand side by side, this factor apart.
_BESIDE = 1.025


def draw_views(results: Json) -> Figure:
    """Return the score against rows: one curve per series, every point with its label and interval."""
    part = main_part(results)
    series = series_of(point for point in study_points(results) if point.get("rows") and point.get(part))
    single = [[method] for method in plain_methods(results) if method.get("rows") and method.get(part)]
    lines = [*series.values(), *single]
    looks = looks_of(series_name(line[0]) for line in lines)
    page = Page(_TALL + 0.7, "Score against rows per image: views", about(results), list(looks.items()))
    axes = page.axes(_LEFT, 0.05, WIDTH - _LEFT - 0.25, _TALL)
    tags, paths = [], []
    for place, line in enumerate(lines):
        look = looks[series_name(line[0])]
        shift = _BESIDE ** (place % len(looks) - (len(looks) - 1) / 2)
        points = [(method["rows"] * shift, method[part]["score"], method) for method in sorted(line, key=_rows)]
        x, y = [point[0] for point in points], [point[1] for point in points]
        axes.plot(x, y, **(mark(look) | {"linestyle": "-", "linewidth": 1.1}))
        paths.append(list(zip(x, y, strict=True)))
        for at, score, method in points:
            low, high = method[part]["low"], method[part]["high"]
            axes.vlines(at, low, high, color=look.colour, linewidth=1, alpha=0.6, zorder=3)
            text = str(method["study"]["label"]) if method.get("study") else method["name"]
            tags.append(Tag(at, score, shorten(text, 1.5, 7.5), look, low, high))
    _finish(axes, results, [method["rows"] for line in lines for method in line])
    write_tags(axes, tags, size=7.5, lines=paths)
    return page.figure


def draw_front(results: Json) -> Figure:
    """Return the score of every setting against its rows, and name the Pareto front."""
    part = main_part(results)
    costed = [method for method in results["methods"] if method.get("rows") and method.get(part)]
    looks = looks_of(map(series_name, costed))
    front = pareto_front([(method["rows"], method[part]["score"]) for method in costed])
    key = -(-len(front) // 2)
    page = Page(
        _TALL + 0.85 + 0.19 * key,
        "Score against rows per image: settings",
        about(results),
        list(looks.items()),
        second="Numbered: the settings that no cheaper one reaches, with their 95 % intervals.",
    )
    axes = page.axes(_LEFT, 0.05, WIDTH - _LEFT - 0.25, _TALL)
    series = list(looks)
    for method in (each for place, each in enumerate(costed) if place not in front):
        faded = {"alpha": 0.4, "markersize": 5}
        beside = _BESIDE ** (series.index(series_name(method)) - (len(series) - 1) / 2)
        axes.plot([method["rows"] * beside], [method[part]["score"]], **(mark(looks[series_name(method)]) | faded))
    corners = [(costed[place]["rows"], costed[place][part]["score"]) for place in front]
    stairs = [corners[0]]
    for corner in corners[1:]:
        stairs += [(corner[0], stairs[-1][1]), corner]
    axes.plot(*zip(*stairs, strict=True), color=FAINT, linewidth=1, zorder=2)
    tags: list[Tag] = []
    names: list[str] = []
    for place, (rows, score) in zip(front, corners, strict=True):
        method, look = costed[place], looks[series_name(costed[place])]
        value = method[part]
        axes.vlines(rows, value["low"], value["high"], color=look.colour, linewidth=1.2, zorder=3)
        axes.plot([rows], [score], **(mark(look) | {"markersize": 8}))
        bold = Look(look.colour, look.marker, 8, bold=True)
        tags.append(Tag(rows, score, str(len(tags) + 1), bold, value["low"], value["high"]))
        cost = f"{rows} row" if rows == 1 else f"{rows} rows"
        names.append(
            shorten(f"{len(tags)}  {method['name']}: {number(score)} %, {cost}", WIDTH / 2 - MARGIN - 0.1, 8.5)
        )
    _finish(axes, results, [method["rows"] for method in costed])
    others = [Tag(m["rows"], m[part]["score"], "", looks[series_name(m)]) for m in costed]
    write_tags(axes, [*tags, *others], size=9, lines=[stairs])
    below = page.axes(0, _TALL + 0.65, WIDTH, 0.19 * key)
    below.set(xlim=(0, WIDTH), ylim=(key, 0), xticks=[], yticks=[])
    for place, name in enumerate(names):
        column, line = divmod(place, key)
        below.text(MARGIN + column * WIDTH / 2, line + 0.5, name, va="center", fontsize=8.5, color=INK)
    return page.figure


def _finish(axes: Axes, results: Json, rows: Sequence[int]) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log")
    axes.set_xlim(min(rows) / 1.25, max(rows) * 1.3)
    axes.margins(y=0.08)
    axes.xaxis.set_minor_locator(NullLocator())
    ticks = _thin(sorted(set(rows)))
    axes.set_xticks(ticks, [f"{row:g}" for row in ticks])
    axes.set_xlabel("rows per image", color=INK, fontsize=9.5)
    axes.set_ylabel(score_axis(results, main_part(results)), color=INK, fontsize=9.5)
    axes.grid(color=GRID, linewidth=0.6)


def _thin(rows: Sequence[int]) -> list[int]:
    """Return ticks of a logarithmic axis that do not overlap."""
    kept = [rows[0]]
    for row in rows[1:]:
        if row > 1.2 * kept[-1]:
            kept.append(row)
    return kept


def _rows(method: Json) -> int:
    return int(method["rows"])


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the points (cost, score) that none reaches at the same or lower cost, cheapest first."""
    front: list[int] = []
    for place in sorted(range(len(points)), key=lambda place: (points[place][0], -points[place][1])):
        if not front or points[place][1] > points[front[-1]][1]:
            front.append(place)
    return front
