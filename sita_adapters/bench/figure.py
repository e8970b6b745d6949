"""The demo's picture: bars for every corruption, and beneath each a digit with what was made of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .demo import CLEAN, DemoResult
from .files import replacing

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")

# Okabe and Ito's colours, which colour-blind readers tell apart.
_COLOURS = {"source": "#9a9a9a", "bn": "#E69F00", "augbn": "#56B4E9", "ops": "#0072B2", "ops_shared": "#CC79A7"}
_RIGHT, _WRONG = "#007A58", "#D55E00"
_INK, _FAINT = "#222222", "#777777"
_BAR = 0.16


def draw(result: DemoResult) -> Figure:
    """Return the picture of a result."""
    from matplotlib.figure import Figure

    columns = len(result.conditions) + 1
    figure = Figure(figsize=(1.12 * columns + 1.0, 7.6), dpi=130, facecolor="white")
    left, right, top = 0.085, 0.992, 0.80
    bars = figure.add_axes((left, 0.42, right - left, top - 0.42))
    _draw_bars(bars, result)
    strip = figure.add_axes((left, 0.02, right - left, 0.31))
    _draw_digits(strip, result)
    _write_heading(figure, result, left)
    handles, names = bars.get_legend_handles_labels()
    figure.legend(
        handles,
        names,
        loc="upper right",
        bbox_to_anchor=(right, 0.985),
        ncols=len(names),
        frameon=False,
        handlelength=1.0,
        handleheight=1.0,
        columnspacing=1.4,
    )
    return figure


def save(result: DemoResult, path: Path) -> None:
    """Write the picture, whole or not at all, in the format that the name ends in."""
    figure = draw(result)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower())


def _write_heading(figure: Figure, result: DemoResult, left: float) -> None:
    figure.text(
        left,
        0.945,
        f"ops {result.mean('ops'):.1f} %, source {result.mean('source'):.1f} % on corrupted digits",
        fontsize=17,
        fontweight="bold",
        color=_INK,
    )
    figure.text(
        left,
        0.895,
        "A ResNet trained on clean digits, adapted to every test image on its own: "
        "no labels, no gradients, no second image.",
        fontsize=10.5,
        color=_FAINT,
    )


def _draw_bars(axes: Axes, result: DemoResult) -> None:
    heights = np.vstack([result.accuracies, result.means])
    places = np.arange(len(heights))
    middle = (len(result.recipes) - 1) / 2
    for number, recipe in enumerate(result.recipes):
        axes.bar(
            places + (number - middle) * _BAR,
            heights[:, number],
            width=0.92 * _BAR,
            color=_COLOURS[recipe],
            label=recipe,
            zorder=2,
        )
    axes.axvspan(places[-1] - 0.5, places[-1] + 0.5, color="#f0f0f0", zorder=0)
    axes.axvline(0.5, color="#cccccc", linewidth=1, zorder=1)
    axes.set_xlim(-0.5, places[-1] + 0.5)
    axes.set_ylim(0, 100)
    axes.set_ylabel(f"% right of {len(result.labels)} digits", color=_INK, fontsize=11)
    names = [*result.conditions, "mean of\ncorrupted"]
    axes.set_xticks(places, [_in_two_lines(name) for name in names], fontsize=10.5, color=_INK)
    axes.tick_params(length=0, labelcolor=_INK)
    axes.yaxis.grid(color="#e3e3e3", zorder=0)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _in_two_lines(name: str) -> str:
    return name.replace(" & ", " &\n") if "&" in name else name.replace(" ", "\n", 1)


def _draw_digits(axes: Axes, result: DemoResult) -> None:
    """One digit a column, in the columns of the bars: as written, as seen, and what source and ops took it for."""
    last = len(result.conditions) + 0.5
    axes.set_xlim(-0.5, last)
    axes.set_ylim(0, 3.05)
    axes.axis("off")
    for line, name in ((2.45, "as written"), (1.45, "as seen"), (0.68, "source says"), (0.33, "ops says")):
        axes.text(-0.6, line, name, ha="right", va="center", fontsize=10.5, color=_INK)
    for column, condition in enumerate(result.conditions):
        index = pick_example(result, column)
        half = 0.4
        if condition != CLEAN:
            _show(axes, result.images[0, index], (column - half, column + half, 2.02, 2.88))
        _show(axes, result.images[column, index], (column - half, column + half, 1.02, 1.88))
        for line, recipe in ((0.68, "source"), (0.33, "ops")):
            answer = int(result.answers[column, result.recipes.index(recipe), index])
            _write_answer(axes, column, line, answer, right=answer == result.labels[index])
    axes.text(
        last - 0.95,
        1.95,
        "Shown is the\nfirst digit on\nwhich source\nand ops differ,\nif there is one,\nwhoever is right.",
        fontsize=8.5,
        color=_FAINT,
        va="center",
        linespacing=1.35,
    )


def pick_example(result: DemoResult, condition: int) -> int:
    """Return the first digit on which source and ops differ, whoever is right; the first of all if there is none."""
    source, ops = (result.answers[condition, result.recipes.index(name)] for name in ("source", "ops"))
    return int(np.argmax(source != ops))


def _show(axes: Axes, image: np.ndarray, extent: tuple[float, float, float, float]) -> None:
    axes.imshow(image, cmap="gray", vmin=0, vmax=1, extent=extent, aspect="auto", interpolation="nearest")


def _write_answer(axes: Axes, column: int, line: float, answer: int, *, right: bool) -> None:
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
