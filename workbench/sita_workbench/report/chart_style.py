"""The style of the figures: colours and markers of the methods, a page in inches, labels that do not overlap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, GRID, SHADE = "#222222", "#6E6E6E", "#E3E3E3", "#F0F0F0"
WIDTH = 8.0
MARGIN = 0.2
DPI = 130

_TITLE, _NOTE, _LEGEND_LINE = 0.4, 0.3, 0.23
_LEGEND_SIZE, _LEGEND_MARK, _LEGEND_GAP, _LEGEND_LONGEST = 9.0, 0.2, 0.2, 3.2


@dataclass(frozen=True)
class Look:
    """The colour and marker of a method in every figure."""

    colour: str
    marker: str
    size: float = 5.5
    bold: bool = False


# Okabe and Ito's and Tol's colours, which colour-blind readers can distinguish; the markers differ as well.
_LOOKS = {
    "source": Look("#8A8A8A", "s"),
    "ensemble": Look("#3B3B3B", "D", 4.5),
    "ptn": Look("#D55E00", "v"),
    "bn": Look("#E69F00", "^"),
    "augbn": Look("#56B4E9", "D", 5),
    "ops_shared": Look("#CC79A7", "p", 6),
    "auto": Look("#0072B2", "o", 7.5, bold=True),
    "shift": Look("#6699CC", "<", 6),
    "ops": Look("#332288", "h", 6.5),
    "tent": Look("#009E73", "X", 6),
    "memo": Look("#882255", "P", 6),
}
_COLOURS = ("#999933", "#117733", "#CC6677", "#44AA99", "#AA4499", "#661100", "#DDCC77", "#000000")
_MARKERS = (">", "*", "d", "H", "8")


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """Return a look for every name: its own where it has one, else the next free one."""
    looks: dict[str, Look] = {}
    for name in names:
        if name not in looks:
            free = sum(known not in _LOOKS for known in looks)
            other = Look(_COLOURS[free % len(_COLOURS)], _MARKERS[free % len(_MARKERS)], 6.5)
            looks[name] = _LOOKS.get(name, other)
    return looks


def mark(look: Look) -> dict[str, Any]:
    """Return a look as plot settings, with markers only."""
    return {
        "color": look.colour,
        "marker": look.marker,
        "markersize": look.size,
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
        "linestyle": "none",
        # Below the smaller markers, which it would hide.
        "zorder": 4 if look.bold else 5,
    }


def dodge(place: int, count: int, spread: float) -> float:
    """Return a method's offset from its line, so that equal scores do not hide each other."""
    return spread * (place / (count - 1) - 0.5) if count > 1 else 0.0


class Page:
    """A figure 8 inches wide: a title, a note, a legend that flows over lines, and a body measured from its top."""

    def __init__(
        self, body: float, title: str, note: str, legend: Sequence[tuple[str, Look | str]] = (), *, second: str = ""
    ) -> None:
        from matplotlib.figure import Figure

        notes = [text for text in (note, second) if text]
        legend = [(shorten(name, _LEGEND_LONGEST, _LEGEND_SIZE), look) for name, look in legend]
        lines = _flow([name for name, _ in legend])
        self._head = _TITLE + _NOTE * 0.75 * len(notes) + _LEGEND_LINE * len(lines) + 0.2
        self._height = self._head + body
        self.figure: Figure = Figure(figsize=(WIDTH, self._height), dpi=DPI, facecolor="white")
        self._write(MARGIN, 0.36, title, size=14, weight="bold", color=INK)
        for place, text in enumerate(notes):
            shown = shorten(text, WIDTH - 2 * MARGIN, 9)
            self._write(MARGIN, _TITLE + 0.21 * (place + 1), shown, size=9, color=FAINT)
        entries = iter(legend)
        for line, members in enumerate(lines):
            base = _TITLE + _NOTE * 0.75 * len(notes) + _LEGEND_LINE * (line + 1)
            left = MARGIN
            for width in members:
                self._write_entry(left, base, *next(entries))
                left += width

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        """Return axes with their upper left corner at a place in the body, in inches."""
        bottom = self._height - self._head - top - height
        place = (left / WIDTH, bottom / self._height, width / WIDTH, height / self._height)
        axes: Axes = self.figure.add_axes(place)
        axes.tick_params(length=0, labelcolor=INK, labelsize=9)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
        return axes

    def _write(self, left: float, base: float, text: str, **style: Any) -> None:
        self.figure.text(left / WIDTH, 1 - base / self._height, text, **style)

    def _write_entry(self, left: float, base: float, name: str, look: Look | str) -> None:
        from matplotlib.lines import Line2D
        from matplotlib.patches import Rectangle

        middle = (left + _LEGEND_MARK / 2) / WIDTH, 1 - (base - 0.045) / self._height
        if isinstance(look, Look):
            self.figure.add_artist(Line2D([middle[0]], [middle[1]], **mark(look)))
        else:
            sides = 0.13 / WIDTH, 0.13 / self._height
            corner = middle[0] - sides[0] / 2, middle[1] - sides[1] / 2
            self.figure.add_artist(Rectangle(corner, *sides, facecolor=look, transform=self.figure.transFigure))
        bold = isinstance(look, Look) and look.bold
        self._write(
            left + _LEGEND_MARK + 0.04,
            base,
            name,
            size=_LEGEND_SIZE,
            color=INK,
            weight="bold" if bold else "normal",
        )


