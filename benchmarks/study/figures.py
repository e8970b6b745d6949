"""The figures of the study: gain by group of conditions, and gain by kind of corruption."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from sita_workbench.report.chart_style import FAINT, GRID, INK, styles_of

from .networks import NETWORKS

SHOWN = ("bn", "auto", "restore", "calibrated")
_COLUMNS = 5


def draw_groups(results: Mapping[str, Any], path: Path) -> None:
    """Draw what recipes gain in each group of conditions, with 95 % intervals: a panel per network."""
    lines = math.ceil(len(results) / _COLUMNS)
    figure = Figure(figsize=(14, 3 * lines), layout="constrained")
    panels = figure.subplots(lines, _COLUMNS, sharex=True, squeeze=False)
    styles = styles_of(SHOWN)
    for axes, (name, network) in zip(panels.flat, results.items(), strict=False):
        groups = network["groups"]
        for offset, recipe in zip((-0.24, -0.08, 0.08, 0.24), SHOWN, strict=True):
            gains, look = [found[recipe]["gain"] for found in groups.values()], styles[recipe]
            x = np.arange(len(groups)) + offset
            for position, gain in zip(x, gains, strict=True):
                axes.plot([position] * 2, [gain["low"], gain["high"]], color=look.color, linewidth=1, alpha=0.6)
            axes.plot(x, [gain["score"] for gain in gains], look.marker, color=look.color, markersize=look.size)
        axes.axhline(0, color=FAINT, linewidth=0.8)
        axes.set_title(NETWORKS[name].title, fontsize=10, color=INK)
        axes.set_xticks(range(len(groups)), list(groups), fontsize=8)
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
    """Draw a table in colors: a recipe's gain at severity 5, kinds of corruption × networks; hold-out kinds last."""
    gains = [network["kinds"]["5"][recipe] | network["kinds"]["hold-out"][recipe] for network in results.values()]
    kinds = list(gains[0])
    figure = Figure(figsize=(13, 0.5 * len(results) + 2), layout="constrained")
    axes = figure.subplots()
    axes.imshow([list(line.values()) for line in gains], cmap="RdBu", vmin=-40, vmax=40, aspect="auto")
    for row, line in enumerate(gains):
        for column, value in enumerate(line.values()):
            color = "white" if abs(value) > 25 else INK
            axes.text(column, row, f"{value:+.0f}", ha="center", va="center", fontsize=9, color=color)
    axes.axvline(len(kinds) - len(next(iter(results.values()))["kinds"]["hold-out"][recipe]) - 0.5, color=INK)
    axes.set_xticks(range(len(kinds)), [kind.replace("_", " ") for kind in kinds], rotation=35, ha="right", fontsize=9)
    axes.set_yticks(range(len(results)), [NETWORKS[name].title for name in results], fontsize=9)
    axes.set_title(f"What {recipe} gains at severity 5, points; hold-out kinds on the right", fontsize=10, color=INK)
    figure.savefig(path, dpi=110)
