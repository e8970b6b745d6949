"""The demo's figure: accuracy against rows, the effect of `auto` under each corruption, and examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..files import write_atomically
from .demo import DemoResult, row_count

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")

# Okabe and Ito's colors, which color-blind readers can distinguish.
_COLORS = {"source": "#7F7F7F", "bn": "#E69F00", "auto": "#0072B2", "ops": "#CC79A7"}
_COLORS |= {"calibrated": "#56B4E9", "restore": "#009E73"}
_RIGHT, _WRONG = "#007A58", "#D55E00"
_FAINT, _GRID = "#6E6E6E", "#E3E3E3"
_EXAMPLES = {"only auto right": 5, "only source right": 2, "both right": 2, "both wrong": 2}
"""How many digits of each outcome are shown."""


def draw(result: DemoResult) -> Figure:
    """Return the picture of a result."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.3), dpi=140, facecolor="white")
    before, after = result.mean("source"), result.mean("auto")
    headline = f"Corrupted digits read correctly: {before:.1f} % → {after:.1f} % with sita.adapt"
    figure.text(0.02, 0.95, headline, fontsize=19, fontweight="bold")
    subtitle = (
        f"{len(result.labels)} test digits under {len(result.conditions) - 1} kinds of corruption, each image adapted "
        f"to independently. A ResNet trained on clean digits, {result.framework}."
    )
    figure.text(0.02, 0.915, subtitle, fontsize=11, color=_FAINT)
    _draw_costs(figure.add_axes((0.06, 0.445, 0.37, 0.41)), result)
    _draw_kinds(figure.add_axes((0.565, 0.445, 0.37, 0.41)), result)
    _draw_examples(figure.add_axes((0.01, 0.01, 0.97, 0.35)), result)
    return figure


def save(result: DemoResult, path: Path) -> None:
    """Write the picture in the format of the file's ending."""
    figure = draw(result)
    with write_atomically(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower())


def _draw_costs(axes: Axes, result: DemoResult) -> None:
    """Draw the accuracy of each recipe against its cost in rows."""
    rows = [row_count(recipe) for recipe in result.recipes]
    for recipe, count, mean in zip(result.recipes, rows, result.means, strict=True):
        default = recipe == "auto"
        axes.plot(count, mean, "o", color=_COLORS[recipe], markersize=13 if default else 9, zorder=3)
        text = f"{recipe}{' (default)' if default else ''}  {mean:.1f}"
        weight = "bold" if default else "normal"
        below = -13 if recipe == "calibrated" else 0  # `restore` may be at its right
        offset, ha, va = ((11, below), "left", "center") if count < 10 else ((0, 11), "center", "bottom")
        style = {"ha": ha, "va": va, "fontsize": 11.5, "fontweight": weight}
        axes.annotate(text, (count, mean), offset, textcoords="offset points", **style)  # type: ignore[arg-type]
    axes.set_xscale("log")
    axes.set_xlim(0.8, 40)
    axes.set_xticks(sorted(set(rows)), [str(count) for count in sorted(set(rows))])
    axes.minorticks_off()
    low, high = result.means.min(), result.means.max()
    axes.set_ylim(low - 0.12 * (high - low) - 1, high + 0.18 * (high - low) + 1)
    axes.set_title("Accuracy on corrupted digits (%) against cost", fontsize=12, loc="left")
    axes.set_xlabel("rows that run per image (cost)", fontsize=11)
    _tidy(axes, "y")


def _draw_kinds(axes: Axes, result: DemoResult) -> None:
    """Draw source and auto under each condition, the largest gains at the top, clean digits at the bottom."""
    source, auto = result.accuracies[:, [result.recipes.index(name) for name in ("source", "auto")]].T
    gains = auto - source
    order = [0, *(1 + np.argsort(gains[1:], kind="stable"))]
    for y, index in enumerate(order):
        color = _COLORS["auto"] if gains[index] >= 0 else _WRONG
        axes.plot([source[index], auto[index]], [y, y], color=color, linewidth=3, alpha=0.45)
        axes.plot(source[index], y, "o", color=_COLORS["source"], markersize=7)
        axes.plot(auto[index], y, "o", color=_COLORS["auto"], markersize=8)
        text = f"{gains[index]:+.1f}".replace("-", "−") if round(gains[index], 1) else "0.0"
        axes.text(101.5, y, text, va="center", fontsize=10.5)
    axes.set_yticks(range(len(order)), [result.conditions[index] for index in order], fontsize=11)
    axes.set_xlim(min(source.min(), auto.min()) - 4, 100.5)
    axes.set_title("By kind of corruption (%)", fontsize=12, loc="left")
    axes.text(101.5, len(order) - 0.35, "gain", fontsize=10.5, color=_FAINT)
    for name, x in (("source", 0.62), ("auto", 0.84)):
        axes.plot(x, 1.055, "o", color=_COLORS[name], markersize=7, transform=axes.transAxes, clip_on=False)
        axes.text(x + 0.025, 1.055, name, va="center", fontsize=11, transform=axes.transAxes)
    _tidy(axes, "x")


def _tidy(axes: Axes, grid: str) -> None:
    axes.grid(axis=grid, color=_GRID)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def pick_examples(result: DemoResult, outcome: str, count: int) -> list[tuple[int, int]]:
    """Return the first (condition, digit) of an outcome, from different corruptions if possible."""
    found = result.outcomes()[outcome]
    ranks = np.cumsum(found, axis=1)[found]  # the first digit of every corruption, then the second …
    kinds, digits = np.nonzero(found)
    return [(1 + int(kinds[index]), int(digits[index])) for index in np.argsort(ranks, kind="stable")[:count]]


def _draw_examples(axes: Axes, result: DemoResult) -> None:
    """Draw digits of each of the four outcomes, clean and corrupted, with both answers."""
    left, gap = 1.25, 0.55
    for y, name in ((2.5, "as written"), (1.5, "as seen"), (0.72, "source"), (0.28, "auto")):
        axes.text(1.05, y, name, ha="right", va="center", fontsize=10.5)
    for outcome, which in result.outcomes().items():
        first = outcome == "only auto right"
        heading = f"{outcome}: {which.sum():,}" + (f" of {which.size:,}" if first else "")
        axes.text(left, 3.2, heading, fontsize=11, fontweight="bold" if first else "normal")
        for column, example in enumerate(pick_examples(result, outcome, _EXAMPLES[outcome])):
            _draw_example(axes, result, example, left + column)
        left += _EXAMPLES[outcome] + gap
    axes.set_xlim(0, left - gap)
    axes.set_ylim(0, 3.6)
    axes.axis("off")


def _draw_example(axes: Axes, result: DemoResult, example: tuple[int, int], x: float) -> None:
    condition, index = example
    for image, bottom in ((result.images[0, index], 2.04), (result.images[condition, index], 1.04)):
        extent = (x, x + 0.92, bottom, bottom + 0.92)
        axes.imshow(image, cmap="gray", vmin=0, vmax=1, extent=extent, aspect="auto", interpolation="nearest")
    for recipe, y in (("source", 0.72), ("auto", 0.28)):
        answer = int(result.answers[condition, result.recipes.index(recipe), index])
        text, color = (f"{answer} ✓", _RIGHT) if answer == result.labels[index] else (f"{answer} ✗", _WRONG)
        axes.text(x + 0.46, y, text, ha="center", va="center", fontsize=12.5, fontweight="bold", color=color)
