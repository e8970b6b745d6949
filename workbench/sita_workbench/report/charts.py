"""The figures of a benchmark, as SVG: the methods' scores by corruption, and against their time."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from .chart_style import SHADE, STYLE, add_legend, dodge, shorten, start_figure, styles_of
from .reading import CLEAN, Json, main_part, number, time_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTIONS = {
    "corruptions": "The score of each method under each corruption, and the mean with its 95 % interval.",
    "time": "Up and to the left is better. Bars: 95 % interval of the score, quartiles of the time.",
}


def draw_all(results: Json, timing: Json | None) -> dict[str, str]:
    """Return the figures for which there is data, as SVG by caption."""
    import matplotlib.style

    drawn = {}
    # The user's own matplotlib style is not used.
    with matplotlib.style.context(["default", STYLE]):
        for name, figure in draw_figures(results, timing).items():
            file = io.StringIO()
            figure.savefig(file, format="svg", metadata={"Date": None})
            drawn[CAPTIONS[name]] = file.getvalue()
    return drawn


def draw_figures(results: Json, timing: Json | None) -> dict[str, Figure]:
    """Return the figures for which there is data, by name."""
    drawn = {"corruptions": draw_corruptions(results)} if main_part(results) == "corrupted" else {}
    return drawn | ({"time": draw_times(results, timing)} if timing else {})


def draw_corruptions(results: Json) -> Figure:
    """Return one line per corruption with the methods' scores, and their means with intervals below.

    Dots, because bars of nine methods under sixteen conditions would be too thin. A corruption at several severities
    is shown as their mean.
    """
    methods, conditions, metric = results["methods"], results["setup"]["conditions"], results["setup"]["metric"]
    styles = styles_of(method["name"] for method in methods)
    kinds: dict[str, list[str]] = {CLEAN: []} if CLEAN in conditions else {}
    for condition in conditions:
        kinds.setdefault(condition.partition("/")[0], []).append(condition)
    mean_line = len(kinds) + 0.7
    heading = f"{metric.capitalize() if metric.islower() else metric} under each corruption"
    figure, axes = start_figure(results, heading, max(3.2, 0.32 * mean_line + 1.7))
    handles = {}
    for method, offset, wide in zip(methods, dodge(len(methods), 0.6), dodge(len(methods), 1.7), strict=True):
        style, value = styles[method["name"]], method["corrupted"]
        scores = [np.mean([method["conditions"][each]["score"] for each in some]) for some in kinds.values()]
        (handles[method["name"]],) = axes.plot(scores, np.arange(len(kinds)) + offset, **style.as_plot())
        axes.hlines(mean_line + wide, value["low"], value["high"], color=style.color)
        axes.plot(value["score"], mean_line + wide, **style.as_plot())
    axes.axhspan(mean_line - 1.2, mean_line + 1.2, color=SHADE, linewidth=0, zorder=0)
    axes.set_ylim(mean_line + 1.2, -0.6)
    lines = [shorten(kind.replace("_", " ")) for kind in kinds]
    axes.set_yticks([*range(len(kinds)), mean_line], [*lines, "mean of corrupted"])
    several = " (each corruption: the mean over its severities)" if len(conditions) > len(kinds) else ""
    axes.set_xlabel(f"{metric}, %{several}")
    add_legend(figure, handles)
    return figure


def draw_times(results: Json, timing: Json | None) -> Figure:
    """Return the score against the time per image, on a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    part, methods = main_part(results), results["methods"]
    styles = styles_of(method["name"] for method in methods)
    figure, axes = start_figure(results, f"Score against time, {part} images", 4.4)
    handles, costs = {}, {}
    for method in methods:
        name, value, time = method["name"], method[part], time_of(timing, method)
        axes.vlines(time["ms"], value["low"], value["high"], color=styles[name].color)
        axes.hlines(value["score"], time["low"], time["high"], color=styles[name].color)
        (handles[name],) = axes.plot(time["ms"], value["score"], **styles[name].as_plot())
        costs[name] = f"  {number(time['relative'])}×"
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("ms per image (in the legend: times the source model's)")
    axes.set_ylabel(f"{results['setup']['metric']} on {part} images, %")
    add_legend(figure, handles, costs)
    return figure
