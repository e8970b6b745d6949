"""A contact sheet: one image under every kind of corruption."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sita_adapters.errors import InputError

from ..files import write_atomically
from . import CORRUPTIONS, FAMILIES, HOLDOUT, KINDS, SEVERITIES, corrupt

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")

_INK, _FAINT = "#222222", "#6E6E6E"
# Okabe and Ito's colours, which colour-blind readers can distinguish.
_COLOURS = {"noise": "#D55E00", "blur": "#0072B2", "weather": "#009E73", "digital": "#CC79A7", "holdout": "#8A8A8A"}

# Inches.
_TILE = 1.3
_GAP, _MARGIN, _HEADING, _NAME, _BAND, _CAPTION = 0.05, 0.25, 0.75, 1.45, 0.34, 0.26


def make_sheet(image: np.ndarray, out_path: Path | str, severity: int | None = None, seed: int = 0) -> None:
    """Write the sheet of an image (h, w, 3) in uint8, in the format of the file's ending.

    It shows all kinds at all severities, or at one `severity`.
    """
    path = Path(out_path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"Expected a name that ends in one of {', '.join(FORMATS)}; received {path.name!r}.")
    figure = draw_all(image, seed) if severity is None else draw_one(image, severity, seed)
    with write_atomically(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower())


def draw_all(image: np.ndarray, seed: int = 0) -> Figure:
    """Return kinds × severities, in two columns of families; the clean image fills what the second leaves free."""
    blocks = (("noise", "blur", "holdout"), ("weather", "digital"))
    kinds = FAMILIES | {"holdout": HOLDOUT}
    tile = _tile_sides(image)
    wide = _NAME + len(SEVERITIES) * (tile[0] + _GAP)
    tall = max(sum(_BAND + len(kinds[family]) * (tile[1] + _GAP) for family in block) for block in blocks)
    page = _Page(2 * wide + 3 * _MARGIN, _HEADING + tall + _MARGIN)
    page.write(_MARGIN, 0.38, "Corruptions at severity 1 to 5", size=17, bold=True)

    for number, block in enumerate(blocks):
        left, top = _MARGIN + number * (wide + _MARGIN), _HEADING
        for family in block:
            page.write(left, top + _BAND - 0.1, family, size=12, bold=True, colour=_COLOURS[family])
            for column, severity in enumerate(SEVERITIES):
                middle = left + _NAME + column * (tile[0] + _GAP) + tile[0] / 2
                page.write(middle, top + _BAND - 0.08, str(severity), size=9, colour=_FAINT, centred=True)
            top += _BAND
            for kind in kinds[family]:
                page.write(left, top + tile[1] / 2 + 0.05, _words(kind), size=10.5)
                for column, severity in enumerate(SEVERITIES):
                    corrupted = corrupt(image, kind, severity, seed=seed)
                    page.show(corrupted, left + _NAME + column * (tile[0] + _GAP), top, tile)
                top += tile[1] + _GAP
    free = _HEADING + tall - top - _BAND - _GAP
    scale = min(free / tile[1], (wide - _NAME) / tile[0])
    page.write(left, top + _BAND - 0.1, "clean", size=12, bold=True)
    page.show(image, left + _NAME, top + _BAND, (scale * tile[0], scale * tile[1]))
    return page.figure


def draw_one(image: np.ndarray, severity: int, seed: int = 0) -> Figure:
    """Return the clean image and all kinds at one severity, row by row, their names coloured by family."""
    columns = 5
    tile = tuple(1.5 * side for side in _tile_sides(image))
    cell = (tile[0] + 3 * _GAP, tile[1] + _CAPTION + 2 * _GAP)
    shown = ("clean", *KINDS, *HOLDOUT)
    rows = -(-len(shown) // columns)
    page = _Page(2 * _MARGIN + columns * cell[0], _HEADING + rows * cell[1] + _MARGIN)
    page.write(_MARGIN, 0.38, f"Corruptions at severity {severity}", size=17, bold=True)
    for number, kind in enumerate(shown):
        row, column = divmod(number, columns)
        left, top = _MARGIN + column * cell[0], _HEADING + row * cell[1]
        family = None if kind == "clean" else CORRUPTIONS[kind].family
        page.write(left, top + _CAPTION - 0.07, _words(kind), size=11.5, bold=family is None)
        if family is not None:
            about = "holdout" if kind in HOLDOUT else family
            page.write(left + tile[0], top + _CAPTION - 0.07, about, size=9, colour=_COLOURS[family], flush="right")
        tile_image = image if family is None else corrupt(image, kind, severity, seed=seed)
        page.show(tile_image, left, top + _CAPTION, (tile[0], tile[1]))
    return page.figure


class _Page:
    """A figure measured in inches from its top left corner."""

    def __init__(self, width: float, height: float) -> None:
        from matplotlib.figure import Figure

        self.figure = Figure(figsize=(width, height), dpi=130, facecolor="white")
        self._width, self._height = width, height
        self._axes: Axes = self.figure.add_axes((0, 0, 1, 1))
        self._axes.set_xlim(0, width)
        self._axes.set_ylim(height, 0)
        self._axes.axis("off")

    def write(
        self,
        left: float,
        base: float,
        text: str,
        *,
        size: float,
        bold: bool = False,
        colour: str = _INK,
        centred: bool = False,
        flush: str = "left",
    ) -> None:
        """Write text on the line `base`."""
        self._axes.text(
            left,
            base,
            text,
            fontsize=size,
            fontweight="bold" if bold else "normal",
            color=colour,
            ha="center" if centred else flush,
            va="baseline",
        )

    def show(self, image: np.ndarray, left: float, top: float, sides: tuple[float, float]) -> None:
        """Show an image, `sides` wide and tall. Small images keep sharp pixels."""
        extent = (left, left + sides[0], top + sides[1], top)
        smoothing = "nearest" if image.shape[1] < sides[0] * self.figure.dpi else "antialiased"
        self._axes.imshow(image, extent=extent, aspect="auto", interpolation=smoothing)
        # imshow changes the limits.
        self._axes.set_xlim(0, self._width)
        self._axes.set_ylim(self._height, 0)


def _tile_sides(image: np.ndarray) -> tuple[float, float]:
    """Return a tile's width and height in inches: the area of a square one, within a ratio of sides of 3."""
    ratio = float(np.clip(image.shape[1] / image.shape[0], 1 / 3, 3))
    return _TILE * ratio**0.5, _TILE / ratio**0.5


def _words(kind: str) -> str:
    return kind.replace("_", " ")
