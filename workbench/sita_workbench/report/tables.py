"""The tables of a benchmark: what is in them, and how a console shows the first. For HTML, see page.html."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from .reading import CLEAN, Json, gain_of, interval, main_part, number, time_of

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Cell:
    """A cell's text, the value that it is sorted by, the interval after it, and whether it is the best."""

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


def make_setup(results: Json) -> ReportTable:
    """Return the table of what was run, and of every method's recipe."""
    setup = {name: value for name, value in results["setup"].items() if value is not None}
    setup["conditions"] = f"{len(setup['conditions'])}: {', '.join(setup['conditions'])}"
    setup |= {"command": results["command"]} if "command" in results else {}
    setup |= {f"recipe {method['name']}": method["recipe"] for method in results["methods"]}
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
    shown = number(value["score"], signed=signed)
    return Cell(shown, _number(value["score"]).key, f"({interval(value, signed=signed)})")


def make_methods_table(results: Json, timing: Json | None) -> ReportTable:
    """Return the scores, gains and costs of the methods, without columns that have no number."""
    part, metric, methods = main_part(results), results["setup"]["metric"], results["methods"]
    lines = [_measure(method, results, time_of(timing, method)) for method in methods]
    columns = {heading: [line[heading] for line in lines] for heading in lines[0]}
    shown = {heading: cells for heading, cells in columns.items() if any(cell.key is not None for cell in cells)}
    better = {f"{metric}, %": 1, "clean, %": 1, "NLL": -1, "ECE, %": -1}
    marked = [_mark_best(cells, better.get(heading, 0)) for heading, cells in shown.items()]
    corrupted = sum(condition != CLEAN for condition in results["setup"]["conditions"])
    which = f"{part} images (mean of {corrupted} conditions)" if part != CLEAN and corrupted > 1 else f"{part} images"
    note = (
        f"Scores, NLL (in nats) and ECE on {which}. Parentheses show 95 % intervals. Gains are paired differences from "
        "source, in points. The best value of a column is bold."
    )
    if timing:
        facts = [f"{name}: {timing[name]}" for name in ("machine", "threads", "rounds") if timing[name]]
        note += f" Times are in ms per image, and relative to the source model in the same rounds ({', '.join(facts)})."
    names = [_text(method["name"]) for method in methods]
    return ReportTable("Methods", ("method", *shown), list(zip(names, *marked, strict=True)), note=note)


def _measure(method: Json, results: Json, time: Json) -> dict[str, Cell]:
    """Return a method's cells by their headings."""
    part = main_part(results)
    value = method[part]
    cells = {f"{results['setup']['metric']}, %": _score(value), "gain": _score(value["gain"], signed=True)}
    if part == "corrupted":
        cells["clean, %"] = _score(method["clean"])
        cells["gain, clean"] = _score(gain_of(method, "clean"), signed=True)
    return cells | {
        "NLL": _number(value["nll"], 2),
        "ECE, %": _number(value["ece"]),
        "rows": _number(method["rows"], 0),
        "ms": _number(time.get("ms"), 2),
        "× source": _number(time.get("relative")),
    }


def make_conditions_table(results: Json) -> ReportTable:
    """Return the methods' scores under each condition."""
    methods, conditions = results["methods"], results["setup"]["conditions"]

    def row(name: str, values: Sequence[Json]) -> Row:
        return (_text(name), *_mark_best([_number(value["score"]) for value in values], 1))

    rows = [row(name.replace("_", " "), [method["conditions"][name] for method in methods]) for name in conditions]
    several = sum(condition != CLEAN for condition in conditions) > 1
    footer = [row("mean of corrupted", [method["corrupted"] for method in methods])] if several else []
    headings = ("condition", *(method["name"] for method in methods))
    note = f"{results['setup']['metric']}, %. The best value of a row is bold."
    return ReportTable("By corruption", headings, rows, footer, note)


def _mark_best(cells: Sequence[Cell], better: int) -> list[Cell]:
    """Mark the highest number (better = 1) or the lowest (-1), and those that are printed like it."""
    known = [cell for cell in cells if isinstance(cell.key, float | int)]
    if not better or len(known) < 2:
        return list(cells)
    best = max(known, key=lambda cell: better * float(cell.key or 0)).text
    return [replace(cell, best=cell.text == best) for cell in cells]


def make_bench_table(results: Json, timing: Json | None) -> Table:
    """Return the table for a console of 80 columns: score, gain with its interval, clean, and cost."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    metric = results["setup"]["metric"]
    title = f"{metric} on {main_part(results)} images, % (* best)"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    brief = {f"{metric}, %": "score", "gain": "gain (95 % interval)", "clean, %": "clean", "rows": "rows"}
    brief |= {"ms": "ms", "× source": "× source"}
    methods = make_methods_table(results, timing)
    table.add_column("method", overflow="fold", min_width=8)
    for heading in filter(brief.get, methods.headings):
        table.add_column(brief[heading], justify="right", no_wrap=True)
    for name, *cells in methods.rows:
        texts = [Text(name.text)]
        for heading, cell in zip(methods.headings[1:], cells, strict=True):
            if heading in brief:
                text = f"{cell.text} {cell.detail}".strip() if heading == "gain" else cell.text
                texts.append(Text(f"* {text}", "bold green") if cell.best else Text(text))
        table.add_row(*texts)
    return table
