"""The page and the tables of a benchmark, from random results: right, the same every time, and self-contained."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import matplotlib
import pytest
from rich.console import Console
from sample_results import METHODS, make_results, make_timing, small

from sita_workbench.report.tables import make_bench_table, make_conditions_table, make_methods_table
from sita_workbench.report.writing import write_report


def hostile() -> dict[str, Any]:
    """Return results with names that HTML and matplotlib would take for their own."""
    results = small()
    results["setup"]["model"] = "net.py:<script>alert('x')</script> & $a$ b$"
    results["methods"][1]["name"] = 'bn "<b>" | _two_ $x$ `c`'
    return results


def write(folder: Path) -> str:
    timing = make_timing()
    timing["methods"][hostile()["methods"][1]["name"]] = timing["methods"]["bn"]
    write_report(hostile(), timing, folder)
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_page_is_whole_escaped_the_same_every_time_and_loads_nothing(tmp_path: Path) -> None:
    text = write(tmp_path)
    with matplotlib.rc_context({"font.size": 20, "svg.fonttype": "none", "axes.facecolor": "red"}):
        assert write(tmp_path) == text  # a matplotlib that was set up otherwise makes no difference
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    page = ElementTree.fromstring(text)  # raises unless every tag is closed in turn
    shown = [image.attrib.pop("src").partition(",") for image in page.iter("img")]
    assert [kind for kind, *_ in shown] == ["data:image/svg+xml"] * 2
    assert all(ElementTree.fromstring(unquote(svg)).tag.endswith("svg") for *_, svg in shown)
    for element in page.iter():
        assert not {"src", "href", "srcset", "action", "data", "poster"} & element.attrib.keys()
    assert not re.search(r"http:|https:|url\(|@import", "".join(page.itertext()))
    assert len(list(page.iter("script"))) == 1
    assert page.findtext(".//p") == "net.py:<script>alert('x')</script> & $a$ b$ on CIFAR-10-C"
    assert hostile()["methods"][1]["name"] in page.itertext()


def test_the_numbers_of_the_tables_are_those_of_the_results() -> None:
    results, times = small(), make_timing()["methods"]
    main, by_condition = make_methods_table(results, make_timing()), make_conditions_table(results)
    assert main.headings == (
        *("method", "accuracy, %", "gain", "clean, %", "gain, clean", "NLL", "ECE, %", "rows", "ms", "× source"),
    )
    for column, (method, row) in enumerate(zip(results["methods"], main.rows, strict=True), start=1):
        part, time = method["corrupted"], times[method["name"]]
        gains = [(method[part]["gain"] or {}).get("score") for part in ("corrupted", "clean")]
        expected = [part["score"], gains[0], method["clean"]["score"], gains[1], part["nll"], part["ece"]]
        expected += [method["rows"], time["ms"], time["relative"]]
        assert [cell.key for cell in row[1:]] == expected
        texts = [None if cell.text == "–" else float(cell.text.replace("−", "-")) for cell in row[1:]]
        assert texts == [value if value is None else pytest.approx(value, abs=0.0501) for value in expected]
        assert row[1].detail == f"({part['low']:.1f} to {part['high']:.1f})"
        scores = {name: value["score"] for name, value in method["conditions"].items()}
        shown = {row[0].text: row[column].key for row in (*by_condition.rows, *by_condition.footer)}
        assert shown == scores | {"mean of corrupted": part["score"]}


def test_tables_leave_out_empty_columns_and_mark_all_that_print_like_the_best() -> None:
    results = small(without="clean")
    for method, score in zip(results["methods"], (50.04, 50.01, 49.0), strict=True):
        method["conditions"]["fog/5"]["score"] = score
    headings = ("method", "accuracy, %", "gain", "NLL", "ECE, %", "rows")
    assert make_methods_table(results, None).headings == headings
    assert [cell.best for cell in make_conditions_table(results).rows[0]] == [False, True, True, False]


@pytest.mark.parametrize("timing", [None, make_timing()], ids=["untimed", "timed"])
def test_the_table_fits_a_console(timing: dict[str, Any] | None) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(make_bench_table(make_results(), timing))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    (ops,) = [line for line in lines if line.split()[:1] == ["ops"]]
    corrupted = make_results()["methods"][list(METHODS).index("ops")]["corrupted"]
    assert f"* {corrupted['score']:.1f}" in ops
    assert f"{corrupted['gain']['score']:+.1f} (" in ops
    assert ("10.2" in ops) == ("× source" in "".join(lines)) == (timing is not None)
    assert sum(line.split()[:1] != [] for line in lines) == 3 + len(METHODS)
