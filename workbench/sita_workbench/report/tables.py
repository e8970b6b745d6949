"""The tables of a benchmark, which are written as Markdown, as HTML, and on a console."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .reading import (
    CLEAN,
    NOTHING,
    Json,
    count_corrupted,
    describe_part,
    describe_timing,
    gain_of,
    interval,
    main_part,
    number,
    plain_methods,
    significant,
    study_points,
    time_of,
    words,
)

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Cell:
    """A cell's text, the value that it is sorted by, and whether it is the best of its column or row."""

    text: str
    key: float | str | None = None
    best: bool = False

    @property
    def has_key(self) -> bool:
        """Whether there is something to sort by; NaN is not."""
        return isinstance(self.key, str) or _is_number(self.key)

    def split(self) -> tuple[str, str]:
        """Return a number, and the interval in brackets after it."""
        value, bracket, rest = self.text.partition(" (")
        return (value, f"({rest}") if bracket and not isinstance(self.key, str) else (self.text, "")


@dataclass(frozen=True)
class ReportTable:
    """A table: its title, a note, the column headings, the rows, and the rows of its footer."""

    title: str
    note: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    footer: tuple[tuple[Cell, ...], ...] = ()

    def is_text(self) -> list[bool]:
        """Return for every column whether it holds text, which is aligned left."""
        return [any(isinstance(row[place].key, str) for row in self.rows) for place in range(len(self.headings))]


def make_tables(results: Json, timing: Json | None) -> list[ReportTable]:
    """Return every table for which there is data."""
    methods, points = plain_methods(results), study_points(results)
    tables = [_make_main(results, timing, methods, "Methods")] if methods else []
    if points:
        tables.append(_make_main(results, timing, points, "Points of the study"))
    if any(method.get("conditions") for method in methods):
        tables.append(_make_by_condition(results, methods))
    seeded = [method for method in results["methods"] if len(method.get("seeds") or ()) > 1]
    if seeded:
        tables.append(_make_seeds(results, seeded))
    return tables


def make_recipes(results: Json) -> ReportTable:
    """Return the table of every method's recipe."""
    rows = tuple((text_cell(method["name"]), text_cell(str(method["recipe"]))) for method in plain_methods(results))
    return ReportTable("Recipes", "", ("method", "recipe"), rows)


def text_cell(text: str) -> Cell:
    """Return a cell that is sorted by its text."""
    return Cell(text, text)


@dataclass(frozen=True)
class _Column:
    """A column of numbers: a method's value, how it is printed, and which end is good (1: high, -1: low)."""

    heading: str
    value: Callable[[Json], float | None]
    show: Callable[[float], str] = number
    good: int = 0
    span: Callable[[Json], str] | None = None


def _columns(results: Json, timing: Json | None) -> list[_Column]:
    part = main_part(results)
    metric = results["setup"]["metric"]

    def of(where: str, key: str = "score") -> Callable[[Json], float | None]:
        return lambda method: (method.get(where) or {}).get(key)

    def span(read: Callable[[Json], Json | None], *, signed: bool) -> Callable[[Json], str]:
        return lambda method: interval(value, signed=signed) if (value := read(method)) else ""

    def timed(key: str) -> Callable[[Json], float | None]:
        return lambda method: (time_of(timing, method) or {}).get(key)

    def signed(value: float) -> str:
        return number(value, signed=True)

    def precise(value: float) -> str:
        return number(value, 2)

    gain = "gain" if part == "corrupted" else "gain_clean"
    columns = [
        _Column(f"{metric}, %", of(part), good=1, span=span(lambda m: m.get(part), signed=False)),
        _Column("gain", of(gain), signed, 0, span(lambda m: gain_of(m, part), signed=True)),
    ]
    if part == "corrupted":
        columns += [
            _Column("clean, %", of(CLEAN), good=1, span=span(lambda m: m.get(CLEAN), signed=False)),
            _Column("gain, clean", of("gain_clean"), signed, 0, span(lambda m: m.get("gain_clean"), signed=True)),
        ]
    return [
        *columns,
        _Column("NLL", of(part, "nll"), precise, -1),
        _Column("ECE, %", of(part, "ece"), good=-1),
        _Column("entropy", of(part, "entropy"), precise),
        _Column("rows", lambda method: method.get("rows"), lambda value: number(value, 0)),
        _Column("ms", timed("ms"), significant),
        _Column("× source", timed("relative")),
    ]


