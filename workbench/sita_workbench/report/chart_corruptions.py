"""The figure by corruption: every method's score under every condition, and the means."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from sita_adapters.recipe import DEFAULT

from .chart_style import FAINT, GRID, INK, MARGIN, SHADE, WIDTH, Page, dodge, looks_of, mark, shorten
from .reading import (
    CLEAN,
    SOURCE,
    Json,
    about,
    corruption_of,
    number,
    plain_methods,
    score_axis,
    words,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Inches per line, and how far apart the methods stand on a line, in lines.
_LINE = 0.32
_SPREAD = 0.6


def draw_corruption_bars(results: Json) -> Figure:
    """Return one line per corruption with the methods' scores, and their means with intervals below.

    Dots, because bars of nine methods under sixteen conditions would be too thin. A corruption at several severities
    is shown as their mean.
    """
    methods = [method for method in plain_methods(results) if method.get("conditions")]
    looks = looks_of(method["name"] for method in methods)
    conditions = [name for name in results["setup"]["conditions"] if any(name in m["conditions"] for m in methods)]
    kinds = sorted(dict.fromkeys(map(corruption_of, conditions)), key=lambda kind: kind != CLEAN)
    several = len(conditions) > len(kinds)
    metric = results["setup"]["metric"]
    lines = len(kinds) + 2.4
    page = Page(
        _LINE * lines + 0.75,
        f"{metric.capitalize() if metric.islower() else metric} under each corruption",
        about(results),
        [(method["name"], looks[method["name"]]) for method in methods],
        second="Each corruption: the mean over its severities." if several else "",
    )
    shown = _columns(methods)
    left, right = 1.55, 0.55 * len(shown) + 0.1
    axes = page.axes(left, 0.25, WIDTH - left - right, _LINE * lines)
    axes.set_ylim(lines - 0.5, -0.5)
    axes.set_xlim(*_limits(methods))
    for line, kind in enumerate(kinds):
        axes.axhline(line, color=GRID, linewidth=0.8, zorder=1)
        scores = {method["name"]: _mean_score(method, kind) for method in methods}
        _write_columns(axes, line, [scores[name] for name in shown])
    for place, method in enumerate(methods):
        scored = {line: score for line, kind in enumerate(kinds) if (score := _mean_score(method, kind)) is not None}
        lines_of = np.array(list(scored)) + dodge(place, len(methods), _SPREAD)
        axes.plot(list(scored.values()), lines_of, **mark(looks[method["name"]]))
    ticks = [float(line) for line in range(len(kinds))]
    names = [shorten(words(kind), left - MARGIN - 0.1, 9) for kind in kinds]
    if CLEAN in kinds and len(kinds) > 1:
        axes.axhline(0.5, color="#BBBBBB", linewidth=0.8, zorder=1)
    middle = len(kinds) + 0.7
    axes.axhspan(middle - 1.2, lines - 0.5, color=SHADE, zorder=0)
    for place, method in enumerate(methods):
        look, value = looks[method["name"]], method["corrupted"]
        if value:
            y = middle + dodge(place, len(methods), 1.9)
            axes.hlines(y, value["low"], value["high"], color=look.colour, linewidth=1.3, zorder=3)
            axes.plot([value["score"]], [y], **mark(look))
    by_name = {method["name"]: (method["corrupted"] or {}).get("score") for method in methods}
    _write_columns(axes, middle, [by_name[name] for name in shown], bold=True)
    ticks, names = [*ticks, middle], [*names, "mean of corrupted"]
    axes.set_yticks(ticks, names)
    axes.set_xlabel(score_axis(results), color=INK, fontsize=9.5)
    axes.xaxis.grid(color=GRID, linewidth=0.6)
    for place, name in enumerate(shown):
        x = 1 + (0.5 + 0.55 * place) / (WIDTH - left - right)
        text = shorten(name, 0.53, 8)
        axes.text(x, 1 + 0.06 / (_LINE * lines), text, transform=axes.transAxes, ha="right", fontsize=8, color=FAINT)
    return page.figure


def _columns(methods: list[Json]) -> list[str]:
    """Return the methods whose numbers are printed: source, and the default recipe or else the best."""
    names = [method["name"] for method in methods]
    others = [method for method in methods if method["name"] != SOURCE]
    best = max(others, key=lambda method: (method["name"] == DEFAULT, _overall(method)), default=None)
    return [SOURCE] * (SOURCE in names) + ([best["name"]] if best else [])


def _overall(method: Json) -> float:
    value = method.get("corrupted") or method.get("clean")
    return float(value["score"]) if value else -math.inf


def _write_columns(axes: Axes, line: float, scores: list[float | None], *, bold: bool = False) -> None:
    inches = axes.get_position().width * WIDTH
    best = max((round(score, 1) for score in scores if score is not None), default=None)
    for place, score in enumerate(scores):
        if score is not None:
            axes.text(
                1 + (0.5 + 0.55 * place) / inches,
                line,
                number(score),
                transform=axes.get_yaxis_transform(),
                ha="right",
                va="center",
                fontsize=8.5,
                color=INK if round(score, 1) == best else FAINT,
                fontweight="bold" if bold else "normal",
            )


def _mean_score(method: Json, kind: str) -> float | None:
    scores = [value["score"] for name, value in method["conditions"].items() if corruption_of(name) == kind]
    return float(np.mean(scores)) if scores else None


def _limits(methods: list[Json]) -> tuple[float, float]:
    """Return limits that include every dot; dots, unlike bars, need no zero."""
    scores = [value["score"] for method in methods for value in method["conditions"].values()]
    scores += [value[end] for method in methods if (value := method.get("corrupted")) for end in ("low", "high")]
    low, high = min(scores), max(scores)
    margin = max(0.03 * (high - low), 1.0)
    return low - margin, high + margin
