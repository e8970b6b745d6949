"""The demo's picture: accuracy against rows, what `auto` changes under each corruption, and examples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..files import write_atomically
from .demo import CLEAN, DemoResult, row_count

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")

# Okabe and Ito's colors, which color-blind readers can distinguish.
_COLORS = {"source": "#7F7F7F", "bn": "#E69F00", "auto": "#0072B2", "auto3": "#009E73", "ops": "#CC79A7"}
_RIGHT, _WRONG = "#007A58", "#D55E00"
_INK, _FAINT, _GRID = "#222222", "#6E6E6E", "#E3E3E3"
_EXAMPLES = {"only auto right": 5, "only source right": 2, "both right": 2, "both wrong": 2}
"""How many digits of each outcome are shown."""


def draw(result: DemoResult) -> Figure:
    """Return the picture of a result."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.3), dpi=140, facecolor="white")
    figure.text(0.02, 0.95, _headline(result), fontsize=19, fontweight="bold", color=_INK)
    figure.text(0.02, 0.915, _subtitle(result), fontsize=11, color=_FAINT)
    _draw_costs(figure.add_axes((0.06, 0.445, 0.37, 0.41)), result)
    _draw_kinds(figure.add_axes((0.565, 0.445, 0.37, 0.41)), result)
    _draw_examples(figure.add_axes((0.01, 0.01, 0.97, 0.35)), result)
    return figure


def save(result: DemoResult, path: Path) -> None:
    """Write the picture in the format of the file's ending."""
    figure = draw(result)
    with write_atomically(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower())


def _headline(result: DemoResult) -> str:
    return (
        f"Corrupted digits read correctly: {result.mean('source'):.1f} % → {result.mean('auto'):.1f} % with sita.adapt"
    )


def _subtitle(result: DemoResult) -> str:
    kinds, digits = len(result.corrupted), len(result.labels)
    return (
        f"{digits} test digits under {kinds} kinds of corruption, each image adapted to independently. "
        f"A ResNet trained on clean digits, {result.framework}."
    )


def _draw_costs(axes: Axes, result: DemoResult) -> None:
    """Draw the accuracy of each recipe against its rows, which is what it costs."""
    rows = [row_count(recipe) for recipe in result.recipes]
    for recipe, count, mean in zip(result.recipes, rows, result.means, strict=True):
        default = recipe == "auto"
        axes.plot(count, mean, "o", color=_COLORS[recipe], markersize=13 if default else 9, zorder=3)
        text = f"{recipe}{' (default)' if default else ''}  {mean:.1f}"
        right = count < 10
        axes.annotate(
            text,
            (count, mean),
            (11 if right else 0, 0 if right else 11),
            textcoords="offset points",
            ha="left" if right else "center",
            va="center" if right else "bottom",
            fontsize=11.5,
            fontweight="bold" if default else "normal",
            color=_INK,
        )
    axes.set_xscale("log")
    axes.set_xlim(0.8, 40)
    axes.set_xticks(sorted(set(rows)), [str(count) for count in sorted(set(rows))])
    axes.minorticks_off()
    low, high = result.means.min(), result.means.max()
    axes.set_ylim(low - 0.12 * (high - low) - 1, high + 0.18 * (high - low) + 1)
    axes.set_title("Accuracy on corrupted digits (%) against cost", fontsize=12, loc="left", color=_INK)
    axes.set_xlabel("rows that run per image (cost)", fontsize=11, color=_INK)
    _tidy(axes, "y")


