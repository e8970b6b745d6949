"""The page and the tables of a benchmark, from random results: right, the same every time, and self-contained."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import pytest
from rich.console import Console
from sample_results import METHODS, make_results, make_timing, small, without

from sita_workbench.report.reading import title
from sita_workbench.report.tables import make_bench_table, make_tables
from sita_workbench.report.writing import write_report

NAMES = ("corruption_bars", "accuracy_time", "chosen_priors", "entropy_bins")


def hostile() -> dict[str, Any]:
    """Return results with names that HTML, Markdown and matplotlib would take for their own."""
    results = small()
    results["setup"]["model"] = "net.py:<script>alert('x')</script> & $a$ b$"
    results["methods"][1]["name"] = 'bn "<b>" | _two_ $x$ `c`'
    return results


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_report(hostile(), make_timing(), folder)
    return folder


class Tags(HTMLParser):
    """Checks that every tag is closed in turn, and keeps attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        self.open += [tag] * (tag not in ("meta", "img"))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_same_results_give_the_same_bytes(written: Path, tmp_path: Path) -> None:
    # A matplotlib that was set up otherwise, and figures of another run, make no difference.
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "study_lambda.png").write_text("of another run")
    with matplotlib.rc_context({"font.size": 20, "svg.fonttype": "none", "axes.facecolor": "red"}):
        write_report(hostile(), make_timing(), tmp_path)
    figures = {f"figures/{name}.{suffix}" for name in NAMES for suffix in ("png", "svg")}
    for folder in (written, tmp_path):
        found = {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")}
        assert found == {"report.md", "report.html"} | figures
    for name in ("report.md", "report.html", *figures):
        assert (written / name).read_bytes() == (tmp_path / name).read_bytes(), name


def test_the_page_is_whole_escaped_and_loads_nothing(written: Path) -> None:
    page = Tags()
    page.feed((written / "report.html").read_text(encoding="utf-8"))
    page.close()
    assert not page.open
    shown = [base64.b64decode(value.partition(",")[2]) for _, name, value in page.attributes if name == "src"]
    assert shown == [(written / "figures" / f"{name}.svg").read_bytes() for name in NAMES]
    assert all(ElementTree.fromstring(svg).tag.endswith("svg") for svg in shown)
    for tag, name, value in page.attributes:
        assert name not in ("href", "srcset", "action", "data", "poster")
        assert (tag, value[:26]) == ("img", "data:image/svg+xml;base64,") if name == "src" else "//" not in value
    assert not re.search(r"http|url\(|@import", "".join(page.text))
    assert "net.py:<script>alert('x')</script> & $a$ b$ on CIFAR-10-C" in page.text
    assert hostile()["methods"][1]["name"] in page.text


def read_tables(text: str) -> list[list[list[str]]]:
    """Return the cells of all tables of a Markdown text, without the line below the headings."""
    blocks = [block.splitlines() for block in text.split("\n\n") if block.startswith("| ")]
    cut = [[[cell.strip().strip("*") for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows] for rows in blocks]
    return [[table[0], *table[2:]] for table in cut]


def to_number(cell: str) -> float | None:
    first = cell.partition(" (")[0]
    return None if first == "–" else float(first.replace("−", "-"))


def test_the_numbers_of_the_tables_are_those_of_the_results(written: Path) -> None:
    results, times = hostile(), make_timing()["methods"]
    text = (written / "report.md").read_text(encoding="utf-8")
    assert not re.search(r"(?<!\\)<", text)
    main, by_condition, _ = read_tables(text)
    assert main[2][0] == by_condition[0][2] == r'bn "\<b\>" \| \_two\_ \$x\$ \`c\`'
    assert main[0][1:5] == ["accuracy, %", "gain", "clean, %", "gain, clean"]
    assert main[0][5:] == ["NLL", "ECE, %", "entropy", "rows", "ms", "× source"]
    for column, (method, line) in enumerate(zip(results["methods"], main[1:], strict=True), start=1):
        part, time = method["corrupted"], times.get(method["name"], {})
        expected = [
            *(part["score"], (method["gain"] or {}).get("score"), method["clean"]["score"]),
            *((method["gain_clean"] or {}).get("score"), part["nll"], part["ece"], part["entropy"]),
            *(method["rows"], time.get("ms"), time.get("relative")),
        ]
        assert [to_number(cell) for cell in line[1:]] == [
            value if value is None else pytest.approx(value, abs=0.0501) for value in expected
        ]
        assert line[1].endswith(f"({part['low']:.1f} to {part['high']:.1f})")
        scores = {name: round(value["score"], 1) for name, value in method["conditions"].items()}
        scores["mean of corrupted"] = round(part["score"], 1)
        assert {line[0]: to_number(line[column]) for line in by_condition[1:]} == scores


def test_tables_leave_out_empty_columns_and_mark_all_that_print_like_the_best() -> None:
    results = without(small("lambda"), "clean")
    for method, score in zip(results["methods"], (50.04, 50.01, 49.0), strict=False):
        method["conditions"]["fog/5"]["score"] = score
    main, study, by_condition = make_tables(results, None)
    assert main.headings == ("method", "accuracy, %", "gain", "NLL", "ECE, %", "entropy", "rows")
    assert [len(main.rows), len(study.rows)] == [3, 22]
    assert [cell.best for cell in by_condition.rows[0]] == [False, True, True, False]


@pytest.mark.parametrize(
    ("data", "name"),
    [("cifar10c:folder", "CIFAR-10-C"), ("npz:test.npz", "test.npz"), ("imagefolder:photos", "photos")],
)
def test_the_title_names_the_data_once(data: str, name: str) -> None:
    assert title({"setup": {"model": "net", "data": data}}) == f"net on {name}"


@pytest.mark.parametrize("timing", [None, make_timing()], ids=["untimed", "timed"])
def test_the_table_fits_a_console(timing: dict[str, Any] | None) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(make_bench_table(make_results(), timing))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    (ops,) = [line for line in lines if line.split()[:1] == ["ops"]]
    method = make_results()["methods"][list(METHODS).index("ops")]
    assert f"* {method['corrupted']['score']:.1f}" in ops
    assert f"{method['gain']['score']:+.1f} ({method['gain']['low']:+.1f} to {method['gain']['high']:+.1f})" in ops
    assert ("10.2" in ops) == ("× source" in "".join(lines)) == (timing is not None)
    assert sum(line.split()[:1] != [] for line in lines) == 3 + len(METHODS)
