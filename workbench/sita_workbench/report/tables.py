"""The tables of a benchmark, made once and written as Markdown, as HTML, and on a console."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .reading import (
    CLEAN,
    NOTHING,
    Json,
    count_corrupted,
    describe_part,
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
from .verdict import mean_and_deviation

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Cell:
    """What stands in a cell, what it is sorted by, and whether it is the best of its kind."""

    text: str
    key: float | str | None = None
    best: bool = False


@dataclass(frozen=True)
class Grid:
    """A table: a title, a note about it, the heads of its columns, its lines, and lines that stay at its foot."""

    title: str
    note: str
    heads: tuple[str, ...]
    lines: tuple[tuple[Cell, ...], ...]
    foot: tuple[tuple[Cell, ...], ...] = ()


def make_grids(results: Json, timing: Json | None) -> list[Grid]:
    """Return every table for which there is data."""
    methods, points = plain_methods(results), study_points(results)
    grids = [_make_main(results, timing, methods, "Methods")] if methods else []
    if points:
        grids.append(_make_main(results, timing, points, "Points of the study"))
    if any(method.get("conditions") for method in methods):
        grids.append(_make_by_condition(results, methods))
    seeded = [method for method in results["methods"] if len(method.get("seeds") or ()) > 1]
    if seeded:
        grids.append(_make_seeds(results, seeded))
    return grids


def make_recipes(results: Json) -> Grid:
    """Return the table that says what every method's name stands for."""
    lines = tuple((text_cell(method["name"]), text_cell(str(method["recipe"]))) for method in plain_methods(results))
    return Grid("Recipes", "", ("method", "recipe"), lines)


def text_cell(text: str) -> Cell:
    """Return a cell that is sorted by its text."""
    return Cell(text, text)


@dataclass(frozen=True)
class _Column:
    """A column of numbers: the value of a method, how it is printed, and which end is good (1: high, -1: low)."""

    head: str
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


def _make_main(results: Json, timing: Json | None, methods: Sequence[Json], title: str) -> Grid:
    part = main_part(results)
    columns = [c for c in _columns(results, timing) if any(_is_number(c.value(method)) for method in methods)]
    lines = []
    for method in methods:
        cells = [text_cell(method["name"])]
        for column in columns:
            values = [column.value(each) for each in methods]
            value = column.value(method)
            text = _shown(value, column.show)
            if column.span and text != NOTHING and (span := column.span(method)):
                text += f" ({span})"
            cells.append(Cell(text, value, _is_best(value, values, column.show, column.good)))
        lines.append(tuple(cells))
    note = (
        f"Scores, NLL, ECE and entropy on {describe_part(results, part)}; in brackets 95 % intervals; gains are paired "
        "differences from source, in points; NLL and entropy in nats. Bold: the best of the column."
    )
    if timing and timing.get("methods"):
        batch, threads = timing.get("batch", NOTHING), timing.get("threads", NOTHING)
        note += f" Times in ms an image: {timing.get('machine', '')}, threads {threads}, batch {batch}."
    return Grid(title, note, ("method", *(column.head for column in columns)), tuple(lines))


def _make_by_condition(results: Json, methods: Sequence[Json]) -> Grid:
    methods = [method for method in methods if method.get("conditions")]

    def line(name: str, values: Sequence[float | None]) -> tuple[Cell, ...]:
        return (text_cell(name), *(Cell(_shown(v, number), v, _is_best(v, values, number, 1)) for v in values))

    lines, foot = [], []
    for condition in results["setup"]["conditions"]:
        scores = [(method["conditions"].get(condition) or {}).get("score") for method in methods]
        lines.append(line(words(condition), scores))
    if count_corrupted(results) > 1:
        foot.append(line("mean of corrupted", [(method.get("corrupted") or {}).get("score") for method in methods]))
    heads = ("condition", *(method["name"] for method in methods))
    note = f"{results['setup']['metric']}, %. Bold: the best of the line."
    return Grid("By corruption", note, heads, tuple(lines), tuple(foot))


