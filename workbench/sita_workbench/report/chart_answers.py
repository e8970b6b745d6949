"""Figures about predictions: score against time, the chosen priors, and accuracy by entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .chart_style import (
    FAINT,
    GRID,
    INK,
    WIDTH,
    Look,
    Page,
    Tag,
    dodge,
    looks_of,
    mark,
    shorten,
    text_width,
    write_tags,
)
from .reading import SOURCE, Json, about, describe_timing, main_part, number, plain_methods, score_axis, time_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_FEW = 10
"""Of fewer predictions than this the share that is right says little, and is not shown."""


def draw_accuracy_time(results: Json, timing: Json) -> Figure:
    """Return the score against the time per image, on a logarithmic axis, every point with its name."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    part = main_part(results)
    timed = [(m, time) for m in results["methods"] if m.get(part) and (time := time_of(timing, m))]
    looks = looks_of(method["name"] for method, _ in timed)
    page = Page(4.4, f"{part} images: score against time".capitalize(), about(results), second=describe_timing(timing))
    axes = page.axes(0.75, 0.05, WIDTH - 0.75 - 0.25, 3.75)
    tags = []
    for method, time in timed:
        value, look = method[part], looks[method["name"]]
        axes.plot([time["ms"]], [value["score"]], **mark(look))
        cost = f"  {number(time['relative'])}×" if time.get("relative") and method["name"] != SOURCE else ""
        text = shorten(method["name"], 2.0, 9) + cost
        ends = value["low"], value["high"], time.get("low"), time.get("high")
        tags.append(Tag(time["ms"], value["score"], text, look, *ends))
        for line in tags[-1].lines():
            axes.plot(*zip(*line, strict=True), color=look.colour, linewidth=1.2, zorder=3)
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
    shown = {part: chosen for part in parts if (chosen := priors.get(part))}
    values = next(iter(shown.values()))["values"]
    first, last = _chosen_range([chosen["count"] for chosen in shown.values()])
    width = 0.8 / len(parts)
    inches = axes.get_position().width * WIDTH * width / (last - first + 0.2)
    has_room = inches > text_width("100", 6.5)
    top = 0.0
    for part, chosen in shown.items():
        count, right = (np.asarray(chosen[key], float)[first:last] for key in ("count", "right"))
        shares, good = 100 * count / max(sum(chosen["count"]), 1), 100 * right / max(sum(chosen["count"]), 1)
        x = np.arange(first, last) + (parts.index(part) - (len(parts) - 1) / 2) * width
        dark, light = _PRIOR_COLOURS[part]
        axes.bar(x, shares, width * 0.92, color=light, zorder=2)
        axes.bar(x, good, width * 0.92, color=dark, zorder=3)
        for at, share, of, true in zip(x, shares, count, right, strict=True):
            if has_room and of >= _FEW:
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
    step = -(-(last - first) // 11)
    ticks = range(last - 1, first - 1, -step)
    axes.set_xticks(ticks, [f"{values[tick]:.2f}" for tick in ticks])
    axes.set_xlim(first - 0.6, last - 0.4)
    axes.set_ylim(0, 1.1 * top + 1)
    axes.yaxis.grid(color=GRID, linewidth=0.6)


def _chosen_range(counts: Sequence[Sequence[int]], least: int = 8) -> tuple[int, int]:
    """Return the first and the last but one of the priors to show: those that were chosen, and at least so many."""
    chosen = np.flatnonzero(np.sum(counts, axis=0))
    total = len(counts[0])
    first, last = (int(chosen[0]), int(chosen[-1]) + 1) if len(chosen) else (0, total)
    first = max(0, min(first, last - least))
    return first, min(total, max(last, first + least))


def draw_entropy_bins(results: Json) -> Figure:
    """Return the accuracy of predictions by their entropy, and below every bin how many predictions it holds.

    Bins of few predictions have no dot: one right answer in a bin of one would be 100 %.
    """
    methods = [method for method in plain_methods(results) if method.get("entropy_bins")]
    looks = looks_of(method["name"] for method in methods)
    table = np.array([method["entropy_bins"]["count"] for method in methods], float)
    # The bins of high entropy are mostly empty.
    bins = 1 + max(np.flatnonzero(table.sum(axis=0)), default=0)
    edges, table = methods[0]["entropy_bins"]["edges"][: bins + 1], table[:, :bins]
    left, tall, line = 1.3, 3.0, 0.21
    page = Page(
        tall + 0.55 + line * len(methods) + 0.35,
        "Accuracy by the entropy of the prediction",
        f"{about(results)}, {main_part(results)}",
        [(method["name"], looks[method["name"]]) for method in methods],
    )
    wide = WIDTH - left - 0.25
    axes = page.axes(left, 0.05, wide, tall)
    counts = page.axes(left, tall + 0.6, wide, line * len(methods))
    for row, method in enumerate(methods):
        look = looks[method["name"]]
        right = np.asarray(method["entropy_bins"]["right"], float)[:bins]
        some = table[row] >= _FEW
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
