"""The figures of a benchmark, from random results: right, legible, and only where there is data."""

from __future__ import annotations

from itertools import combinations

import matplotlib.style
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from sample_results import METHODS, make_results, make_timing, small

from sita_workbench.report.chart_style import STYLE
from sita_workbench.report.charts import draw_figures


def test_figures_are_drawn_where_there_is_data() -> None:
    assert list(draw_figures(small(), make_timing())) == ["corruptions", "time"]
    assert list(draw_figures(small(without="clean"), None)) == ["corruptions"]
    assert not draw_figures(small(without="corrupted"), None)


def test_the_dots_are_the_scores_and_severities_are_averaged() -> None:
    results = small(("source", "ops"))
    results["setup"]["conditions"].append("fog/3")
    for method in results["methods"]:
        method["conditions"]["fog/3"] = method["conditions"]["fog/5"] | {"score": 11.0}
    # The interval of a mean IoU need not include it.
    results["methods"][0]["corrupted"] |= {"low": 1.0, "high": 2.0}
    (axes,) = draw_figures(results, None)["corruptions"].axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["clean", "fog", "contrast", "mean of corrupted"]
    drawn = [list(line.get_xdata()) for line in axes.get_lines() if len(line.get_xdata()) == 3]
    for method, scores in zip(results["methods"], drawn, strict=True):
        conditions = {name: value["score"] for name, value in method["conditions"].items()}
        expected = [conditions["clean"], (conditions["fog/5"] + 11.0) / 2, conditions["contrast/5"]]
        assert scores == pytest.approx(expected)
    assert [segment[:, 0].tolist() for segment in axes.collections[0].get_segments()] == [[1.0, 2.0]]


@pytest.mark.parametrize("name", ["corruptions", "time"])
def test_no_text_covers_another_or_leaves_the_page(name: str) -> None:
    results, timing = make_results(), make_timing()
    names = ["$x$ [combine=mean,top_k=5,augment=paper]", "$x$ [combine=mean,top_k=5,augment=hflip]"]
    for method, long in zip(results["methods"][-3:], names, strict=False):
        timing["methods"][long] = timing["methods"]["ops"]
        method["name"] = long
    with matplotlib.style.context(["default", STYLE]):
        figure = draw_figures(results, timing)[name]
        renderer = FigureCanvasAgg(figure).get_renderer()
        figure.draw(renderer)
    (axes,), (legend,) = figure.axes, figure.legends
    # Ticks beyond the axes' limits exist, but are not drawn.
    hidden = {
        label
        for axis, (low, high) in ((axes.xaxis, axes.get_xlim()), (axes.yaxis, sorted(axes.get_ylim())))
        for position, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False)
        if not low <= position <= high
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
    assert len(legend.get_texts()) == len(METHODS)  # also where two names are cut to the same text
