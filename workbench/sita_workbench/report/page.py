"""A benchmark's report as one HTML file that loads nothing: style, script and figures are inside."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .summary import Summary
from .tables import ReportTable

# The spaces in "95 %", "12.3 ms" and "+1.0 to +2.0", at which a line should not end.
_WITHIN_NUMBERS = re.compile(r"(?<=\d) (?=[%×]|(?:ms|to|points?|times)\b)|(?<=\bto) (?=[+−\d])")


@dataclass(frozen=True)
class Report:
    """What a report contains; `figures` are captions and SVG files by name. All tables but the first are folded."""

    title: str
    summary: Summary
    tables: Sequence[ReportTable]
    figures: Mapping[str, tuple[str, bytes]]
    facts: Sequence[ReportTable]
    footer: str


def make_page(report: Report) -> str:
    """Return the whole page."""
    from jinja2 import Environment, FileSystemLoader

    here = Path(__file__).parent
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, loader=FileSystemLoader(here))
    environment.filters["keep_together"] = lambda text: _WITHIN_NUMBERS.sub("\N{NO-BREAK SPACE}", text)
    page = environment.get_template("page.html")
    page.globals["base64"] = lambda svg: base64.b64encode(svg).decode("ascii")
    style, script = ((here / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return page.render(vars(report), style=style, script=script)
