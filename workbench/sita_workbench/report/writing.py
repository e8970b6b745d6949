"""A benchmark's report: `report.md` with its figures beside it, and `report.html`, which is one file."""

from __future__ import annotations

import base64
import re
from pathlib import Path

from ..files import write_text
from .charts import FIGURES, draw_all
from .reading import Json, title
from .summary import summarize
from .tables import as_markdown, escape_markdown, make_setup, make_tables

# The spaces in "95 %", "12.3 ms" and "+1.0 to +2.0", at which a line should not end.
_WITHIN_NUMBERS = re.compile(r"(?<=\d) (?=[%×]|(?:ms|to|points?|times)\b)|(?<=\bto) (?=[+−\d])")


def write_report(results: Json, timing: Json | None, folder: Path) -> None:
    """Write the report and its figures to a folder. The same results and timing give the same report."""
    folder.mkdir(parents=True, exist_ok=True)
    report = {
        "title": title(results),
        "summary": summarize(results, timing),
        "tables": make_tables(results, timing),
        "captions": {name: FIGURES[name][1] for name in draw_all(results, timing, folder / "figures")},
        "setup": make_setup(results),
        "footer": f"Written by sita-adapters {results['version']}.",
    }
    write_text(folder / "report.md", _make_markdown(report))
    write_text(folder / "report.html", _make_page(report, folder / "figures"))


def _make_markdown(report: Json) -> str:
    summary = report["summary"]
    parts = [f"# {escape_markdown(report['title'])}", f"**{escape_markdown(summary.sentence)}**"]
    parts.append(escape_markdown(" ".join(summary.notes)))
    parts += map(as_markdown, report["tables"])
    parts += ["## Figures"] if report["captions"] else []
    for name, caption in report["captions"].items():
        parts += [f"![{name}](figures/{name}.png)", escape_markdown(caption)]
    parts += [as_markdown(report["setup"]), report["footer"]]
    return "\n\n".join(filter(None, parts)) + "\n"


def _make_page(report: Json, figures: Path) -> str:
    """Return the HTML page, which loads nothing: style, script and figures are inside."""
    from jinja2 import Environment, FileSystemLoader

    here = Path(__file__).parent
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=FileSystemLoader(here))
    environment.filters["keep_together"] = lambda text: _WITHIN_NUMBERS.sub("\N{NO-BREAK SPACE}", text)
    environment.filters["picture"] = lambda name: base64.b64encode((figures / f"{name}.svg").read_bytes()).decode()
    style, script = ((here / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return environment.get_template("page.html").render(report, style=style, script=script)
