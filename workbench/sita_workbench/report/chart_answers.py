"""Figures about predictions: score against time, the chosen priors, and accuracy by entropy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from .chart_style import FAINT, GRID, INK, WIDTH, Look, Page, Tag, dodge, looks_of, mark, shorten, write_tags
from .reading import SOURCE, Json, about, main_part, number, plain_methods, score_axis, time_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_accuracy_time(results: Json, timing: Json) -> Figure:
    """Return the score against the time per image, on a logarithmic axis, every point with its name."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    part = main_part(results)
    timed = [(m, time) for m in results["methods"] if m.get(part) and (time := time_of(timing, m))]
    looks = looks_of(method["name"] for method, _ in timed)
    machine = ", ".join(
        str(text)
        for text in (
            timing.get("machine"),
            f"threads: {timing['threads']}" if timing.get("threads") else None,
            f"batch: {timing['batch']}" if timing.get("batch") else None,
        )
        if text
    )
    page = Page(4.4, f"{part} images: score against time".capitalize(), about(results), second=machine)
    axes = page.axes(0.75, 0.05, WIDTH - 0.75 - 0.25, 3.75)
    tags = []
    for method, time in timed:
        value, look = method[part], looks[method["name"]]
        axes.vlines(time["ms"], value["low"], value["high"], color=look.colour, linewidth=1.2, zorder=3)
        if time.get("low") is not None and time.get("high") is not None:
            axes.hlines(value["score"], time["low"], time["high"], color=look.colour, linewidth=1.2, zorder=3)
        axes.plot([time["ms"]], [value["score"]], **mark(look))
        cost = f"  {number(time['relative'])}×" if time.get("relative") and method["name"] != SOURCE else ""
        tags.append(
            Tag(time["ms"], value["score"], shorten(method["name"], 2.0, 9) + cost, look, value["low"], value["high"])
        )
    axes.set_xscale("log")
    times = [time["ms"] for _, time in timed]
    axes.set_xlim(min(times) / 1.5, max(times) * 2.2)
    axes.margins(y=0.08)
    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("ms per image (× : times source's)", color=INK, fontsize=9.5)
    axes.set_ylabel(score_axis(results, part), color=INK, fontsize=9.5)
    axes.grid(color=GRID, linewidth=0.6)
    write_tags(axes, tags)
    return page.figure


_PRIOR_COLOURS = {"clean": ("#E69F00", "#F8E3B4"), "corrupted": ("#0072B2", "#B5D6EA")}


