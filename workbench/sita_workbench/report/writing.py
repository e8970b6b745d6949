"""A benchmark's report: `report.html`, one file that loads nothing."""

from __future__ import annotations

from pathlib import Path

from ..files import write_text
from .charts import draw_all
from .reading import Json, title
from .summary import summarize
from .tables import make_conditions_table, make_methods_table, make_setup


def write_report(results: Json, timing: Json | None, folder: Path) -> None:
    """Write `report.html` to a folder, style, script and figures inside. The same results and times give the same."""
    from jinja2 import Environment, FileSystemLoader

    folder.mkdir(parents=True, exist_ok=True)
    here = Path(__file__).parent
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=FileSystemLoader(here))
    page = environment.get_template("page.html").render(
        title=title(results),
        summary=summarize(results, timing),
        methods=make_methods_table(results, timing),
        figures=draw_all(results, timing),
        details=[make_conditions_table(results), make_setup(results)],
        version=results["version"],
        style=(here / "page.css").read_text(encoding="utf-8"),
        script=(here / "page.js").read_text(encoding="utf-8"),
    )
    write_text(folder / "report.html", page)