def _make_main(results: Json, timing: Json | None, methods: Sequence[Json], title: str) -> ReportTable:
    part = main_part(results)
    columns = [c for c in _columns(results, timing) if any(_is_number(c.value(method)) for method in methods)]
    rows = []
    for method in methods:
        cells = [text_cell(method["name"])]
        for column in columns:
            values = [column.value(each) for each in methods]
            value = column.value(method)
            text = _shown(value, column.show)
            if column.span and text != NOTHING and (span := column.span(method)):
                text += f" ({span})"
            cells.append(Cell(text, value, _is_best(value, values, column.show, column.good)))
        rows.append(tuple(cells))
    note = (
        f"Scores, NLL, ECE and entropy on {describe_part(results, part)}; in brackets 95 % intervals; gains are paired "
        "differences from source, in points; NLL and entropy in nats. Bold: the best of the column."
    )
    if timing and timing.get("methods"):
        note += f" Times in ms per image, and × the source model's in the same rounds: {describe_timing(timing)}."
    return ReportTable(title, note, ("method", *(column.heading for column in columns)), tuple(rows))


def _make_by_condition(results: Json, methods: Sequence[Json]) -> ReportTable:
    methods = [method for method in methods if method.get("conditions")]

    def row(name: str, values: Sequence[float | None]) -> tuple[Cell, ...]:
        return (text_cell(name), *(Cell(_shown(v, number), v, _is_best(v, values, number, 1)) for v in values))

    rows, footer = [], []
    for condition in results["setup"]["conditions"]:
        scores = [(method["conditions"].get(condition) or {}).get("score") for method in methods]
        rows.append(row(words(condition), scores))
    if count_corrupted(results) > 1:
        footer.append(row("mean of corrupted", [(method.get("corrupted") or {}).get("score") for method in methods]))
    headings = ("condition", *(method["name"] for method in methods))
    note = f"{results['setup']['metric']}, %. Bold: the best of the row."
    return ReportTable("By corruption", note, headings, tuple(rows), tuple(footer))


def _make_seeds(results: Json, methods: Sequence[Json]) -> ReportTable:
    rows = []
    for method in methods:
        mean, deviation = statistics.fmean(method["seeds"]), statistics.stdev(method["seeds"])
        each = ", ".join(number(score, 2) for score in method["seeds"])
        spread = Cell(number(deviation, 2), deviation)
        rows.append((text_cell(method["name"]), Cell(number(mean, 2), mean), spread, text_cell(each)))
    headings = ("method", "mean", "standard deviation", "each seed")
    return ReportTable(
        "Seeds", f"{results['setup']['metric']} on {main_part(results)} images, %.", headings, tuple(rows)
    )


def _is_number(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


def _shown(value: float | None, show: Callable[[float], str]) -> str:
    return show(value) if value is not None and _is_number(value) else NOTHING


def _is_best(value: float | None, values: Sequence[float | None], show: Callable[[float], str], good: int) -> bool:
    """Say whether a value is the best or printed like the best; nothing is best among fewer than two."""
    known = [each for each in values if each is not None and _is_number(each)]
    if not good or len(known) < 2 or value is None or not _is_number(value):
        return False
    return show(value) == show(max(known, key=lambda each: good * each))


def as_markdown(table: ReportTable) -> str:
    """Return a table in Markdown, with its note below."""
    rows = [
        [escape_markdown(heading) for heading in table.headings],
        [":--" if text else "--:" for text in table.is_text()],
        *([_bold_best(cell) for cell in cells] for cells in (*table.rows, *table.footer)),
    ]
    text = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return f"{text}\n\n{escape_markdown(table.note)}" if table.note else text


def _bold_best(cell: Cell) -> str:
    text = escape_markdown(cell.text)
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
    table = Table(
        title=f"{metric} on {main_part(results)} images, % (* best)",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    brief = {f"{metric}, %": "score", "gain": "gain (95 % interval)", "clean, %": "clean", "rows": "rows"}
    # The points of a study have long names and are not timed.
    brief |= {} if study_points(results) else {"ms": "ms", "× source": "× source"}
    main = _make_main(results, timing, results["methods"], "")
    shown = [place for place, heading in enumerate(main.headings) if heading in brief]
    table.add_column("method", overflow="fold", min_width=8)
    for place in shown:
        heading = main.headings[place]
        table.add_column(brief[heading], justify="right", no_wrap=True)
    for name, *cells in main.rows:
        texts = [Text(name.text)]
        for place in shown:
            cell = cells[place - 1]
            text = cell.text if main.headings[place] == "gain" else cell.split()[0]
            texts.append(Text(f"* {text}", "bold green") if cell.best else Text(text))
        table.add_row(*texts)
    return table
