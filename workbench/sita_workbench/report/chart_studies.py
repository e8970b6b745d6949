"""The figures of a study: curves over λ or batch size, and gains by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .chart_style import INK, Look, add_legend, dodge, looks_of, score_label, shorten, start_figure
from .reading import Json, Part, gain_of, main_part, plain_methods, series_of, study_points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PARTS: tuple[Part, ...] = ("corrupted", "clean")
_CLEAN = Look(INK, "D", 5)
_CURVES = {
    "lambda": ("Score against the weight of the source statistics", "λ, weight of the source statistics"),
    "batch": ("Score against batch size", "images that share their statistics"),
}
"""The heading and the label of x."""


def draw_curves(study: str, results: Json, timing: Json | None) -> Figure | None:
    """Return the score against λ or batch size: a curve per series, a dashed line for every other method."""
    points = study_points(results)
    parts = [part for part in _PARTS if any(point.get(part) for point in points)]
    if results["setup"].get("study") != study or not parts:
        return None
    heading, label = _CURVES[study]
    figure, (panels,) = start_figure(results, heading, 4.2, (1, len(parts)))
    series = series_of(points)
    others = [method for method in plain_methods(results) if method["name"] not in series]
    looks = looks_of([*series, *(method["name"] for method in others)])
    handles: dict[str, Any] = {}
    for axes, part in zip(panels, parts, strict=True):
        for name, members in series.items():
            handles[name] = _draw_curve(axes, members, part, looks[name])
        for method in others:
            if value := method.get(part):
                color = looks[method["name"]].color
                handles[method["name"]] = axes.axhline(value["score"], color=color, linewidth=1.4, linestyle="--")
        if study == "batch":
            sizes = sorted({point["study"]["x"] for point in points})
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [f"{size:g}" for size in sizes])
        axes.set_xlabel(label)
        axes.set_ylabel(score_label(results, part))
    add_legend(figure, handles)
    return figure


def _draw_curve(axes: Axes, points: list[Json], part: Part, look: Look) -> Any:
    shown = [point for point in points if point.get(part)]
    x = [point["study"]["x"] for point in shown]
    low, score, high = ([point[part][key] for point in shown] for key in ("low", "score", "high"))
    axes.fill_between(x, low, high, color=look.color, alpha=0.15, linewidth=0)
    return axes.plot(x, score, **look.as_plot("-"))[0]


def draw_layers(results: Json, timing: Json | None) -> Figure | None:
    """Return what every group of layers gains over source."""
    part = main_part(results)
    points = [point for point in study_points(results) if gain_of(point, part)]
    if results["setup"].get("study") != "layers" or not points:
        return None
    series = series_of(points)
    looks = looks_of(series)
    labels = list(dict.fromkeys(point["study"]["label"] for members in series.values() for point in members))
    thick = 0.8 / len(series)
    height = max(0.32, 0.17 * len(series)) * len(labels) + 1.6
    figure, ((axes,),) = start_figure(results, "What adapting groups of layers gains", max(3.2, height))
    handles: dict[str, Any] = {}
    clean_gains = []
    for (name, members), offset in zip(series.items(), dodge(len(series), 0.8 - thick), strict=True):
        for point in members:
            y, gain = labels.index(point["study"]["label"]) + offset, gain_of(point, part) or {}
            handles[name] = axes.barh(y, gain["score"], 0.88 * thick, color=looks[name].color)
            axes.hlines(y, gain["low"], gain["high"], color="#555555", linewidth=1)
            if part == "corrupted" and (clean := point.get("gain_clean")):
                clean_gains.append((clean["score"], y))
    if clean_gains:
        (handles["on clean images"],) = axes.plot(*zip(*clean_gains, strict=True), **_CLEAN.as_plot())
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.set_yticks(range(len(labels)), [shorten(str(label)) for label in labels])
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"points of {results['setup']['metric']} over source, {part} images")
    add_legend(figure, handles)
    return figure
