"""A contact sheet: one image under every kind of corruption."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..files import write_atomically
from . import CORRUPTIONS, HOLDOUT, SEVERITIES, corrupt

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".png", ".pdf", ".svg")

_ROWS = 10
_TILE = 1.3  # inches
# Okabe and Ito's colors, which color-blind readers can distinguish.
_COLORS = {"noise": "#D55E00", "blur": "#0072B2", "weather": "#009E73", "digital": "#CC79A7"}


def make_sheet(image: np.ndarray, path: Path) -> None:
    """Write the sheet of an image (h, w, 3) in uint8, in the format of the file's ending."""
    figure = draw_sheet(image)
    with write_atomically(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:].lower())


def draw_sheet(image: np.ndarray) -> Figure:
    """Return the clean image, and a row for every kind at severity 1 to 5, in two blocks of rows."""
    from matplotlib.figure import Figure

    ratio = float(np.clip(image.shape[1] / image.shape[0], 1 / 3, 3))
    width, height = 2 * (len(SEVERITIES) + 1) * _TILE * ratio**0.5, _ROWS * _TILE / ratio**0.5
    figure = Figure(figsize=(width, height), dpi=130)
    spacing = {"left": 0.16, "right": 0.99, "bottom": 0.01, "top": 0.97, "wspace": 0.04, "hspace": 0.04}
    blocks = figure.subfigures(1, 2, squeeze=False)[0]
    rows = [row for block in blocks for row in block.subplots(_ROWS, len(SEVERITIES), gridspec_kw=spacing)]
    for number, (kind, row) in enumerate(zip(("clean", *CORRUPTIONS), rows, strict=True)):
        label = kind.replace("_", "\n") + ("\n(holdout)" if kind in HOLDOUT else "")
        color = "black" if kind == "clean" else _COLORS[CORRUPTIONS[kind].family]
        row[0].set_ylabel(label, rotation=0, ha="right", va="center", color=color)
        for axes, severity in zip(row, SEVERITIES, strict=True):
            axes.imshow(image if kind == "clean" else corrupt(image, kind, severity), aspect="auto")
            axes.set(xticks=[], yticks=[], title=f"severity {severity}" if number % _ROWS == 0 else "")
            axes.spines[:].set_visible(False)
    return figure
