"""The figures of a benchmark, as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..files import write_atomically
from .chart_answers import draw_accuracy_time, draw_chosen_priors, draw_entropy_bins
from .chart_corruptions import draw_corruption_bars
from .chart_studies import draw_studies
from .reading import Json, main_part, plain_methods, time_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CAPTIONS = {
    "corruption_bars": "The score of each method under each corruption, and the mean with its 95 % interval.",
    "accuracy_time": "Score against time per image: up and to the left is better. Bars: 95 % interval of the score, "
    "quartiles of the time.",
    "chosen_priors": "How often each λ was the most certain candidate. The dark part of a bar is correct; the number "
    "above is its share in percent, where there is room and 10 or more were chosen. λ = 1 is the source model.",
    "entropy_bins": "How often a prediction of some entropy is right: falling lines mean that entropy separates good "
    "predictions from bad ones. Below, how many predictions each bin holds; bins of fewer than 10 have no dot.",
    "study_lambda": "The score against the weight λ of the source statistics (λ = 1: the source model; "
    "λ = 0: the test image alone). Bands: 95 % interval.",
    "study_batch": "The score against how many images share their statistics. Bands: 95 % interval.",
    "study_layers": "What adapting a group of layers alone gains over source, with the paired 95 % interval.",
    "study_views": "The score against rows per image. Bars: 95 % interval.",
    "study_seeds": "The score under each seed (small dots), with the mean and the standard deviation.",
    "study_defaults": "The score against rows per image. The line joins the settings that no cheaper one reaches.",
}
"""The caption of each figure."""

FORMATS = (".png", ".svg")


def draw_all(results: Json, timing: Json | None, folder: Path) -> list[Path]:
    """Write every figure for which there is data to `folder`/figures, as PNG and SVG, and return the files.

    The same results give the same bytes. Figures of an earlier run for which there is no data now are removed.
    """
    import matplotlib.style

    target = folder / "figures"
    target.mkdir(parents=True, exist_ok=True)
    written = []
    # Names may hold dollar signs and are no formulas; the user's own matplotlib style is not used.
    with matplotlib.style.context(["default", {"text.parse_math": False}]):
        figures = draw_figures(results, timing)
        for name, figure in figures.items():
            for suffix in FORMATS:
                path = target / f"{name}{suffix}"
                _save(figure, path)
                written.append(path)
    for name in CAPTIONS.keys() - figures.keys():
        for suffix in FORMATS:
            (target / f"{name}{suffix}").unlink(missing_ok=True)
    return written


def draw_figures(results: Json, timing: Json | None) -> dict[str, Figure]:
    """Return every figure for which there is data, by name; that of a study, which was asked for, first."""
    methods = plain_methods(results)
    part = main_part(results)
    figures: dict[str, Figure] = {}
    if part == "corrupted" and any(method.get("conditions") for method in methods):
        figures["corruption_bars"] = draw_corruption_bars(results)
    if any(time_of(timing, method) and method.get(part) for method in results["methods"]):
        figures["accuracy_time"] = draw_accuracy_time(results, timing or {})
    if any(method.get("priors") for method in methods):
        figures["chosen_priors"] = draw_chosen_priors(results)
    if any(method.get("entropy_bins") for method in methods):
        figures["entropy_bins"] = draw_entropy_bins(results)
    studies = draw_studies(results)
    return studies | figures if results["setup"].get("study") else figures | studies


def _save(figure: Figure, path: Path) -> None:
    import matplotlib

    # Otherwise files would contain the time, the version of matplotlib, and ids that differ from run to run.
    with matplotlib.rc_context({"svg.hashsalt": path.stem}), write_atomically(path) as temporary:
        metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(temporary, format=path.suffix[1:], metadata=metadata)
