"""The figures of a benchmark, from sample results: right, legible, and only where there is data."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from sample_results import METHODS, make_timing, small, without

from sita_workbench.report.chart_answers import draw_accuracy_time, draw_chosen_priors, draw_entropy_bins
from sita_workbench.report.chart_corruptions import draw_corruption_bars
from sita_workbench.report.chart_costs import draw_views, pareto_front
from sita_workbench.report.chart_studies import draw_studies, spread_out
from sita_workbench.report.chart_style import looks_of
from sita_workbench.report.charts import CAPTIONS, draw_figures


def test_each_figure_is_drawn_where_there_is_data() -> None:
    assert list(draw_figures(small(), make_timing())) == [
        "corruption_bars",
        "accuracy_time",
        "chosen_priors",
        "entropy_bins",
    ]


def test_no_figure_is_drawn_without_data() -> None:
    results = small(names=("source", "bn"))
    results["setup"].update(task="segmentation", metric="mIoU")
    for method in results["methods"]:
        method["entropy_bins"] = None
    assert list(draw_figures(results, None)) == ["corruption_bars"]
    assert list(draw_figures(results, make_timing(("ops",)))) == ["corruption_bars"]
    results["methods"] = []
    assert not draw_figures(results, None)
    assert "corruption_bars" not in draw_figures(without(small(), "corrupted"), None)


def test_the_figure_of_a_study_comes_first() -> None:
    assert next(iter(draw_figures(small("lambda", ("source", "ops")), make_timing()))) == "study_lambda"


@pytest.mark.parametrize("study", ["lambda", "batch", "layers", "views", "seeds", "defaults"])
def test_a_study_has_its_figure(study: str) -> None:
    assert list(draw_studies(small(study, ("source", "ops")))) == [f"study_{study}"]
    assert f"study_{study}" in CAPTIONS


@pytest.mark.parametrize("part", ["clean", "corrupted"])
@pytest.mark.parametrize("study", ["lambda", "layers", "views"])
def test_a_study_is_drawn_without_clean_or_corrupted_images(study: str, part: str) -> None:
    (figure,) = draw_studies(without(small(study, ("source", "ops")), part)).values()
    assert all(part not in axes.get_ylabel() + axes.get_xlabel() for axes in figure.axes)


def test_a_study_without_points_has_no_figure() -> None:
    results = small("lambda", ("source", "ops"))
    results["methods"] = results["methods"][:2]
    assert not draw_studies(results)


def test_the_dots_are_the_scores_and_severities_are_averaged() -> None:
    results = small(names=("source", "ops"))
    results["setup"]["conditions"].append("fog/3")
    for method in results["methods"]:
        method["conditions"]["fog/3"] = method["conditions"]["fog/5"] | {"score": 11.0}
    (axes,) = draw_figures(results, None)["corruption_bars"].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["clean", "fog", "contrast", "mean of corrupted"]
    drawn = [list(line.get_xdata()) for line in axes.get_lines() if len(line.get_xdata()) == 3]
    for method, scores in zip(results["methods"], drawn, strict=True):
        conditions = {name: value["score"] for name, value in method["conditions"].items()}
        expected = [conditions["clean"], (conditions["fog/5"] + 11.0) / 2, conditions["contrast/5"]]
        assert scores == pytest.approx(expected)


def with_rules() -> dict[str, Any]:
    """Results of methods whose λ is a rule, which are counted in 21 bins, most of them empty."""
    results = small(names=("source", "ops", "ops_shared"))
    for method, first in zip(results["methods"][1:], (3, 14), strict=True):
        count = [0] * first + [40] * (20 - first) + [1]
        for part in ("clean", "corrupted"):
            values = [step / 20 for step in range(21)]
            method["priors"][part] = {"values": values, "count": count, "right": [each // 2 for each in count]}
    return results


def test_no_line_strikes_a_label_through() -> None:
    timing = make_timing()
    for time in timing["methods"].values():
        time.update(low=0.75 * time["ms"], high=1.6 * time["ms"])
    figure = draw_accuracy_time(small(names=("source", "bn", "augbn", "ops", "memo")), timing)
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    (axes,) = figure.axes
    ends = [axes.transData.transform(line.get_xydata()) for line in axes.get_lines() if len(line.get_xdata()) == 2]
    labels = [text for text in axes.texts if text.get_text()]
    assert (len(ends), len(labels)) == (10, 5)
    for label, line in product(labels, ends):
        x, y = np.linspace(*line, 500).T
        box = label.get_window_extent(renderer)
        assert not np.any((box.x0 < x) & (x < box.x1) & (box.y0 < y) & (y < box.y1)), label.get_text()


def test_a_bin_of_few_predictions_has_no_dot() -> None:
    results = small(names=("source", "ops"))
    for method in results["methods"]:
        method["entropy_bins"] |= {"count": [50, 10, 9, 20, 1, 0, 0, 0], "right": [40, 5, 9, 4, 1, 0, 0, 0]}
    dots, counts = draw_entropy_bins(results).axes
    for line in dots.get_lines():
        assert list(line.get_ydata()) == [80.0, 50.0, 20.0]
    assert [text.get_text() for text in counts.texts[:5]] == ["50", "10", "9", "20", "1"]
    assert len(counts.texts) == 2 * 5


@pytest.mark.parametrize(
    "draw",
    [
        lambda: draw_accuracy_time(small(names=tuple(METHODS)), make_timing()),
        lambda: draw_corruption_bars(small(names=tuple(METHODS))),
        lambda: draw_views(small("views", ("source", "ops"))),
        lambda: draw_chosen_priors(with_rules()),
    ],
    ids=["time", "corruptions", "views", "priors"],
)
def test_no_text_covers_another_or_leaves_the_page(draw: Callable[[], Figure]) -> None:
    figure = draw()
    renderer = FigureCanvasAgg(figure).get_renderer()
    figure.draw(renderer)
    # Ticks beyond the axes' limits are there, but not drawn.
    hidden = {
        label
        for axes in figure.axes
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, sorted(axes.get_ylim())))
        for place, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
        if not low <= place <= high
    }
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible() and text not in hidden]
    boxes = {text: text.get_window_extent(renderer) for text in texts}
    assert len(boxes) > 15
    for text, box in boxes.items():
        assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1, text.get_text()
        assert figure.bbox.y0 <= box.y0 <= box.y1 <= figure.bbox.y1, text.get_text()
    for one, other in combinations(boxes, 2):
        # Lines of text stand close: a pixel of the letters' margins may be shared.
        assert not boxes[one].padded(-1.5).overlaps(boxes[other].padded(-1.5)), (one.get_text(), other.get_text())


def test_source_is_grey_the_default_stands_out_and_no_two_methods_look_alike() -> None:
    looks = looks_of([*METHODS, "auto", "shift", *(f"mine {number}" for number in range(8))])
    assert len({look.colour for look in looks.values()}) == len(looks)
    red, green, blue = to_rgb(looks["source"].colour)
    assert red == green == blue
    assert [name for name, look in looks.items() if look.bold] == ["auto"]
    assert looks["auto"].size == max(look.size for look in looks.values())


def test_the_front_is_what_no_cheaper_point_reaches() -> None:
    random = np.random.default_rng(0)
    points = [
        (int(cost), float(score)) for cost, score in zip(random.integers(1, 30, 80), random.random(80), strict=True)
    ]
    expected = {
        place
        for place, (cost, score) in enumerate(points)
        if not any(c <= cost and s >= score and (c, s) != (cost, score) for c, s in points)
    }
    front = pareto_front(points)
    assert set(front) == expected
    assert [points[place] for place in front] == sorted(points[place] for place in front)


def test_names_are_spread_out_no_more_than_need_be() -> None:
    assert spread_out([1.0, 5.0], 1.0, 0.0, 10.0) == [1.0, 5.0]
    places = spread_out([0.1, 3.0, 3.1, 3.2, 9.9, 9.95], 1.0, 0.0, 10.0)
    assert np.all(np.diff(places) >= 1.0 - 1e-9)
    assert (places[0], places[-1]) == (0.1, 10.0)
    assert places[2] == pytest.approx(3.1)
