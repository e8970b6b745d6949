"""A benchmark's report as one HTML file that loads nothing: style, script and figures are inside."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .summary import Summary
from .tables import ReportTable

_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #222222; --faint: #5f5f5f; --line: #d9d9d9; --shade: #f4f5f7; --best: #00557f;
  --gain: #00684a; --loss: #a83a00;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16181c; --ink: #e6e6e6; --faint: #a3a7ad; --line: #363a41; --shade: #1f2228; --best: #7cc4ee;
    --gain: #52c9a0; --loss: #f59a68;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 76rem; margin: 0 auto; padding: 1.25rem 1rem 3rem; }
.about { color: var(--faint); margin: 0 0 .35rem; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.3; margin: 0 0 1.1rem; max-width: 52rem; overflow-wrap: anywhere; }
h1, .beside { text-wrap: balance; }
h2 { font-size: 1.2rem; margin: 2.25rem 0 .5rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .7rem; margin: 0 0 1.1rem; }
.figures div { background: var(--shade); border-top: 3px solid var(--line); border-radius: 6px; padding: .6rem .8rem; }
.figures .gain { border-color: var(--gain); }
.figures .loss { border-color: var(--loss); }
.figures dt { font-size: .875rem; overflow-wrap: anywhere; }
.figures .value { font-size: 1.6rem; line-height: 1.3; font-weight: 650; margin: 0; }
.figures small { font-size: 1rem; }
.figures .gain .value { color: var(--gain); }
.figures .loss .value { color: var(--loss); }
.figures .beside { color: var(--faint); font-size: .8125rem; line-height: 1.35; margin: 0; }
.notes { max-width: 50rem; margin: 0; overflow-wrap: anywhere; }
.note { color: var(--faint); font-size: .875rem; margin: .5rem 0; max-width: 46rem; }
.scroll { overflow-x: auto; -webkit-overflow-scrolling: touch; border: 1px solid var(--line); border-radius: 6px; }
.scroll:focus-visible { outline: 2px solid var(--best); }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th.text, td.text { text-align: left; }
.wrap td.text:last-child { white-space: normal; overflow-wrap: anywhere; min-width: 14rem; }
tbody tr:last-child > *, tfoot tr:last-child > * { border-bottom: 0; }
thead th { background: var(--shade); }
tfoot > tr > * { border-top: 2px solid var(--line); background: var(--shade); }
th:first-child { position: sticky; left: 0; background: var(--paper); font-weight: 600; text-align: left; }
thead th:first-child, tfoot th:first-child { background: var(--shade); }
td b { color: var(--best); }
td small { color: var(--faint); }
thead button {
  font: inherit; font-weight: 600; color: inherit; background: none; border: 0; padding: 0; cursor: pointer;
}
thead button::after { content: "\\2195"; color: var(--faint); padding-left: .3em; }
th[aria-sort="ascending"] button::after { content: "\\2191"; color: inherit; }
th[aria-sort="descending"] button::after { content: "\\2193"; color: inherit; }
figure { margin: 1.25rem 0 2rem; }
figure img { display: block; width: 100%; max-width: 52rem; height: auto; background: #fff; border-radius: 6px; }
figure > div { overflow-x: auto; }
@media (max-width: 40rem) {
  h1 { font-size: 1.3rem; }
  figure img { width: 38rem; max-width: none; }
  td small { display: block; }
}
@media (prefers-color-scheme: dark) {
  figure img { filter: invert(1) hue-rotate(180deg) brightness(1.25); mix-blend-mode: screen; }
}
details { border-top: 1px solid var(--line); padding: .6rem 0; }
details:last-of-type { border-bottom: 1px solid var(--line); }
summary { cursor: pointer; font-size: 1.05rem; font-weight: 600; }
summary:focus-visible, button:focus-visible { outline: 2px solid var(--best); outline-offset: 2px; }
details[open] > summary { margin-bottom: .6rem; }
figcaption { color: var(--faint); font-size: .875rem; margin-top: .4rem; max-width: 46rem; }
footer { color: var(--faint); font-size: .875rem; margin-top: 2.5rem; }
@media print { thead button::after { content: ""; } .scroll, figure > div { overflow: visible; border: 0; } }
"""

