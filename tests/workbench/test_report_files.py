"""The page and the tables of a benchmark, from sample results: right, the same every time, and self-contained."""

from __future__ import annotations

import base64
import io
import re
from collections import Counter
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib import image as pictures
from rich.console import Console
from sample_results import METHODS, make_results, make_timing, small, without

from sita_workbench.report.reading import title
from sita_workbench.report.tables import make_bench_table, make_tables
from sita_workbench.report.writing import write_report


def read_tables(text: str) -> list[list[list[str]]]:
    """Return the cells of all tables of a Markdown text, without the line below the headings."""
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
    assert f"{results['setup']['model']} on CIFAR-10-C" in page.text
    assert results["methods"][1]["name"] in page.text
    markdown = (written / "report.md").read_text(encoding="utf-8")
    assert not re.search(r"(?<!\\)<", markdown)
    assert r'bn "\<b\>" \| \_two\_ \$x\$ \`c\`' in markdown
    for table in read_tables(markdown):
        assert {len(line) for line in table} == {len(table[0])}


@pytest.mark.parametrize(
    ("data", "name"),
    [
        ("cifar10c:cifar10c", "CIFAR-10-C"),
        ("camvid:street", "CamVid"),
        ("npz:test.npz", "test.npz"),
        ("imagefolder:photos", "photos"),
    ],
)
def test_the_title_names_the_data_once(data: str, name: str) -> None:
    results = small()
    results["setup"]["data"] = data
    assert title(results) == f"cifar10-resnet20 on {name}"


def test_what_is_not_known_of_the_timing_is_left_out() -> None:
    note = make_tables(small(), make_timing() | {"threads": None})[0].note
    assert note.endswith(": Intel Xeon, 2 cores, batch: 1, rounds: 20.")


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
    heads = make_tables(without(small(), "clean"), None)[0].headings
    assert heads == ("method", "accuracy, %", "gain", "NLL", "ECE, %", "entropy", "rows")


def test_the_best_of_a_line_is_marked_as_often_as_it_is_shown() -> None:
    results = small()
    for method, score in zip(results["methods"], (50.04, 50.01, 49.0), strict=True):
        method["conditions"]["fog/5"]["score"] = score
    (fog,) = [line for line in make_tables(results, None)[1].rows if line[0].text == "fog/5"]
    assert [cell.best for cell in fog[1:]] == [True, True, False]


def test_points_of_a_study_and_seeds_have_tables_of_their_own() -> None:
    results = small("seeds")
    results["methods"] += small("lambda")["methods"][3:5]
    grids = {grid.title: grid for grid in make_tables(results, None)}
    assert [line[0].text for line in grids["Methods"].rows] == ["source", "bn", "ops"]
    assert [line[0].text for line in grids["Points of the study"].rows] == ["bn λ = 0.0", "bn λ = 0.1"]
    ((name, mean, deviation, _),) = grids["Seeds"].rows
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


def test_a_run_without_methods_has_a_report(tmp_path: Path) -> None:
    results = small()
    results["methods"] = []
    write_report(results, None, tmp_path / "new")
    assert "Whether it helps is unknown" in (tmp_path / "new" / "report.md").read_text(encoding="utf-8")
