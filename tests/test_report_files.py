"""The figures, tables and verdict of a benchmark, from made results: right, the same every time, and self-contained."""

from __future__ import annotations

import base64
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import combinations, product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib import image as pictures
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from rich.console import Console

from sita_adapters.bench.report.chart_answers import draw_accuracy_time
from sita_adapters.bench.report.chart_corruptions import draw_corruption_bars
from sita_adapters.bench.report.chart_costs import draw_views, pareto_front
from sita_adapters.bench.report.chart_studies import draw_studies, spread_out
from sita_adapters.bench.report.chart_style import looks_of
from sita_adapters.bench.report.charts import CAPTIONS, draw_figures
from sita_adapters.bench.report.tables import make_bench_table, make_grids
from sita_adapters.bench.report.verdict import write_verdict
from sita_adapters.bench.report.writing import write_report

KINDS = (
    *("gaussian_noise", "shot_noise", "impulse_noise"),
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness"),
    *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
# Mean gain over source on corrupted and on clean images, rows, and times source's time.
METHODS: dict[str, tuple[float, float, int | None, float]] = {
    "source": (0.0, 0.0, 1, 1.0),
    "ensemble": (0.1, -0.5, 3, 2.6),
    "ptn": (-5.6, -14.0, 1, 1.1),
    "bn": (3.7, -0.3, 1, 1.1),
    "augbn": (10.4, -1.9, 3, 2.7),
    "ops_shared": (10.9, -1.2, 10, 6.1),
    "ops": (11.7, -0.8, 22, 10.2),
    "tent": (-5.5, -13.0, None, 26.5),
    "memo": (4.9, 0.4, None, 61.0),
}
PRIORS = [round(float(value), 4) for value in np.linspace(0.5, 1, 8)]
EDGES = [0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.31]


def make_score(score: float, random: np.random.Generator, half: float = 3.0) -> dict[str, Any]:
    low, high = score - half * random.uniform(0.8, 1.2), score + half * random.uniform(0.8, 1.2)
    wrong = 1 - score / 100
    return {
        "images": 200,
        "score": score,
        "low": max(0.0, low),
        "high": min(100.0, high),
        "nll": 3.4 * wrong,
        "ece": 30 * wrong,
        "entropy": 0.2 + wrong,
    }


def make_gain(score: float, half: float = 1.1) -> dict[str, float]:
    return {"score": score, "low": score - half, "high": score + half}


def make_method(
    name: str,
    gain: float,
    gain_clean: float,
    rows: int | None = 1,
    *,
    seed: int = 0,
    study: dict[str, Any] | None = None,
    seeds: int = 1,
    priors: bool = False,
) -> dict[str, Any]:
    """Make a method, all numbers of which agree with each other; sources are those of CIFAR-10-C, severity 5."""
    random = np.random.default_rng(seed)
    base = np.random.default_rng(99).uniform(28, 88, len(KINDS))
    scores = np.clip(base + gain * random.uniform(0.2, 1.8, len(KINDS)), 2, 99)
    conditions = {"clean": make_score(91.5 + gain_clean, random, 4.0)}
    for kind, score in zip(KINDS, scores, strict=True):
        conditions[f"{kind}/5"] = make_score(float(score), random, 6.5)
    mean = float(scores.mean())
    method = {
        "name": name,
        "recipe": f"{name}: λ = 0.5, 0.75, 1; 2 views, lossless",
        "rows": rows,
        "study": study,
        "conditions": conditions,
        "corrupted": make_score(mean, random),
        "clean": conditions["clean"],
        "gain": None if name == "source" else make_gain(mean - float(base.mean())),
        "gain_clean": None if name == "source" else make_gain(gain_clean, 0.7),
        "seeds": [mean + float(shift) for shift in random.normal(0, 0.12, seeds)] if seeds > 1 else [mean],
        "priors": None,
        "entropy_bins": None,
    }
    if priors:
        method["priors"] = {
            "corrupted": _choose(np.array([0.32, 0.14, 0.1, 0.08, 0.07, 0.07, 0.09, 0.13]), 3000, 0.62),
            "clean": _choose(np.array([0.06, 0.04, 0.04, 0.05, 0.07, 0.1, 0.16, 0.48]), 200, 0.9),
        }
    if study is None:
        count = np.round(3000 * random.dirichlet(np.array([30, 12, 10, 8, 7, 9, 6, 1.5]))).astype(int)
        right = np.round(count * np.clip(np.linspace(0.97, 0.15, 8) + random.normal(0, 0.03, 8), 0, 1)).astype(int)
        method["entropy_bins"] = {"edges": EDGES, "count": count.tolist(), "right": right.tolist()}
    return method


def _choose(shares: np.ndarray, images: int, right: float) -> dict[str, Any]:
    count = np.round(shares * images).astype(int)
    good = np.round(count * np.linspace(right - 0.1, min(right + 0.15, 0.98), len(shares))).astype(int)
    return {"values": PRIORS, "count": count.tolist(), "right": good.tolist()}


def make_points(study: str) -> list[dict[str, Any]]:
    """Make the points of a study's curves."""
    return [
        make_method(
            f"{series} {label}",
            float(gain),
            float(clean),
            rows,
            seed=1 + place,
            study={"series": series, "x": float(x), "label": label},
        )
        for place, (series, x, label, gain, clean, rows) in enumerate(_places(study))
    ]


def _places(study: str) -> Iterator[tuple[str, float, str, float, float, int]]:
    """Yield the series, x, label, gain, gain on clean images and rows of a study's points."""
    match study:
        case "lambda":
            for (series, peak), x in product((("bn", 4.0), ("augbn", 11.0)), np.linspace(0, 1, 11)):
                yield series, x, f"λ = {x:.1f}", peak - 40 * (x - 0.75) ** 2, -(peak + 8) * (1 - x) ** 2, 1
        case "batch":
            for (series, start), x in product((("ptn", -5.0), ("augbn", 10.0)), (1, 2, 4, 8, 16, 32, 64, 128)):
                yield series, x, f"batch {x}", 15 - (15 - start) / x**0.7, start / x - 2, 3 * x
        case "layers":
            names = ("all", "stem", "layer1", "layer2", "layer3", "stem + layer1", "layer1 + layer2 + layer3")
            for series, (x, label) in product(("bn", "augbn"), enumerate(names)):
                yield series, x, label, 8.0 - 1.7 * x + (series == "augbn"), -0.3 * x, 3
        case "views":
            for x in (0, 1, 2, 3, 5, 7):
                yield "augbn lossless", x, f"{x} views", 11 - 7 / (x + 1), -1, 1 + x
                yield "augbn paper", x, f"{x} views", 10.2 - 6.5 / (x + 1), -1, 1 + x
                yield "ops lossless", x, f"{x} views", 12 - 6 / (x + 1), -1, 8 + 7 * x
        case "defaults":
            random = np.random.default_rng(3)
            for series, x in product(("augbn", "ops", "ops_shared", "ops, temperature"), range(18)):
                rows = int(random.integers(1, 80))
                yield series, x, f"n={x} k=3 σ=0.{x}", 5 + 1.8 * np.log(rows) + random.normal(0, 1), -1, rows


def make_results(study: str | None = None, names: tuple[str, ...] = tuple(METHODS)) -> dict[str, Any]:
    """Make the results of a run of the named methods, with the points of a study."""
    methods = [
        make_method(
            name,
            *METHODS[name][:3],
            seed=sum(map(ord, name)),
            priors=name.startswith("ops"),
            seeds=5 if study == "seeds" and name in ("ensemble", "augbn", "ops", "ops_shared") else 1,
        )
        for name in names
    ]
    return {
        "version": "0.1.0",
        "setup": {
            "model": "cifar10-resnet20",
            "weights": "cifar10_resnet20.safetensors sha256 1a2b3c4d5e6f",
            "framework": "torch",
            "data": "cifar10c:cifar10c",
            "task": "classification",
            "metric": "accuracy",
            "images": 200,
            "conditions": ["clean", *(f"{kind}/5" for kind in KINDS)],
            "seeds": 5 if study == "seeds" else 1,
            "study": study,
        },
        "methods": methods + (make_points(study) if study else []),
    }


def make_timing(names: tuple[str, ...] = tuple(METHODS)) -> dict[str, Any]:
    times = {name: 1.21 * METHODS[name][3] for name in names}
    methods = {
        name: {"ms": ms, "low": 0.96 * ms, "high": 1.05 * ms, "relative": METHODS[name][3]}
        for name, ms in times.items()
    }
    return {"machine": "Intel Xeon, 2 cores", "threads": 1, "batch": 1, "rounds": 20, "methods": methods}


def small(study: str | None = None, names: tuple[str, ...] = ("source", "bn", "ops")) -> dict[str, Any]:
    """Return results with few conditions, which are drawn and read quickly."""
    results = make_results(study, names)
    keep = ["clean", "fog/5", "contrast/5"]
    results["setup"]["conditions"] = keep
    for method in results["methods"]:
        method["conditions"] = {name: method["conditions"][name] for name in keep}
    return results


def without(results: dict[str, Any], part: str) -> dict[str, Any]:
    """Return results as if no corrupted or no clean image had been run."""
    results["setup"]["conditions"] = [
        name for name in results["setup"]["conditions"] if (name == "clean") != (part == "clean")
    ]
    for method in results["methods"]:
        method["conditions"] = {name: method["conditions"][name] for name in results["setup"]["conditions"]}
        method[part] = method["gain" if part == "corrupted" else "gain_clean"] = None
        if method["priors"]:
            method["priors"][part] = None
        if part == "corrupted":
            method["entropy_bins"] = None
    return results


def gaining(**gains: tuple[float, float, float]) -> dict[str, Any]:
    """Return results with the given gain on corrupted images and its interval for every method."""
    results = small(names=("source", *gains))
    source = results["methods"][0]["corrupted"]["score"]
    for method in results["methods"][1:]:
        method["gain"] = dict(zip(("score", "low", "high"), gains[method["name"]], strict=True))
        method["corrupted"]["score"] = source + method["gain"]["score"]
    return results


def read_tables(text: str) -> list[list[list[str]]]:
    """Return the cells of all tables of a Markdown text, without the line beneath the heads."""
    tables: list[list[list[str]]] = []
    before = ""
    for line in text.splitlines():
        if line.startswith("| "):
            if not before.startswith("| "):
                tables.append([])
            tables[-1].append([cell.strip().strip("*") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
        before = line
    return [[table[0], *table[2:]] for table in tables]


def to_number(cell: str) -> float | None:
    first = cell.partition(" (")[0]
    return None if first == "–" else float(first.replace("−", "-"))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of results with names that HTML and Markdown would take for their own."""
    folder = tmp_path_factory.mktemp("report")
    write_report(hostile(), make_timing(), folder)
    return folder


def hostile() -> dict[str, Any]:
    results = small()
    results["setup"]["model"] = "net.py:<script>alert('x')</script> & $a$ b$"
    results["methods"][1]["name"] = 'bn "<b>" | _two_ $x$ `c`'
    return results


class Tags(HTMLParser):
    """Checks that every tag is closed in turn, and keeps attributes and text."""

    void = frozenset(("meta", "img", "br", "link", "input", "hr"))

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.text: list[str] = []
        self.seen: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def page(written: Path) -> Tags:
    tags = Tags()
    tags.feed((written / "report.html").read_text(encoding="utf-8"))
    tags.close()
    return tags


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


@pytest.mark.parametrize(
    "draw",
    [
        lambda: draw_accuracy_time(small(names=tuple(METHODS)), make_timing()),
        lambda: draw_corruption_bars(small(names=tuple(METHODS))),
        lambda: draw_views(small("views", ("source", "ops"))),
    ],
    ids=["time", "corruptions", "views"],
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


def test_source_is_grey_ops_stands_out_and_no_two_methods_look_alike() -> None:
    looks = looks_of([*METHODS, *(f"mine {number}" for number in range(8))])
    assert len({look.colour for look in looks.values()}) == len(looks)
    red, green, blue = to_rgb(looks["source"].colour)
    assert red == green == blue
    assert [name for name, look in looks.items() if look.bold] == ["ops"]
    assert looks["ops"].size == max(look.size for look in looks.values())


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


def test_the_same_results_give_the_same_bytes(written: Path, tmp_path: Path) -> None:
    # A matplotlib that was set up otherwise, and figures of another run, make no difference.
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "study_lambda.png").write_text("of another run")
    with matplotlib.rc_context({"font.size": 20, "svg.fonttype": "none", "axes.facecolor": "red"}):
        write_report(hostile(), make_timing(), tmp_path)
    files = {path.relative_to(written) for path in written.rglob("*.*")}
    assert files == {path.relative_to(tmp_path) for path in tmp_path.rglob("*.*")}
    names = ("corruption_bars", "accuracy_time", "chosen_priors", "entropy_bins")
    assert files == {Path("report.md"), Path("report.html")} | {
        Path("figures", name + suffix) for name, suffix in product(names, (".png", ".svg"))
    }
    for file in files:
        assert (written / file).read_bytes() == (tmp_path / file).read_bytes(), file


def test_figures_are_well_formed(written: Path) -> None:
    for path in (written / "figures").glob("*.svg"):
        assert ElementTree.parse(path).getroot().tag.endswith("svg")
    for path in (written / "figures").glob("*.png"):
        assert pictures.imread(path).shape[1] == 8 * 130


def test_the_page_is_whole_and_loads_nothing(page: Tags) -> None:
    assert not page.open
    assert page.seen["img"] == 4
    assert page.seen["main"] == page.seen["h1"] == page.seen["title"] == page.seen["style"] == page.seen["script"] == 1
    assert not page.seen["link"]
    for tag, name, value in page.attributes:
        if name == "src":
            assert tag == "img"
            assert (value or "").startswith("data:image/svg+xml;base64,")
        else:
            assert name not in ("href", "srcset", "action", "data", "poster")
            assert "//" not in (value or "")
    everything = "".join(page.text)
    assert "http" not in everything
    assert "url(" not in everything
    assert "@import" not in everything
    identities = [value for _, name, value in page.attributes if name == "id"]
    assert len(identities) == len(set(identities))


def test_the_page_has_the_figures_as_they_are(written: Path, page: Tags) -> None:
    shown = [base64.b64decode((value or "").partition(",")[2]) for _, name, value in page.attributes if name == "src"]
    names = ("corruption_bars", "accuracy_time", "chosen_priors", "entropy_bins")
    assert shown == [(written / "figures" / f"{name}.svg").read_bytes() for name in names]


def test_the_page_is_for_phones_and_for_the_dark(page: Tags) -> None:
    assert ("meta", "name", "viewport") in page.attributes
    assert "prefers-color-scheme: dark" in "".join(page.text)
    assert sum(value == "scroll" for _, _, value in page.attributes) == page.seen["table"] > 3


def test_names_are_escaped(written: Path, page: Tags) -> None:
    results = hostile()
    assert f"{results['setup']['model']} on cifar10c:cifar10c" in page.text
    assert results["methods"][1]["name"] in page.text
    markdown = (written / "report.md").read_text(encoding="utf-8")
    assert not re.search(r"(?<!\\)<", markdown)
    assert r'bn "\<b\>" \| \_two\_ \$x\$ \`c\`' in markdown
    for table in read_tables(markdown):
        assert {len(line) for line in table} == {len(table[0])}


def test_cells_are_sorted_by_the_numbers_of_the_results(page: Tags) -> None:
    keys = [
        float(value or "")
        for tag, name, value in page.attributes
        if tag == "td" and name == "data-key" and _is_number(value)
    ]
    assert {method["corrupted"]["score"] for method in hostile()["methods"]} <= set(keys)


def _is_number(text: str | None) -> bool:
    return re.fullmatch(r"-?[\d.]+(e-?\d+)?", text or "") is not None


def test_the_numbers_of_the_tables_are_those_of_the_results(written: Path) -> None:
    results, timing = hostile(), make_timing()
    main, by_condition = read_tables((written / "report.md").read_text(encoding="utf-8"))[:2]
    assert main[0] == [
        *("method", "accuracy, %", "gain", "clean, %", "gain, clean"),
        *("NLL", "ECE, %", "entropy", "rows", "ms", "× source"),
    ]
    for method, line in zip(results["methods"], main[1:], strict=True):
        part, time = method["corrupted"], timing["methods"].get(method["name"], {})
        expected = [
            *(part["score"], (method["gain"] or {}).get("score"), method["clean"]["score"]),
            *((method["gain_clean"] or {}).get("score"), part["nll"], part["ece"], part["entropy"]),
            *(method["rows"], time.get("ms"), time.get("relative")),
        ]
        assert [to_number(cell) for cell in line[1:]] == [
            value if value is None else pytest.approx(value, abs=0.0501) for value in expected
        ]
        assert line[1].endswith(f"({part['low']:.1f} to {part['high']:.1f})")
    for place, method in enumerate(results["methods"], start=1):
        shown = {line[0]: to_number(line[place]) for line in by_condition[1:]}
        expected_scores = {name: round(value["score"], 1) for name, value in method["conditions"].items()}
        assert shown == expected_scores | {"mean of corrupted": round(method["corrupted"]["score"], 1)}


def test_columns_without_numbers_are_left_out() -> None:
    heads = make_grids(without(small(), "clean"), None)[0].heads
    assert heads == ("method", "accuracy, %", "gain", "NLL", "ECE, %", "entropy", "rows")


def test_the_best_of_a_line_is_marked_as_often_as_it_is_shown() -> None:
    results = small()
    for method, score in zip(results["methods"], (50.04, 50.01, 49.0), strict=True):
        method["conditions"]["fog/5"]["score"] = score
    (fog,) = [line for line in make_grids(results, None)[1].lines if line[0].text == "fog/5"]
    assert [cell.best for cell in fog[1:]] == [True, True, False]


def test_points_of_a_study_and_seeds_have_tables_of_their_own() -> None:
    results = small("seeds")
    results["methods"] += small("lambda")["methods"][3:5]
    grids = {grid.title: grid for grid in make_grids(results, None)}
    assert [line[0].text for line in grids["Methods"].lines] == ["source", "bn", "ops"]
    assert [line[0].text for line in grids["Points of the study"].lines] == ["bn λ = 0.0", "bn λ = 0.1"]
    ((name, mean, deviation, _),) = grids["Seeds"].lines
    seeds = results["methods"][2]["seeds"]
    assert (name.text, mean.key, deviation.key) == (
        "ops",
        pytest.approx(np.mean(seeds)),
        pytest.approx(np.std(seeds, ddof=1)),
    )


@pytest.mark.parametrize("timing", [None, make_timing()], ids=["untimed", "timed"])
def test_the_table_fits_a_console(timing: dict[str, Any] | None) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(make_bench_table(make_results(), timing))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    (ops,) = [line for line in lines if line.startswith(" ops ")]
    method = make_results()["methods"][list(METHODS).index("ops")]
    assert f"* {method['corrupted']['score']:.1f}" in ops
    assert f"{method['gain']['score']:+.1f} ({method['gain']['low']:+.1f} to {method['gain']['high']:+.1f})" in ops
    assert ("10.2" in ops) == ("× source" in "".join(lines)) == (timing is not None)
    assert sum(line.split()[:1] != [] for line in lines) == 3 + len(METHODS)


def test_a_gain_is_told_with_interval_time_and_loss() -> None:
    results = gaining(bn=(3.0, 2.0, 4.0), augbn=(8.0, 7.0, 9.0), ops=(10.0, 9.0, 11.0))
    said = write_verdict(results, make_timing())
    score = results["methods"][0]["corrupted"]["score"] + 10
    assert said.startswith(
        f"ops is best: {score:.1f} % accuracy on corrupted images (mean of 2 conditions with 200 images"
    )
    assert "10.0 points more than source (95 % interval of the gain +9.0 to +11.0)" in said
    assert "It takes 12.3 ms an image, 10.2 times source's." in said
    assert "On clean images it loses 0.8 points (95 % interval −1.5 to −0.1)." in said
    assert "For less time, augbn gains 8.0 points (95 % interval +7.0 to +9.0) in 3.27 ms." in said
    assert "includes 0" not in said


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        ((-2.0, -3.0, -1.0), "it loses 2.0 points (95 % interval −3.0 to −1.0)"),
        ((0.3, -0.4, 1.0), "no certain difference: +0.3, 95 % interval −0.4 to +1.0, which includes 0"),
        ((1.0, 0.4, 1.6), "it gains 1.0 point (95 % interval +0.4 to +1.6)"),
    ],
)
def test_what_happens_on_clean_images_is_told(gain: tuple[float, float, float], expected: str) -> None:
    results = gaining(ops=(10.0, 9.0, 11.0))
    results["methods"][1]["gain_clean"] = dict(zip(("score", "low", "high"), gain, strict=True))
    assert expected in write_verdict(results, None)


@pytest.mark.parametrize("interval", [(0.8, -0.1, 1.7), (0.8, 0.0, 1.7), (-0.2, -1.0, 0.6)])
def test_an_interval_with_0_is_no_gain(interval: tuple[float, float, float]) -> None:
    said = write_verdict(gaining(bn=(-3.0, -4.0, -2.0), ops=interval), make_timing())
    assert said.startswith("No recipe gains: the best, ops, has")
    assert "includes 0" in said
    assert "is best" not in said


def test_a_loss_of_all_is_no_gain() -> None:
    said = write_verdict(gaining(bn=(-3.0, -4.0, -2.0), ops=(-2.0, -3.0, -1.0)), make_timing())
    assert said.startswith("No recipe gains: the best, ops, has")
    assert "−2.0 against source, which is a loss (95 % interval −3.0 to −1.0)" in said
    assert "includes 0" not in said


def test_a_certain_gain_goes_before_a_higher_uncertain_one() -> None:
    said = write_verdict(gaining(bn=(2.0, 1.0, 3.0), ops=(2.5, -0.5, 5.5)), None)
    assert said.startswith("bn is best")
    assert "ops scores higher" in said
    assert "the interval of its gain, −0.5 to +5.5, includes 0" in said


def test_of_equal_scores_the_cheaper_is_best() -> None:
    said = write_verdict(gaining(ops=(10.0, 9.0, 11.0), augbn=(10.0, 9.0, 11.0)), None)
    assert said.startswith("augbn is best")


def test_source_alone_is_compared_with_nothing() -> None:
    said = write_verdict(small(names=("source",)), None)
    assert said.startswith("Only source was run")
    assert "gain" not in said
    assert "clean images" in said
    assert "Time was not measured." in said


def test_without_source_no_gain_is_claimed() -> None:
    results = small(names=("bn", "ops"))
    for method in results["methods"]:
        method["gain"] = method["gain_clean"] = None
    said = write_verdict(results, None)
    assert "ops is highest" in said
    assert "Source was not run" in said
    assert "more than" not in said


def test_without_corrupted_images_the_verdict_is_about_clean_ones() -> None:
    results = without(small(), "corrupted")
    said = write_verdict(results, make_timing())
    assert said.startswith("No recipe gains: the best, bn, has 91.2 % accuracy on clean images")
    assert "Corrupted images were not run" in said
    results["methods"][1]["gain_clean"] = make_gain(2.0)
    said = write_verdict(results, make_timing())
    assert said.startswith("bn is best: 91.2 % accuracy on clean images")
    assert "loses" not in said


def test_without_clean_images_no_loss_is_told() -> None:
    said = write_verdict(without(small(), "clean"), make_timing())
    assert "Clean images were not run, so what it loses on them is not known." in said


@pytest.mark.parametrize("timing", [None, {}, {"methods": {}}, make_timing(("source",))])
def test_without_time_rows_are_told(timing: dict[str, Any] | None) -> None:
    said = write_verdict(small(), timing)
    assert "ime was not measured; it runs 22 rows an image." in said
    assert " ms " not in said


def test_segmentation_is_told_in_miou() -> None:
    results = small()
    results["setup"].update(task="segmentation", metric="mIoU")
    said = write_verdict(results, None)
    assert "% mIoU on corrupted images" in said
    assert "accuracy" not in said


def test_the_best_point_of_a_study_is_taken_with_care() -> None:
    results = small("lambda", ("source", "ops"))
    said = write_verdict(results, None)
    best = max((m for m in results["methods"] if m["study"]), key=lambda m: m["corrupted"]["score"])
    assert f"Of the 22 points of the study, {best['name']} is highest: {best['corrupted']['score']:.1f} %" in said
    assert "flattered by chance" in said
    results["methods"].pop(1)
    assert write_verdict(results, None).startswith(f"{best['name']} is best")


def test_a_run_without_methods_has_a_report(tmp_path: Path) -> None:
    results = small()
    results["methods"] = []
    write_report(results, None, tmp_path / "new")
    assert "no method was run" in (tmp_path / "new" / "report.md").read_text(encoding="utf-8")