def draw_chosen_priors(results: Json) -> Figure:
    """Return for each method a histogram of the chosen λ, clean beside corrupted, the correct part dark."""
    methods = [method for method in plain_methods(results) if method.get("priors")]
    parts = [part for part in _PRIOR_COLOURS if any(method["priors"].get(part) for method in methods)]
    legend: list[tuple[str, Look | str]] = []
    for part in parts:
        right, wrong = _PRIOR_COLOURS[part]
        legend += [(f"{part}, right", right), (f"{part}, wrong", wrong)]
    columns = min(2, len(methods))
    rows = -(-len(methods) // columns)
    tall, gap = 2.3, 0.75
    page = Page(rows * (tall + gap) + 0.15, "Which λ was chosen", about(results), legend)
    wide = (WIDTH - 0.7 - 0.2 - 0.45 * (columns - 1)) / columns
    unit = "pixels" if results["setup"]["task"] == "segmentation" else "images"
    for place, method in enumerate(methods):
        row, column = divmod(place, columns)
        axes = page.axes(0.7 + column * (wide + 0.45), 0.25 + row * (tall + gap), wide, tall)
        _draw_priors(axes, method["priors"], parts)
        axes.set_title(method["name"], loc="left", fontsize=10.5, color=INK, fontweight="bold")
        if column == 0:
            axes.set_ylabel(f"% of {unit}", color=INK, fontsize=9.5)
        if place >= len(methods) - columns:
            axes.set_xlabel("λ of the most certain candidate", color=INK, fontsize=9.5)
    return page.figure


def _draw_priors(axes: Axes, priors: Json, parts: list[str]) -> None:
    width = 0.8 / len(parts)
    top = 0.0
    values: list[float] = []
    for place, part in enumerate(parts):
        chosen = priors.get(part)
        if not chosen:
            continue
        values = chosen["values"]
        count, right = np.asarray(chosen["count"], float), np.asarray(chosen["right"], float)
        shares, good = 100 * count / max(count.sum(), 1), 100 * right / max(count.sum(), 1)
        x = np.arange(len(values)) + (place - (len(parts) - 1) / 2) * width
        dark, light = _PRIOR_COLOURS[part]
        axes.bar(x, shares, width * 0.92, color=light, zorder=2)
        axes.bar(x, good, width * 0.92, color=dark, zorder=3)
        for at, share, of, true in zip(x, shares, count, right, strict=True):
            if of:
                axes.annotate(
                    f"{100 * true / of:.0f}",
                    (at, share),
                    xytext=(0, 2),
                    textcoords="offset points",
                    ha="center",
                    fontsize=6.5,
                    color=FAINT,
                )
        top = max(top, float(shares.max(initial=0)))
    axes.set_xticks(range(len(values)), [f"{value:.2f}" for value in values])
    axes.set_ylim(0, 1.1 * top + 1)
    axes.yaxis.grid(color=GRID, linewidth=0.6)


def draw_entropy_bins(results: Json) -> Figure:
    """Return the accuracy of predictions by their entropy, and below every bin how many predictions it holds."""
    methods = [method for method in plain_methods(results) if method.get("entropy_bins")]
    looks = looks_of(method["name"] for method in methods)
    edges = methods[0]["entropy_bins"]["edges"]
    bins = len(edges) - 1
    left, tall, line = 1.3, 3.0, 0.21
    page = Page(
        tall + 0.55 + line * len(methods) + 0.35,
        "Accuracy by the entropy of the prediction",
        about(results) + ", corrupted",
        [(method["name"], looks[method["name"]]) for method in methods],
    )
    wide = WIDTH - left - 0.25
    axes = page.axes(left, 0.05, wide, tall)
    counts = page.axes(left, tall + 0.6, wide, line * len(methods))
    table = np.array([method["entropy_bins"]["count"] for method in methods], float)
    for row, method in enumerate(methods):
        look = looks[method["name"]]
        right = np.asarray(method["entropy_bins"]["right"], float)
        some = table[row] > 0
        x = np.arange(bins)[some] + 0.5 + dodge(row, len(methods), 0.5)
        style = mark(look) | {"linestyle": "-", "linewidth": 2.2 if look.bold else 1, "zorder": 6 if look.bold else 4}
        axes.plot(x, 100 * right[some] / table[row][some], **style)
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    counts.imshow(shares, cmap="Greys", vmin=0, vmax=2.4 * shares.max(initial=1e-9), aspect="auto")
    for (row, column), count in np.ndenumerate(table):
        counts.text(column, row, f"{count:,.0f}", ha="center", va="center", fontsize=7.5, color=INK)
    counts.set_yticks(range(len(methods)), [shorten(m["name"], left - 0.3, 8.5) for m in methods], fontsize=8.5)
    counts.set_xticks([])
    counts.set_xlabel("predictions in each bin (shade: share of the method's predictions)", color=FAINT, fontsize=8.5)
    axes.set_xlim(0, bins)
    axes.set_ylim(-3, 103)
    axes.set_xticks(range(bins + 1), [f"{edge:.2g}" if math.isfinite(edge) else "∞" for edge in edges])
    axes.grid(color=GRID, linewidth=0.6)
    axes.set_xlabel("entropy of the prediction, nats", color=INK, fontsize=9.5)
    axes.set_ylabel("% right", color=INK, fontsize=9.5)
    return page.figure
