"""A benchmark's report: `report.md` with its figures beside it, and `report.html`, which is one file."""

from __future__ import annotations

from pathlib import Path

from ..files import write_text
from .charts import CAPTIONS, draw_all
from .page import Report, make_page
from .reading import Json, title
from .summary import summarize
from .tables import ReportTable, as_markdown, escape_markdown, make_recipes, make_tables, text_cell


def write_report(results: Json, timing: Json | None, folder: Path) -> None:
    """Write the report and its figures to a folder. The same results and timing give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [path for path in draw_all(results, timing, folder) if path.suffix == ".svg"]
    report = Report(
        title=title(results),
        summary=summarize(results, timing),
        tables=make_tables(results, timing),
        figures={path.stem: (CAPTIONS[path.stem], path.read_bytes()) for path in drawn},
        facts=[make_recipes(results), _describe_setup(results)],
        footer=f"Written by sita-adapters {results['version']}.",
    )
    write_text(folder / "report.md", _make_markdown(report))
    write_text(folder / "report.html", make_page(report))


def _describe_setup(results: Json) -> ReportTable:
    """Return the table of what was run."""
    setup = dict(results["setup"])
    conditions = setup.pop("conditions", [])
    facts = {name: value for name, value in setup.items() if value is not None}
    facts["conditions"] = f"{len(conditions)}: {', '.join(conditions)}"
    if results.get("command"):
        facts["command"] = results["command"]
    rows = tuple((text_cell(str(name)), text_cell(str(value))) for name, value in facts.items())
    return ReportTable("Setup", "", ("setting", "value"), rows)


def _make_markdown(report: Report) -> str:
    parts = [f"# {escape_markdown(report.title)}", f"**{escape_markdown(report.summary.sentence)}**"]
    parts.append(escape_markdown(" ".join(report.summary.notes)))
    for table in report.tables:
        parts += [f"## {escape_markdown(table.title)}", as_markdown(table)]
    parts += ["## Figures"] if report.figures else []
    for name, (caption, _) in report.figures.items():
        parts += [f"![{name}](figures/{name}.png)", escape_markdown(caption)]
    for table in report.facts:
        parts += [f"## {escape_markdown(table.title)}", as_markdown(table)]
    return "\n\n".join([*parts, report.footer]) + "\n"
