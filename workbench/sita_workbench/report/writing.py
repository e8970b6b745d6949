"""A benchmark's report: `report.md` with its figures beside it, and `report.html`, which is one file."""

from __future__ import annotations

from pathlib import Path

from ..files import replacing
from .charts import CAPTIONS, draw_all
from .page import make_figure, make_page, make_section
from .reading import Json
from .tables import Grid, as_markdown, escape_markdown, make_grids, make_recipes, text_cell
from .verdict import write_verdict


def write_report(results: Json, timing: Json | None, folder: Path) -> None:
    """Write the report of some results to a folder, with the figures that it shows.

    Results and timing are all that it reads, and the same ones give the same bytes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {path.stem: path for path in draw_all(results, timing, folder) if path.suffix == ".svg"}
    title = f"{results['setup']['model']} on {results['setup']['data']}"
    verdict = write_verdict(results, timing)
    grids = make_grids(results, timing)
    facts = [make_recipes(results), describe_setup(results)]
    foot = f"Written by sita-adapters {results['version']}."
    _write(folder / "report.md", _make_markdown(title, verdict, grids, facts, list(drawn)) + f"\n{foot}\n")
    figures = [make_figure(name, CAPTIONS[name], path.read_bytes()) for name, path in drawn.items()]
    sections = [
        *map(make_section, grids),
        *(["<h2>Figures</h2>"] if figures else []),
        *figures,
        *(make_section(fact, sortable=False) for fact in facts),
    ]
    _write(folder / "report.html", make_page(title, verdict, sections, foot))


def describe_setup(results: Json) -> Grid:
    """Return the table of what was run."""
    setup = dict(results["setup"])
    conditions = setup.pop("conditions", [])
    facts = {name: value for name, value in setup.items() if value is not None}
    facts["conditions"] = f"{len(conditions)}: {', '.join(conditions)}"
    if results.get("command"):
        facts["command"] = results["command"]
    lines = tuple((text_cell(str(name)), text_cell(str(value))) for name, value in facts.items())
    return Grid("Setup", "", ("setting", "value"), lines)


def _make_markdown(title: str, verdict: str, grids: list[Grid], facts: list[Grid], figures: list[str]) -> str:
    parts = [f"# {escape_markdown(title)}", escape_markdown(verdict)]
    for grid in grids:
        parts += [f"## {escape_markdown(grid.title)}", as_markdown(grid)]
    if figures:
        parts.append("## Figures")
    for name in figures:
        parts += [f"![{name}](figures/{name}.png)", escape_markdown(CAPTIONS[name])]
    for grid in facts:
        parts += [f"## {escape_markdown(grid.title)}", as_markdown(grid)]
    return "\n\n".join(parts) + "\n"


def _write(path: Path, text: str) -> None:
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
