"""The figures of the study: gain by severity, and gain by kind of corruption."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sita_workbench.corruptions import KINDS
from sita_workbench.report.chart_style import FAINT, GRID, INK, styles_of

from .networks import NETWORKS

SHOWN = ("bn", "auto", "auto3", "calibrated")


def draw_severities(results: Mapping[str, Any], path: Path) -> None:
    """Draw what recipes gain on clean images and at severities 1, 3 and 5, with 95 % intervals: a panel per network."""
    figure = Figure(figsize=(12, 6), layout="constrained")
    panels = figure.subplots(2, 4, sharex=True)
    styles = styles_of(SHOWN)
    for axes, (name, network) in zip(panels.flat, results.items(), strict=False):
        conditions = [network["clean"]["held out"], *(network["severities"][severity] for severity in "135")]
        for offset, recipe in zip((-0.18, -0.06, 0.06, 0.18), SHOWN, strict=True):
            run = [position for position, condition in enumerate(conditions) if recipe in condition]
            gains, look = [conditions[position][recipe]["gain"] for position in run], styles[recipe]
            x = np.array(run) + offset
            for position, gain in zip(x, gains, strict=True):
                axes.plot([position] * 2, [gain["low"], gain["high"]], color=look.color, linewidth=1, alpha=0.6)
            axes.plot(x, [gain["score"] for gain in gains], look.marker, color=look.color, markersize=look.size)
        axes.axhline(0, color=FAINT, linewidth=0.8)
        axes.set_title(NETWORKS[name].title, fontsize=10, color=INK)
        axes.set_xticks(range(4), ["clean", "1", "3", "5"])
        axes.grid(color=GRID, axis="y")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(panels.flat)[len(results) :]:
        axes.set_axis_off()
    for axes in panels[:, 0]:
        axes.set_ylabel("gain over the source, points", fontsize=9)
    handles = [
        Line2D([], [], linestyle="", marker=styles[n].marker, color=styles[n].color, markersize=7) for n in SHOWN
    ]
    figure.legend(handles, SHOWN, loc="outside lower center", ncols=len(SHOWN), frameon=False, fontsize=10)
    figure.savefig(path, dpi=110)


def draw_kinds(results: Mapping[str, Any], path: Path, recipe: str = "auto") -> None:
    """Draw a table in colors: a recipe's gain at severity 5, kinds of corruption × networks."""
    values = np.array([[network["kinds"]["5"][recipe][kind] for kind in KINDS] for network in results.values()])
    figure = Figure(figsize=(11, 0.5 * len(results) + 2), layout="constrained")
    axes = figure.subplots()
    axes.imshow(values, cmap="RdBu", vmin=-40, vmax=40, aspect="auto")
    for row, line in enumerate(values):
        for column, value in enumerate(line):
            color = "white" if abs(value) > 25 else INK
            axes.text(column, row, f"{value:+.0f}", ha="center", va="center", fontsize=9, color=color)
    axes.set_xticks(range(len(KINDS)), [kind.replace("_", " ") for kind in KINDS], rotation=35, ha="right", fontsize=9)
    axes.set_yticks(range(len(results)), [NETWORKS[name].title for name in results], fontsize=9)
    axes.set_title(f"What {recipe} gains at severity 5, points", fontsize=10, color=INK)
    figure.savefig(path, dpi=110)
