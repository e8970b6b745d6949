"""The demo's picture: bars for every corruption, and below each an example digit with its predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..files import write_atomically
from .demo import CLEAN, DemoResult

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")

# Okabe and Ito's colours, which colour-blind readers can distinguish.
_COLOURS = {"source": "#9A9A9A", "bn": "#E69F00", "augbn": "#56B4E9", "auto": "#0072B2", "ops": "#CC79A7"}
_RIGHT, _WRONG = "#007A58", "#D55E00"
_INK, _FAINT = "#222222", "#6E6E6E"

# Inches. A column is one condition; the digits below it are measured in columns, so that they are square.
_COLUMN = 1.1
_LEFT, _RIGHT_MARGIN, _BOTTOM, _NAMES, _BARS, _HEADING = 1.25, 0.1, 0.1, 0.75, 3.0, 0.95

_BAR = 0.165
_MEAN = 1.5
"""How wide the column of means is, in columns: its bars have numbers above them."""

_DIGIT = 0.8
_LINES = {"as written": 2.15, "as seen": 1.25, "source says": 0.59, "auto says": 0.29}
"""The middle of every line of the digits, in columns from the bottom."""


def draw(result: DemoResult) -> Figure:
    """Return the picture of a result."""
    from matplotlib.figure import Figure

    columns = len(result.conditions) + _MEAN
    digits = (_LINES["as written"] + _DIGIT / 2) * _COLUMN
    width = _LEFT + columns * _COLUMN + _RIGHT_MARGIN
    height = _BOTTOM + digits + _NAMES + _BARS + _HEADING
    figure = Figure(figsize=(width, height), dpi=130, facecolor="white")

    def axes(bottom: float, tall: float) -> Axes:
        return figure.add_axes((_LEFT / width, bottom / height, columns * _COLUMN / width, tall / height))

    bars = axes(_BOTTOM + digits + _NAMES, _BARS)
    _draw_bars(bars, result)
    _draw_digits(axes(_BOTTOM, digits), result, digits / _COLUMN)
    _write_heading(bars, result)
    return figure


def save(result: DemoResult, path: Path) -> None:
    """Write the picture in the format of the file's ending."""
    figure = draw(result)
    with write_atomically(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower())


def _write_heading(bars: Axes, result: DemoResult) -> None:
    bars.annotate(
        f"On corrupted digits: auto {result.mean('auto'):.1f} %, source {result.mean('source'):.1f} %",
        (0, 1 + 0.52 / _BARS),
        xycoords="axes fraction",
        fontsize=17,
        fontweight="bold",
        color=_INK,
    )
    bars.annotate(
        f"A ResNet ({result.framework}) that was trained on clean digits adapts to every test image on its own: "
        "no labels, no gradients, no second image.",
        (0, 1 + 0.22 / _BARS),
        xycoords="axes fraction",
        fontsize=10.5,
        color=_FAINT,
    )
    bars.legend(
        loc="lower right",
        bbox_to_anchor=(1.0, 1 + 0.42 / _BARS),
        ncols=len(result.recipes),
        frameon=False,
        borderaxespad=0,
        handlelength=1.0,
        handleheight=1.0,
        columnspacing=1.4,
        fontsize=10.5,
    )


def _draw_bars(axes: Axes, result: DemoResult) -> None:
    heights = np.vstack([result.accuracies, result.means])
    last = len(result.conditions)
    places = np.array([*range(last), last + (_MEAN - 1) / 2])
    widths = np.array([_BAR] * last + [_MEAN * _BAR])
    middle = (len(result.recipes) - 1) / 2
    for number, recipe in enumerate(result.recipes):
        x = places + (number - middle) * widths
        axes.bar(x, heights[:, number], width=0.92 * widths, color=_COLOURS[recipe], label=recipe, zorder=2)
        mean = heights[-1, number]
        axes.text(x[-1], mean + 1.5, f"{mean:.1f}", ha="center", fontsize=8, color=_INK)
    axes.axvspan(last - 0.5, last - 0.5 + _MEAN, color="#F0F0F0", zorder=0)
    axes.axvline(0.5, color="#CCCCCC", linewidth=1, zorder=1)
    axes.set_xlim(-0.5, last - 0.5 + _MEAN)
    axes.set_ylim(0, 100)
    axes.set_ylabel(f"% right of {len(result.labels)} digits", color=_INK, fontsize=11)
    names = ["\n".join(name.rsplit(" ", 1)) for name in (*result.conditions, "mean of corrupted")]
    axes.set_xticks(places, names, fontsize=10.5)
    axes.tick_params(length=0, labelcolor=_INK)
    axes.yaxis.grid(color="#E3E3E3", zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_digits(axes: Axes, result: DemoResult, height: float) -> None:
    """Draw one digit per column, below its bars: original, corrupted, and the predictions of source and auto."""
    last = len(result.conditions)
    axes.set_xlim(-0.5, last - 0.5 + _MEAN)
    axes.set_ylim(0, height)
    axes.axis("off")
    for name, line in _LINES.items():
        axes.text(-0.55, line, name, ha="right", va="center", fontsize=10.5, color=_INK)
    for column, index in enumerate(pick_examples(result)):
        if result.conditions[column] != CLEAN:
            _show(axes, result.images[0, index], column, _LINES["as written"])
        _show(axes, result.images[column, index], column, _LINES["as seen"])
        for recipe in ("source", "auto"):
            answer = int(result.answers[column, result.recipes.index(recipe), index])
            _write_answer(axes, column, _LINES[f"{recipe} says"], answer, answer == result.labels[index])
    axes.text(
        last - 0.42,
        (_LINES["as written"] + _LINES["as seen"]) / 2,
        "Each time the first\ndigit, not yet shown,\non which source and\nauto differ, if there\nis one.",
        fontsize=8.5,
        color=_FAINT,
        va="center",
        linespacing=1.4,
    )


def pick_examples(result: DemoResult) -> list[int]:
    """Return a digit for every condition: the first on which source and auto differ, whichever is right.

    Digits that were not picked before come first. Where source and auto never differ, any digit is picked.
    """
    source, adapted = (result.answers[:, result.recipes.index(name)] for name in ("source", "auto"))
    picked: list[int] = []
    for differs in source != adapted:
        fresh = ~np.isin(np.arange(len(differs)), picked)
        wishes = 2 * differs + fresh
        picked.append(int(np.argmax(wishes)))
    return picked


def _show(axes: Axes, image: np.ndarray, column: float, line: float) -> None:
    half = _DIGIT / 2
    extent = (column - half, column + half, line - half, line + half)
    axes.imshow(image, cmap="gray", vmin=0, vmax=1, extent=extent, aspect="auto", interpolation="nearest")


def _write_answer(axes: Axes, column: float, line: float, answer: int, right: bool) -> None:
    axes.text(
        column,
        line,
        f"{answer} {'✓' if right else '✗'}",
        ha="center",
        va="center",
        fontsize=12.5,
        fontweight="bold",
        color=_RIGHT if right else _WRONG,
    )
