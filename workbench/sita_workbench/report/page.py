"""A benchmark's report as one HTML file that loads nothing: style, script and figures are inside."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from .tables import Cell, Grid

_STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --ink: #222222; --faint: #5f5f5f; --line: #d9d9d9; --shade: #f4f5f7; --best: #00557f;
}
@media (prefers-color-scheme: dark) {
  :root { --paper: #16181c; --ink: #e6e6e6; --faint: #a3a7ad; --line: #363a41; --shade: #1f2228; --best: #7cc4ee; }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
}
main { max-width: 64rem; margin: 0 auto; padding: 1.25rem 1rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.25rem 0 .5rem; }
.verdict {
  font-size: 1.06rem; border-left: 4px solid var(--best); background: var(--shade);
  padding: .75rem 1rem; margin: 1rem 0; overflow-wrap: anywhere;
}
.note { color: var(--faint); font-size: .875rem; margin: .5rem 0; max-width: 46rem; }
.scroll { overflow-x: auto; -webkit-overflow-scrolling: touch; border: 1px solid var(--line); border-radius: 6px; }
.scroll:focus-visible { outline: 2px solid var(--best); }
table { border-collapse: collapse; width: 100%; font-size: .875rem; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
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
figcaption { color: var(--faint); font-size: .875rem; margin-top: .4rem; max-width: 46rem; }
footer { color: var(--faint); font-size: .875rem; margin-top: 2.5rem; }
@media print { thead button::after { content: ""; } .scroll { overflow: visible; border: 0; } }
"""

# Cells without a number stay last, whichever way the others are sorted.
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
"""

# The browser itself is told to load nothing, whatever a name in the results holds.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def make_page(title: str, verdict: str, sections: Sequence[str], foot: str) -> str:
    """Return the whole page; sections are HTML already, all else is text."""
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{escape(title)}</h1>\n<p class="verdict">{escape(verdict)}</p>\n'
        + "\n".join(sections)
        + f"\n<footer>{escape(foot)}</footer>\n</main>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def make_section(grid: Grid, *, sortable: bool = True) -> str:
    """Return a table with its title and note; it scrolls by itself where the screen is narrow."""
    texts = [_is_text([line[place] for line in grid.lines]) for place in range(len(grid.heads))]
    heads = "".join(_head(name, text, sortable) for name, text in zip(grid.heads, texts, strict=True))
    body = "\n".join(_line(cells, texts) for cells in grid.lines)
    foot = "".join(_line(cells, texts) for cells in grid.foot)
    kind = "sortable" if sortable else "wrap"
    return (
        f"<section>\n<h2>{escape(grid.title)}</h2>\n"
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(grid.title)}">'
        f'<table class="{kind}">\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>\n'
        + (f"<tfoot>{foot}</tfoot>\n" if foot else "")
        + "</table></div>\n"
        + (f'<p class="note">{escape(grid.note)}</p>\n' if grid.note else "")
        + "</section>"
    )


def make_figure(name: str, caption: str, svg: bytes) -> str:
    """Return a figure. As a picture of its own it shares no names with the others, nor the page's style."""
    data = base64.b64encode(svg).decode("ascii")
    return (
        f'<figure id="{escape(name)}">\n<img alt="{escape(caption)}" src="data:image/svg+xml;base64,{data}">\n'
        f"<figcaption>{escape(caption)}</figcaption>\n</figure>"
    )


def _head(name: str, text: bool, sortable: bool) -> str:
    shown = f'<button type="button">{escape(name)}</button>' if sortable else escape(name)
    return f'<th scope="col"{_kind(text)}>{shown}</th>'


def _line(cells: Sequence[Cell], texts: Sequence[bool]) -> str:
    first, *others = cells
    written = [f'<th scope="row" class="text"{_key(first)}>{escape(first.text)}</th>']
    for cell, text in zip(others, texts[1:], strict=True):
        written.append(f"<td{_kind(text)}{_key(cell)}>{_content(cell)}</td>")
    return f"<tr>{''.join(written)}</tr>"


def _content(cell: Cell) -> str:
    """Return a cell's number, bold if it is the best, and small what stands in brackets behind a number."""
    main, bracket, rest = cell.text.partition(" (") if not isinstance(cell.key, str) else (cell.text, "", "")
    shown = f"<b>{escape(main)}</b>" if cell.best else escape(main)
    return f"{shown} <small>({escape(rest)}</small>" if bracket else shown


def _kind(text: bool) -> str:
    return ' class="text"' if text else ""


def _key(cell: Cell) -> str:
    # NaN is no number to sort by.
    known = cell.key is not None and cell.key == cell.key
    return f' data-key="{escape(str(cell.key))}"' if known else ""


def _is_text(cells: Sequence[Cell]) -> bool:
    return any(isinstance(cell.key, str) for cell in cells)
