"""The style of the figures: colors and markers of the methods, titles, legends and axes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .reading import Json, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, GRID, SHADE = "#222222", "#6E6E6E", "#E3E3E3", "#F0F0F0"
_LONGEST = 26
"""Longer names are cut: they would leave no room for the axes."""

STYLE: dict[str, Any] = {
    "text.parse_math": False,  # names may hold dollar signs and are no formulas
    "svg.hashsalt": "sita",  # ids that do not differ from run to run
    "figure.dpi": 130,
    "figure.constrained_layout.w_pad": 0.1,
    "figure.constrained_layout.h_pad": 0.08,
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    **{f"{tick}.{kind}.size": 0 for tick in ("xtick", "ytick") for kind in ("major", "minor")},
    **{f"axes.spines.{side}": False for side in ("top", "right", "left", "bottom")},
}
"""Settings of matplotlib, on top of its default style."""


@dataclass(frozen=True)
class MarkStyle:
    """The color and marker of a method in every figure."""

    color: str
    marker: str
    size: float = 6

    def as_plot(self, line: str = "none") -> dict[str, Any]:
        """Return the settings of a plot."""
        edge = {"markeredgecolor": "white", "markeredgewidth": 0.6}
        return {"color": self.color, "marker": self.marker, "markersize": self.size, "linestyle": line, **edge}


# Okabe and Ito's and Tol's colors, which color-blind readers can distinguish; the markers differ as well.
_STYLES = {
    "source": MarkStyle("#8A8A8A", "s"),
    "ensemble": MarkStyle("#3B3B3B", "D", 5),
    "ptn": MarkStyle("#D55E00", "v"),
    "bn": MarkStyle("#E69F00", "^"),
    "augbn": MarkStyle("#56B4E9", "D", 5),
    "ops_shared": MarkStyle("#CC79A7", "p"),
    "auto": MarkStyle("#0072B2", "o", 8),
    "shift": MarkStyle("#6699CC", "<"),
    "ops": MarkStyle("#332288", "h", 6.5),
    "tent": MarkStyle("#009E73", "X"),
    "memo": MarkStyle("#882255", "P"),
    "mixnorm": MarkStyle("#CC6677", "d", 6.5),
    "ttt": MarkStyle("#117733", "*", 8),
}
_COLORS = ("#999933", "#44AA99", "#AA4499", "#661100", "#DDCC77", "#000000")
_MARKERS = (">", "*", "H", "8")


def styles_of(names: Iterable[str]) -> dict[str, MarkStyle]:
    """Return a look for every name: its own if it has one, otherwise the next free one."""
    styles: dict[str, MarkStyle] = {}
    for name in names:
        free = sum(known not in _STYLES for known in styles)
        other = MarkStyle(_COLORS[free % len(_COLORS)], _MARKERS[free % len(_MARKERS)], 6.5)
        styles.setdefault(name, _STYLES.get(name, other))
    return styles


def start_figure(results: Json, heading: str, height: float) -> tuple[Figure, Axes]:
    """Return a figure 8 inches wide, with a heading above and what was run below, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, height), layout="constrained")
    figure.suptitle(heading, x=0.015, ha="left", fontsize=13, fontweight="bold")
    about = f"{title(results)}, {results['setup']['images']} images under each condition"
    figure.supxlabel(about[:110], x=0.985, ha="right", fontsize=8, color=FAINT)
    return figure, figure.subplots()


def add_legend(figure: Figure, handles: Mapping[str, Any], notes: Mapping[str, str] | None = None) -> None:
    """Write a legend to the right of the axes: names, and notes after them."""
    labels = [shorten(name) + (notes or {}).get(name, "") for name in handles]
    figure.legend(handles.values(), labels, loc="outside right upper", frameon=False)


def shorten(name: str) -> str:
    """Return a name that fits beside the axes."""
    return name if len(name) <= _LONGEST else name[: _LONGEST - 1] + "…"


def dodge(count: int, spread: float) -> np.ndarray:
    """Return the methods' offsets from their common position: equal scores do not hide each other."""
    return np.linspace(-spread / 2, spread / 2, count) if count > 1 else np.zeros(count)