def _draw_kinds(axes: Axes, result: DemoResult) -> None:
    """Draw source and auto under each condition, the largest gains at the top."""
    columns = [result.recipes.index(name) for name in ("source", "auto")]
    source, auto = result.accuracies[:, columns].T
    kinds = sorted(result.corrupted, key=lambda index: auto[index] - source[index])
    order = [*(index for index, name in enumerate(result.conditions) if name == CLEAN), *kinds]
    for line, index in enumerate(order):
        better = auto[index] >= source[index]
        axes.plot(
            [source[index], auto[index]],
            [line] * 2,
            color=_COLORS["auto"] if better else _WRONG,
            linewidth=3,
            alpha=0.45,
        )
        axes.plot(source[index], line, "o", color=_COLORS["source"], markersize=7)
        axes.plot(auto[index], line, "o", color=_COLORS["auto"], markersize=8)
        axes.text(101.5, line, _signed(auto[index] - source[index]), va="center", fontsize=10.5)
    axes.set_yticks(range(len(order)), [result.conditions[index] for index in order], fontsize=11)
    low = min(source.min(), auto.min())
    axes.set_xlim(low - 4, 100.5)
    axes.set_title("By kind of corruption (%)", fontsize=12, loc="left", color=_INK)
    axes.annotate("gain", (101.5, len(order) - 0.35), annotation_clip=False, fontsize=10.5, color=_FAINT)
    for name, x in (("source", 0.62), ("auto", 0.84)):
        axes.plot(x, 1.055, "o", color=_COLORS[name], markersize=7, transform=axes.transAxes, clip_on=False)
        axes.text(x + 0.025, 1.055, name, va="center", fontsize=11, color=_INK, transform=axes.transAxes)
    _tidy(axes, "x")


def _signed(gain: float) -> str:
    return f"{gain:+.1f}".replace("-", "−") if round(gain, 1) else "0.0"


def _tidy(axes: Axes, grid: str) -> None:
    axes.grid(axis=grid, color=_GRID)  # type: ignore[arg-type]
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelcolor=_INK)
    axes.spines[["top", "right", "left"]].set_visible(False)


def pick_examples(result: DemoResult, outcome: str, count: int) -> list[tuple[int, int]]:
    """Return the first (condition, digit) of an outcome, of different corruptions as far as there are some."""
    found = result.outcomes()[outcome]
    ranks = np.cumsum(found, axis=1)[found]  # the first digit of every corruption, then the second …
    kinds, digits = np.nonzero(found)
    order = np.argsort(ranks, kind="stable")[:count]
    return [(result.corrupted[kinds[index]], int(digits[index])) for index in order]


def _draw_examples(axes: Axes, result: DemoResult) -> None:
    """Draw digits of each of the four outcomes, as written and as seen, with both answers."""
    gap = 0.55
    shown = {name: pick_examples(result, name, count) for name, count in _EXAMPLES.items()}
    left = 1.25
    total = len(result.corrupted) * len(result.labels)
    for line, name in ((2.5, "as written"), (1.5, "as seen"), (0.72, "source"), (0.28, "auto")):
        axes.text(1.05, line, name, ha="right", va="center", fontsize=10.5, color=_INK)
    for outcome, examples in shown.items():
        number = int(result.outcomes()[outcome].sum())
        heading = f"{outcome}: {number:,} of {total:,}" if outcome == "only auto right" else f"{outcome}: {number:,}"
        bold = "bold" if outcome == "only auto right" else "normal"
        axes.text(left, 3.2, heading, fontsize=11, fontweight=bold, color=_INK)
        for column, (condition, index) in enumerate(examples):
            x = left + column
            _show(axes, result.images[0, index], x, 2.04)
            _show(axes, result.images[condition, index], x, 1.04)
            for recipe, line in (("source", 0.72), ("auto", 0.28)):
                answer = int(result.answers[condition, result.recipes.index(recipe), index])
                _write_answer(axes, x + 0.46, line, answer, answer == result.labels[index])
        left += _EXAMPLES[outcome] + gap
    axes.set_xlim(0, left - gap)
    axes.set_ylim(0, 3.6)
    axes.axis("off")


def _show(axes: Axes, image: np.ndarray, left: float, bottom: float) -> None:
    extent = (left, left + 0.92, bottom, bottom + 0.92)
    axes.imshow(image, cmap="gray", vmin=0, vmax=1, extent=extent, aspect="auto", interpolation="nearest")


def _write_answer(axes: Axes, x: float, y: float, answer: int, right: bool) -> None:
    color = _RIGHT if right else _WRONG
    text = f"{answer} {'✓' if right else '✗'}"
    axes.text(x, y, text, ha="center", va="center", fontsize=12.5, fontweight="bold", color=color)