def _make_seeds(results: Json, methods: Sequence[Json]) -> Grid:
    lines = []
    for method in methods:
        mean, deviation = mean_and_deviation(method["seeds"])
        each = ", ".join(number(score, 2) for score in method["seeds"])
        spread = Cell(number(deviation, 2), deviation)
        lines.append((text_cell(method["name"]), Cell(number(mean, 2), mean), spread, text_cell(each)))
    heads = ("method", "mean", "standard deviation", "each seed")
    return Grid("Seeds", f"{results['setup']['metric']} on {main_part(results)} images, %.", heads, tuple(lines))


def _is_number(value: float | None) -> bool:
    return value is not None and not math.isnan(value)


def _shown(value: float | None, show: Callable[[float], str]) -> str:
    return show(value) if value is not None and not math.isnan(value) else NOTHING


def _is_best(value: float | None, values: Sequence[float | None], show: Callable[[float], str], good: int) -> bool:
    """Say whether a value is as good as any, as printed; nothing is best among fewer than two."""
    known = [each for each in values if each is not None and not math.isnan(each)]
    if not good or len(known) < 2 or value is None or math.isnan(value):
        return False
    return show(value) == show(max(known, key=lambda each: good * each))


def as_markdown(grid: Grid) -> str:
    """Return a table in Markdown, with its note beneath."""
    heads = [escape_markdown(head) for head in grid.heads]
    # Texts are flush left, numbers flush right.
    flush = [":--" if isinstance(key, str) else "--:" for key in _kinds(grid)]
    lines = [_line(heads), _line(flush)]
    lines += [_line([_mark(cell) for cell in cells]) for cells in (*grid.lines, *grid.foot)]
    text = "\n".join(lines)
    return f"{text}\n\n{escape_markdown(grid.note)}" if grid.note else text


def _kinds(grid: Grid) -> list[float | str | None]:
    return [
        next((cells[place].key for cells in grid.lines if cells[place].key is not None), None)
        for place in range(len(grid.heads))
    ]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _mark(cell: Cell) -> str:
    text = escape_markdown(cell.text)
    return f"**{text}**" if cell.best else text


def escape_markdown(text: str) -> str:
    """Return a text that Markdown, in a table or outside, shows as it is."""
    text = re.sub(r"\s+", " ", text).replace("&", "&amp;")
    text = re.sub(r"([\\`*\[\]<>|~$])", r"\\\1", text)
    # Between letters an underscore stands for itself.
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)


def make_bench_table(results: Json, timing: Json | None) -> Table:
    """Return the table for a console of 80 columns: score, gain with its interval, clean, and cost."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    part = main_part(results)
    wanted = (f"{results['setup']['metric']}, %", "gain", "clean, %", "rows", "ms", "× source")
    columns = [column for column in _columns(results, timing) if column.head in wanted]
    methods = results["methods"]
    columns = [column for column in columns if any(_is_number(column.value(method)) for method in methods)]
    table = Table(
        title=f"{results['setup']['metric']} on {part} images, % (* best)",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("method", overflow="fold", min_width=8)
    brief = {wanted[0]: "score", "gain": "gain (95 % interval)", "clean, %": "clean"}
    for column in columns:
        table.add_column(brief.get(column.head, column.head), justify="right", no_wrap=True)
    for method in methods:
        cells: list[Any] = [Text(method["name"])]
        for column in columns:
            value = column.value(method)
            text = _shown(value, column.show)
            best = _is_best(value, [column.value(each) for each in methods], column.show, column.good)
            if column.head == "gain" and text != NOTHING and column.span:
                text += f" ({column.span(method)})"
            cells.append(Text(f"* {text}", "bold green") if best else Text(text))
        table.add_row(*cells)
    return table