def _flow(names: Sequence[str]) -> list[list[float]]:
    """Return the widths of a legend's entries, line by line."""
    lines: list[list[float]] = []
    for name in names:
        width = _LEGEND_MARK + 0.04 + text_width(name, _LEGEND_SIZE, bold=True) + _LEGEND_GAP
        if not lines or sum(lines[-1]) + width > WIDTH - 2 * MARGIN + _LEGEND_GAP:
            lines.append([])
        lines[-1].append(width)
    return lines


@lru_cache(maxsize=4096)
def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of a text in inches."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size, weight="bold" if bold else "normal")
    width, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(width) / 72


def shorten(text: str, width: float, size: float) -> str:
    """Return a text cut to a width in inches, with an ellipsis."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


@dataclass(frozen=True)
class Tag:
    """A point of a plot, the text to write beside it, and the lines through it: up and down, left and right."""

    x: float
    y: float
    text: str
    look: Look
    low: float | None = None
    high: float | None = None
    left: float | None = None
    right: float | None = None

    def lines(self) -> list[list[tuple[float, float]]]:
        """Return the two ends of each line."""
        found = []
        if self.low is not None and self.high is not None:
            found.append([(self.x, self.low), (self.x, self.high)])
        if self.left is not None and self.right is not None:
            found.append([(self.left, self.y), (self.right, self.y)])
        return found


def write_tags(
    axes: Axes, tags: Sequence[Tag], size: float = 9, lines: Sequence[Sequence[tuple[float, float]]] = ()
) -> None:
    """Write a text beside every point, where possible without covering a point, interval, line or other text.

    Call it last: it depends on the limits of the axes.
    """
    figure = axes.get_figure()
    assert figure is not None
    frame = np.asarray(axes.get_window_extent().extents)
    unit = figure.dpi / 72

    def place(x: float, y: float) -> np.ndarray:
        return np.asarray(axes.transData.transform((x, y)), dtype=float)

    taken = [_box(place(tag.x, tag.y), 0.5 * tag.look.size * unit + 1) for tag in tags]
    for line in (*lines, *(line for tag in tags for line in tag.lines())):
        taken += _along(np.array([place(x, y) for x, y in line]))
    for tag in sorted((tag for tag in tags if tag.text), key=lambda tag: not tag.look.bold):
        wide = text_width(tag.text, size, bold=tag.look.bold) * 72
        at = place(tag.x, tag.y)
        offsets = _offsets(wide, size)
        corners = at + unit * np.asarray(offsets)
        boxes = np.hstack([corners - 1, corners + unit * np.array([wide, size]) + 1])
        # The place that covers least; among equal ones, the nearest.
        chosen = int(np.argmin(_outside(boxes, frame) + _covered(boxes, np.stack(taken))))
        best = offsets[chosen]
        taken.append(boxes[chosen])
        far = np.hypot(best[0] + wide / 2, best[1] + size / 2) > wide / 2 + 2.2 * size
        axes.annotate(
            tag.text,
            (tag.x, tag.y),
            xytext=best,
            textcoords="offset points",
            fontsize=size,
            fontweight="bold" if tag.look.bold else "normal",
            color=_darken(tag.look.colour),
            va="bottom",
            arrowprops={"arrowstyle": "-", "color": "#AAAAAA", "linewidth": 0.6, "shrinkB": 3} if far else None,
            zorder=6,
        )


def _darken(colour: str) -> str:
    """Return a darker shade, for small letters."""
    from matplotlib.colors import to_hex, to_rgb

    red, green, blue = to_rgb(colour)
    return to_hex((0.55 * red, 0.55 * green, 0.55 * blue))


def _offsets(wide: float, tall: float) -> list[tuple[float, float]]:
    """Return candidates for a text's lower left corner, in points from its point, nearest first."""
    found = []
    for away in (6.0, 10.0, 16.0, 24.0, 34.0, 46.0):
        slant = 0.7 * away
        found += [
            (away, -tall / 2),
            (-away - wide, -tall / 2),
            (slant, slant),
            (slant, -slant - tall),
            (-slant - wide, slant),
            (-slant - wide, -slant - tall),
            (-wide / 2, away),
            (-wide / 2, -away - tall),
        ]
    return found


def _outside(boxes: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """Return a high cost for every box that leaves the frame."""
    beyond = (boxes[:, :2] < frame[:2]) | (boxes[:, 2:] > frame[2:])
    return np.where(beyond.any(axis=1), 1e5, 0.0)


def _covered(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the area of every box that the others cover."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    covered: np.ndarray = np.maximum(high - low, 0).prod(axis=2).sum(axis=1)
    return covered


def _along(corners: np.ndarray) -> list[np.ndarray]:
    """Return small boxes along a line through corners."""
    steps = [np.linspace(a, b, 2 + int(np.hypot(*(b - a)) / 5)) for a, b in pairwise(corners)]
    return [_box(middle, 2.0) for step in steps for middle in step]


def _box(middle: np.ndarray, half: float) -> np.ndarray:
    return np.concatenate([middle - half, middle + half])
