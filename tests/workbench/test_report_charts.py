"""The figures of a benchmark, from random results: right, legible, and only where there is data."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import matplotlib.style
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from sample_results import METHODS, make_results, make_timing, small, without

from sita_workbench.report.chart_style import STYLE, looks_of
from sita_workbench.report.charts import FIGURES

USUAL = ["corruption_bars", "accuracy_time", "chosen_priors", "entropy_bins"]


def draw(results: dict[str, Any], timing: dict[str, Any] | None = None) -> dict[str, Figure]:
    with matplotlib.style.context(["default", STYLE]):
        drawn = {name: draw_one(results, timing) for name, (draw_one, _) in FIGURES.items()}
    return {name: figure for name, figure in drawn.items() if figure}


def test_figures_are_drawn_where_there_is_data_and_that_of_a_study_first() -> None:
    assert list(draw(small(), make_timing())) == USUAL
    for study in ("lambda", "batch", "layers"):
        assert list(draw(small(study), make_timing())) == [f"study_{study}", *USUAL]
    assert list(draw(without(small(), "corrupted"), None)) == ["chosen_priors", "entropy_bins"]
    plain = small(names=("source", "bn"))
    for method in plain["methods"]:
        method["entropy_bins"] = None
    assert list(draw(plain, make_timing(("ops",)))) == ["corruption_bars"]


@pytest.mark.parametrize("part", ["clean", "corrupted"])
@pytest.mark.parametrize("study", ["lambda", "layers"])
def test_a_study_is_drawn_without_clean_or_corrupted_images(study: str, part: str) -> None:
    figure = draw(without(small(study), part))[f"study_{study}"]
    assert all(part not in axes.get_ylabel() + axes.get_xlabel() for axes in figure.axes)


def test_the_dots_are_the_scores_and_severities_are_averaged() -> None:
    results = small(names=("source", "ops"))
    results["setup"]["conditions"].append("fog/3")
    for method in results["methods"]:
        method["conditions"]["fog/3"] = method["conditions"]["fog/5"] | {"score": 11.0}
    # The interval of a mean IoU need not include it.
    results["methods"][0]["corrupted"] |= {"low": 1.0, "high": 2.0}
    (axes,) = draw(results)["corruption_bars"].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["clean", "fog", "contrast", "mean of corrupted"]
    drawn = [list(line.get_xdata()) for line in axes.get_lines() if len(line.get_xdata()) == 3]
    for method, scores in zip(results["methods"], drawn, strict=True):
        conditions = {name: value["score"] for name, value in method["conditions"].items()}
        expected = [conditions["clean"], (conditions["fog/5"] + 11.0) / 2, conditions["contrast/5"]]
        assert scores == pytest.approx(expected)
    assert [segment[:, 0].tolist() for segment in axes.collections[0].get_segments()] == [[1.0, 2.0]]


def test_a_bin_of_few_predictions_has_no_dot() -> None:
    results = small(names=("source", "ops"))
    for method in results["methods"]:
        method["entropy_bins"] |= {"count": [50, 10, 9, 20, 11, 0, 0, 0], "right": [40, 5, 9, 4, 11, 0, 0, 0]}
    dots, shares = draw(results)["entropy_bins"].axes
    for right, share in zip(dots.get_lines(), shares.get_lines(), strict=True):
        assert right.get_ydata().tolist() == [80.0, 50.0, 20.0, 100.0]
        assert share.get_ydata().tolist() == [50.0, 10.0, 9.0, 20.0, 11.0]


def test_the_chosen_priors_are_shares_of_all_images() -> None:
    results = small(names=("source", "ops"))
    chosen = results["methods"][1]["priors"]["corrupted"]
    (axes,) = draw(results)["chosen_priors"].axes
    heights = [[bar.get_height() * 30 for bar in bars] for bars in axes.containers]
    assert heights[2:] == [pytest.approx(chosen["count"]), pytest.approx(chosen["right"])]


@pytest.mark.parametrize("name", FIGURES)
def test_no_text_covers_another_or_leaves_the_page(name: str) -> None:
    results = make_results(name.removeprefix("study_") if name.startswith("study_") else None)
    names = ["$x$ [combine=mean,top_k=5,augment=paper]", "$x$ [combine=mean,top_k=5,augment=hflip]"]
    timing = make_timing()
    for method, long in zip(results["methods"][-3:], names, strict=False):
        timing["methods"][long] = timing["methods"]["ops"]
        method["name"] = long
    figure = draw(results, timing)[name]
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    # Ticks beyond the axes' limits exist, but are not drawn.
    hidden = {
        label
        for axes in figure.axes
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, sorted(axes.get_ylim())))
        for place, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False)
        if not low <= place <= high
    }
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible() and text not in hidden]
    boxes = {text: text.get_window_extent(renderer) for text in texts}
    assert len(boxes) > 10
    for text, box in boxes.items():
        assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1, text.get_text()
        assert figure.bbox.y0 <= box.y0 <= box.y1 <= figure.bbox.y1, text.get_text()
    for one, other in combinations(boxes, 2):
        # Lines of text stand close: a pixel of the letters' margins may be shared.
        assert not boxes[one].padded(-1.5).overlaps(boxes[other].padded(-1.5)), (one.get_text(), other.get_text())
    if name in ("corruption_bars", "accuracy_time", "entropy_bins"):
        (legend,) = figure.legends
        assert len(legend.get_texts()) == len(METHODS)  # also where two names are cut to the same text


def test_no_two_methods_look_alike() -> None:
    looks = looks_of([*METHODS, "auto", "shift", *(f"mine {number}" for number in range(8))])
    assert len({look.color for look in looks.values()}) == len(looks)
    assert looks["auto"].size == max(look.size for look in looks.values())
