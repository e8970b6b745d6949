"""The figures of a benchmark, as files."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..files import write_atomically
from .chart_methods import draw_accuracy_time, draw_chosen_priors, draw_corruptions, draw_entropy_bins
from .chart_studies import draw_curves, draw_layers
from .chart_style import STYLE
from .reading import Json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Draw = Callable[[Json, Json | None], "Figure | None"]

FIGURES: dict[str, tuple[Draw, str]] = {
    "study_lambda": (
        partial(draw_curves, "lambda"),
        "The score against λ, the weight of the source statistics (1: the source model; 0: the test image alone). "
        "Bands: 95 % interval.",
    ),
    "study_batch": (
        partial(draw_curves, "batch"),
        "The score against how many images share their statistics. Bands: 95 % interval.",
    ),
    "study_layers": (draw_layers, "What adapting groups of layers gains over source, with the paired 95 % interval."),
    "corruption_bars": (
        draw_corruptions,
        "The score of each method under each corruption, and the mean with its 95 % interval.",
    ),
    "accuracy_time": (
        draw_accuracy_time,
        "Up and to the left is better. Bars: 95 % interval of the score, quartiles of the time.",
    ),
    "chosen_priors": (
        draw_chosen_priors,
        "How often each λ was the most certain candidate. The dark part of a bar is right. λ = 1: the source model.",
    ),
    "entropy_bins": (
        draw_entropy_bins,
        "Falling lines mean that entropy separates right predictions from wrong ones. Bins of fewer than 10 have no "
        "dot. Below, the share of the method's predictions in each bin.",
    ),
}
"""By name: the function that draws a figure, or returns None where there is no data for it, and the caption."""


def draw_all(results: Json, timing: Json | None, folder: Path) -> list[str]:
    """Write every figure for which there is data to a folder, as PNG and SVG, and return their names.

    Figures of an earlier run for which there is no data now are removed.
    """
    import matplotlib.style

    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    # The user's own matplotlib style is not used.
    with matplotlib.style.context(["default", STYLE]):
        for name, (draw, _) in FIGURES.items():
            figure = draw(results, timing)
            if figure is not None:
                drawn.append(name)
            for suffix in ("png", "svg"):
                path = folder / f"{name}.{suffix}"
                if figure is None:
                    path.unlink(missing_ok=True)
                    continue
                with write_atomically(path) as temporary:
                    figure.savefig(temporary, metadata={"Date": None} if suffix == "svg" else None)
    return drawn