# Cells without a number stay last in both directions. What is folded is printed all the same.
_SCRIPT = """
document.querySelectorAll("table.sortable").forEach(function (table) {
  var heads = Array.from(table.querySelectorAll("thead th"));
  heads.forEach(function (head, column) {
    head.querySelector("button").addEventListener("click", function () {
      var body = table.querySelector("tbody");
      var texts = head.classList.contains("text");
      var before = head.getAttribute("aria-sort");
      var up = before ? before === "descending" : texts;
      var key = function (row) { return row.children[column].getAttribute("data-key"); };
      var rows = Array.from(body.querySelectorAll("tr"));
      rows.sort(function (one, other) {
        var a = key(one), b = key(other);
        if (a === null || b === null) { return (a === null) - (b === null); }
        var order = texts ? a.localeCompare(b, undefined, { numeric: true }) : Number(a) - Number(b);
        return up ? order : -order;
      });
      heads.forEach(function (each) { each.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      rows.forEach(function (row) { body.appendChild(row); });
    });
  });
});
window.addEventListener("beforeprint", function () {
  document.querySelectorAll("details").forEach(function (each) { each.open = true; });
});
"""

# The policy tells the browser to load nothing, whatever a name in the results contains. A figure is a separate image,
# so that its ids and styles do not mix with the page's.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{{ title }}</title>
<style>{{ style|safe }}</style>
</head>
<body>
<main>
{% macro kind(is_text) %}{% if is_text %} class="text"{% endif %}{% endmacro %}
{% macro key(cell) %}{% if cell.has_key %} data-key="{{ cell.key }}"{% endif %}{% endmacro %}
{% macro content(cell) %}
{% set value, bracket = cell.split() %}
{%- if cell.best %}<b>{{ value }}</b>{% else %}{{ value }}{% endif %}
{%- if bracket %} <small>{{ bracket }}</small>{% endif %}
{% endmacro %}
{% macro row(cells, is_text) %}
<tr><th scope="row" class="text"{{ key(cells[0]) }}>{{ cells[0].text }}</th>
{%- for cell in cells[1:] %}<td{{ kind(is_text[loop.index]) }}{{ key(cell) }}>{{ content(cell) }}</td>{% endfor %}</tr>
{% endmacro %}
{% macro grid(table, sortable) %}
{% set is_text = table.is_text() %}
<div class="scroll" role="region" tabindex="0" aria-label="{{ table.title }}">
<table class="{{ 'sortable' if sortable else 'wrap' }}">
<thead><tr>
{% for head in table.headings %}
<th scope="col"{{ kind(is_text[loop.index0]) }}>
{%- if sortable %}<button type="button">{{ head }}</button>{% else %}{{ head }}{% endif %}</th>
{% endfor %}
</tr></thead>
<tbody>
{% for cells in table.rows %}{{ row(cells, is_text) }}{% endfor %}
</tbody>
{% if table.footer %}<tfoot>{% for cells in table.footer %}{{ row(cells, is_text) }}{% endfor %}</tfoot>{% endif %}
</table></div>
{% if table.note %}<p class="note">{{ table.note }}</p>{% endif %}
{% endmacro %}
{% macro folded(table, sortable) %}
<details><summary>{{ table.title }}</summary>
{{ grid(table, sortable) }}
</details>
{% endmacro %}
<p class="about">{{ title }}</p>
<h1>{{ summary.sentence|keep_together }}</h1>
{% if summary.figures %}
<dl class="figures">
{% for figure in summary.figures %}
<div{% if figure.sense %} class="{{ figure.sense }}"{% endif %}><dt>{{ figure.label }}</dt>
<dd class="value">{{ figure.value }} <small>{{ figure.unit }}</small></dd>
<dd class="beside">{{ figure.note|keep_together }}</dd></div>
{% endfor %}
</dl>
{% endif %}
<p class="notes">{{ summary.notes|join(" ")|keep_together }}</p>
{% for table in tables[:1] %}<h2>{{ table.title }}</h2>{{ grid(table, true) }}{% endfor %}
{% if figures %}<h2>Figures</h2>{% endif %}
{% for name, (caption, svg) in figures.items() %}
<figure id="{{ name }}">
<div role="region" tabindex="0" aria-label="{{ caption }}">
<img alt="{{ caption }}" src="data:image/svg+xml;base64,{{ base64(svg) }}"></div>
<figcaption>{{ caption }}</figcaption>
</figure>
{% endfor %}
<h2>In detail</h2>
{% for table in tables[1:] %}{{ folded(table, true) }}{% endfor %}
{% for table in facts %}{{ folded(table, false) }}{% endfor %}
<footer>{{ footer }}</footer>
</main>
<script>{{ script|safe }}</script>
</body>
</html>
"""


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
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["keep_together"] = lambda text: _WITHIN_NUMBERS.sub("\N{NO-BREAK SPACE}", text)
    page = environment.from_string(_PAGE)
    page.globals["base64"] = lambda svg: base64.b64encode(svg).decode("ascii")
    return page.render(vars(report), style=_STYLE, script=_SCRIPT)
