"""The tables of a benchmark: what is in them, and how Markdown and a console show them. For HTML, see page.html."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .reading import CLEAN, Json, Part, gain_of, interval, main_part, number, plain_methods, study_points, time_of

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Cell:
    """A cell's text, the interval after it, the value that it is sorted by, and whether it is the best."""

    text: str
    key: float | str | None = None
    detail: str = ""
    best: bool = False


Row = tuple[Cell, ...]


@dataclass(frozen=True)
class ReportTable:
    """A table: the first column is text, the others are numbers, unless all are text. The footer is not sorted."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Row]
    footer: Sequence[Row] = ()
    note: str = ""
    numeric: bool = True


def make_tables(results: Json, timing: Json | None) -> list[ReportTable]:
    """Return the tables of numbers for which there is data."""
    methods, points = plain_methods(results), study_points(results)
    tables = [_make_main("Methods", methods, results, timing)]
    if points:
        tables.append(_make_main("Points of the study", points, results, timing))
    if any(method.get("conditions") for method in methods):
        tables.append(_make_by_condition(results, methods))
    return tables


def make_setup(results: Json) -> ReportTable:
    """Return the table of what was run, and of every method's recipe."""
    setup = {name: value for name, value in results["setup"].items() if value is not None}
    setup["conditions"] = f"{len(setup['conditions'])}: {', '.join(setup['conditions'])}"
    setup |= {"command": results["command"]} if results.get("command") else {}
    setup |= {f"recipe {method['name']}": method["recipe"] for method in plain_methods(results)}
    rows = [(_text(name), _text(str(value))) for name, value in setup.items()]
    return ReportTable("Setup", ("setting", "value"), rows, numeric=False)


def _text(text: str) -> Cell:
    return Cell(text, text)


def _number(value: float | None, digits: int = 1) -> Cell:
    """Return the cell of a number; NaN, like None, is shown as a dash and sorted last."""
    return Cell(number(value, digits), None if value is None or math.isnan(value) else value)


def _score(value: Json | None, *, signed: bool = False) -> Cell:
    if not value:
        return Cell(number(None))
    key = _number(value["score"]).key
    return Cell(number(value["score"], signed=signed), key, f"({interval(value, signed=signed)})")


def _make_main(title: str, methods: Sequence[Json], results: Json, timing: Json | None) -> ReportTable:
    part, metric = main_part(results), results["setup"]["metric"]
    lines = [_measure(method, part, metric, time_of(timing, method)) for method in methods]
    columns = {heading: [line[heading] for line in lines] for heading in lines[0]}
    shown = {heading: cells for heading, cells in columns.items() if any(cell.key is not None for cell in cells)}
    better = {f"{metric}, %": 1, "clean, %": 1, "NLL": -1, "ECE, %": -1}
    marked = [_mark_best(cells, better.get(heading, 0)) for heading, cells in shown.items()]
    corrupted = sum(condition != CLEAN for condition in results["setup"]["conditions"])
    which = f"{part} images (mean of {corrupted} conditions)" if part != CLEAN and corrupted > 1 else f"{part} images"
    note = (
        f"Scores, NLL, ECE and entropy on {which}; in brackets 95 % intervals; gains are paired differences from "
        "source, in points; NLL and entropy in nats. Bold: the best of the column."
    )
    if timing and timing.get("methods"):
        facts = [f"{name}: {timing[name]}" for name in ("threads", "batch", "rounds") if timing.get(name)]
        where = ", ".join([*filter(None, [timing.get("machine")]), *facts])
        note += f" Times in ms per image, and × the source model's in the same rounds: {where}."
    names = [_text(method["name"]) for method in methods]
    return ReportTable(title, ("method", *shown), list(zip(names, *marked, strict=True)), note=note)


