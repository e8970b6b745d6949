"""Figures that compare methods: scores by corruption and against time, the chosen priors, accuracy by entropy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .chart_style import SHADE, add_legend, dodge, looks_of, score_label, shorten, start_figure
from .reading import CLEAN, Json, corruption_of, main_part, number, plain_methods, time_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FEW = 10
"""Of fewer predictions than this the share that is right says little, and is not shown."""


def draw_corruptions(results: Json, timing: Json | None) -> Figure | None:
    """Return one line per corruption with the methods' scores, and their means with intervals below.

    Dots, because bars of nine methods under sixteen conditions would be too thin. A corruption at several severities
    is shown as their mean.
    """
    methods = [method for method in plain_methods(results) if method.get("conditions")]
    if not methods or main_part(results) != "corrupted":
        return None
    looks = looks_of(method["name"] for method in methods)
    conditions = results["setup"]["conditions"]
    kinds = sorted(dict.fromkeys(map(corruption_of, conditions)), key=lambda kind: kind != CLEAN)
    mean_line = len(kinds) + 0.7
    metric = results["setup"]["metric"]
    heading = f"{metric.capitalize() if metric.islower() else metric} under each corruption"
    figure, ((axes,),) = start_figure(results, heading, max(3.2, 0.32 * mean_line + 1.7))
    handles = {}
    for method, offset, wide in zip(methods, dodge(len(methods), 0.6), dodge(len(methods), 1.7), strict=True):
        look = looks[method["name"]]
        scores = [_mean_score(method, kind) for kind in kinds]
        (handles[method["name"]],) = axes.plot(scores, np.arange(len(kinds)) + offset, **look.as_plot())
        value = method["corrupted"]
        if value:
            axes.hlines(mean_line + wide, value["low"], value["high"], color=look.color)
            axes.plot(value["score"], mean_line + wide, **look.as_plot())
    axes.axhspan(mean_line - 1.2, mean_line + 1.2, color=SHADE, linewidth=0, zorder=0)
    axes.set_ylim(mean_line + 1.2, -0.6)
    lines = [shorten(kind.replace("_", " ")) for kind in kinds]
    axes.set_yticks([*range(len(kinds)), mean_line], [*lines, "mean of corrupted"])
    several = len(conditions) > len(kinds)
    axes.set_xlabel(f"{metric}, %" + (" (each corruption: the mean over its severities)" if several else ""))
    add_legend(figure, handles)
    return figure


def _mean_score(method: Json, kind: str) -> float:
    scores = [value["score"] for name, value in method["conditions"].items() if corruption_of(name) == kind]
    return float(np.mean(scores)) if scores else math.nan


def draw_accuracy_time(results: Json, timing: Json | None) -> Figure | None:
    """Return the score against the time per image, on a logarithmic axis."""
    from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

    part = main_part(results)
    timed = [method for method in results["methods"] if method.get(part) and time_of(timing, method)]
    if not timed:
        return None
    looks = looks_of(method["name"] for method in timed)
    figure, ((axes,),) = start_figure(results, f"Score against time, {part} images", 4.4)
    handles, costs = {}, {}
    for method in timed:
        name, value, time = method["name"], method[part], time_of(timing, method)
        axes.vlines(time["ms"], value["low"], value["high"], color=looks[name].color)
        axes.hlines(value["score"], time["low"], time["high"], color=looks[name].color)
        (handles[name],) = axes.plot(time["ms"], value["score"], **looks[name].as_plot())
        costs[name] = f"  {number(time['relative'])}×"
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel("ms per image (in the legend: times the source model's)")
    axes.set_ylabel(score_label(results, part))
    add_legend(figure, handles, costs)
    return figure


_PRIOR_COLORS = {"clean": ("#F8E3B4", "#E69F00"), "corrupted": ("#B5D6EA", "#0072B2")}


def draw_chosen_priors(results: Json, timing: Json | None) -> Figure | None:
    """Return for each method a histogram of the chosen λ, clean beside corrupted, the correct part dark."""
    methods = [method for method in plain_methods(results) if method.get("priors")]
    if not methods:
        return None
    columns = min(2, len(methods))
    rows = -(-len(methods) // columns)
    figure, panels = start_figure(results, "Which λ was chosen", 2.6 * rows + 0.9, (rows, columns), sharex=True)
    unit = "pixels" if results["setup"]["task"] == "segmentation" else "images"
    handles: dict[str, object] = {}
    for axes, method in zip(panels.flat, methods, strict=False):
        handles |= _draw_priors(axes, method["priors"])
        axes.set_title(shorten(method["name"]))
        axes.set_ylabel(f"% of {unit}")
        axes.set_xlabel("λ of the most certain candidate")
        axes.tick_params(labelbottom=True)
    for axes in panels.flat[len(methods) :]:
        axes.set_axis_off()
    add_legend(figure, handles)
    return figure


def _draw_priors(axes: Axes, priors: Json) -> dict[str, object]:
    shown = {part: chosen for part in _PRIOR_COLORS if (chosen := priors.get(part))}
    handles: dict[str, object] = {}
    for (part, chosen), side in zip(shown.items(), dodge(len(shown), 1), strict=True):
        values, count, right = (np.asarray(chosen[key], float) for key in ("values", "count", "right"))
        width = 0.8 * np.diff(values).min(initial=0.1) / len(shown)
        shares = 100 / max(count.sum(), 1) * np.stack([count, right])
        for name, share, color in zip(("wrong", "right"), shares, _PRIOR_COLORS[part], strict=True):
            handles[f"{part}, {name}"] = axes.bar(values + side * width, share, width * 0.94, color=color)
    axes.grid(visible=False, axis="x")
    return handles


def draw_entropy_bins(results: Json, timing: Json | None) -> Figure | None:
    """Return the accuracy of predictions by their entropy, and below it the share of predictions in every bin.

    Bins of few predictions have no dot: one right answer in a bin of one would be 100 %.
    """
    methods = [method for method in plain_methods(results) if method.get("entropy_bins")]
    if not methods:
        return None
    looks = looks_of(method["name"] for method in methods)
    heading = f"Accuracy by entropy, {main_part(results)} images"
    figure, ((axes,), (shares,)) = start_figure(results, heading, 5.2, (2, 1), sharex=True, height_ratios=(3, 1.3))
    # The bins of high entropy are mostly empty.
    table = np.array([method["entropy_bins"]["count"] for method in methods], float)
    bins = 1 + int(max(np.flatnonzero(table.sum(axis=0)), default=0))
    handles = {}
    for method, count, offset in zip(methods, table[:, :bins], dodge(len(methods), 0.5), strict=True):
        right = np.asarray(method["entropy_bins"]["right"], float)[:bins]
        some = count >= _FEW
        x, style = np.arange(bins) + 0.5 + offset, looks[method["name"]].as_plot("-") | {"linewidth": 1}
        (handles[method["name"]],) = axes.plot(x[some], 100 * right[some] / count[some], **style)
        shares.plot(x, 100 * count / max(count.sum(), 1), **(style | {"linestyle": "none"}))
    edges = methods[0]["entropy_bins"]["edges"][: bins + 1]
    shares.set_xticks(range(bins + 1), [f"{edge:.2g}" if math.isfinite(edge) else "∞" for edge in edges])
    shares.set_xlim(0, bins)
    shares.set_xlabel("entropy of the prediction, nats")
    shares.set_ylabel("% of predictions")
    axes.set_ylim(-3, 103)
    axes.set_ylabel("% right")
    add_legend(figure, handles)
    return figure