def _measure(method: Json, part: Part, metric: str, time: Json) -> dict[str, Cell]:
    """Return a method's cells by their headings."""
    value = method.get(part) or {}
    cells = {f"{metric}, %": _score(value), "gain": _score(gain_of(method, part), signed=True)}
    if part == "corrupted":
        cells["clean, %"] = _score(method.get("clean"))
        cells["gain, clean"] = _score(method.get("gain_clean"), signed=True)
    return cells | {
        "NLL": _number(value.get("nll"), 2),
        "ECE, %": _number(value.get("ece")),
        "entropy": _number(value.get("entropy"), 2),
        "rows": _number(method.get("rows"), 0),
        "ms": _number(time.get("ms"), 2),
        "× source": _number(time.get("relative")),
    }


def _make_by_condition(results: Json, methods: Sequence[Json]) -> ReportTable:
    methods = [method for method in methods if method.get("conditions")]

    def row(name: str, values: Sequence[Json | None]) -> Row:
        return (_text(name), *_mark_best([_number((value or {}).get("score")) for value in values], 1))

    conditions = results["setup"]["conditions"]
    rows = [row(name.replace("_", " "), [method["conditions"].get(name) for method in methods]) for name in conditions]
    footer = []
    if sum(condition != CLEAN for condition in conditions) > 1:
        footer.append(row("mean of corrupted", [method.get("corrupted") for method in methods]))
    headings = ("condition", *(method["name"] for method in methods))
    note = f"{results['setup']['metric']}, %. Bold: the best of the row."
    return ReportTable("By corruption", headings, rows, footer, note)


def _mark_best(cells: Sequence[Cell], better: int) -> list[Cell]:
    """Mark the highest number (better = 1) or the lowest (-1), and those that are printed like it."""
    known = [cell for cell in cells if isinstance(cell.key, float | int)]
    if not better or len(known) < 2:
        return list(cells)
    best = max(known, key=lambda cell: better * float(cell.key or 0)).text
    return [replace(cell, best=cell.text == best) for cell in cells]


def as_markdown(table: ReportTable) -> str:
    """Return a table in Markdown, with its title and its note."""
    rows = [
        [escape_markdown(heading) for heading in table.headings],
        [":--", *["--:" if table.numeric else ":--"] * (len(table.headings) - 1)],
        *([_cell_as_markdown(cell) for cell in row] for row in (*table.rows, *table.footer)),
    ]
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"## {table.title}\n\n{text}" + (f"\n\n{escape_markdown(table.note)}" if table.note else "")


def _cell_as_markdown(cell: Cell) -> str:
    text = escape_markdown(f"{cell.text} {cell.detail}".strip())
    return f"**{text}**" if cell.best else text


def escape_markdown(text: str) -> str:
    """Return a text that Markdown shows unchanged, in a table and outside."""
    text = re.sub(r"\s+", " ", text).replace("&", "&amp;")
    text = re.sub(r"([\\`*\[\]<>|~$])", r"\\\1", text)
    # Between letters Markdown takes an underscore literally.
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)


def make_bench_table(results: Json, timing: Json | None) -> Table:
    """Return the table for a console of 80 columns: score, gain with its interval, clean, and cost."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    metric = results["setup"]["metric"]
    title = f"{metric} on {main_part(results)} images, % (* best)"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    brief = {f"{metric}, %": "score", "gain": "gain (95 % interval)", "clean, %": "clean", "rows": "rows"}
    # The points of a study have long names and are not timed.
    brief |= {} if study_points(results) else {"ms": "ms", "× source": "× source"}
    table.add_column("method", overflow="fold", min_width=8)
    main = _make_main("", results["methods"], results, timing)
    shown = [heading for heading in main.headings if heading in brief]
    for heading in shown:
        table.add_column(brief[heading], justify="right", no_wrap=True)
    for row in main.rows:
        cells = dict(zip(main.headings, row, strict=True))
        texts = [Text(row[0].text)]
        for heading in shown:
            cell = cells[heading]
            text = f"{cell.text} {cell.detail}".strip() if heading == "gain" else cell.text
            texts.append(Text(f"* {text}", "bold green") if cell.best else Text(text))
        table.add_row(*texts)
    return table
