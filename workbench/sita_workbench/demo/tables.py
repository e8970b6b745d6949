"""What the demo prints: a table, and a sentence."""

from __future__ import annotations

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from .demo import CLEAN, DemoResult


def make_table(result: DemoResult) -> Table:
    """Return a table of accuracies, a line a condition and a column a recipe, the best of each line marked."""
    table = Table(
        title=f"% right of {len(result.labels)} digits one at a time, {result.framework} (* best)",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("corruption", no_wrap=True)
    for recipe in result.recipes:
        table.add_column(recipe, justify="right", no_wrap=True)
    for condition, line in zip(result.conditions, result.accuracies, strict=True):
        name = "none (clean)" if condition == CLEAN else condition
        table.add_row(name, *_marked(line), end_section=condition in (CLEAN, result.conditions[-1]))
    table.add_row(Text("mean, corrupted", "bold"), *_marked(result.means), end_section=True)
    table.add_row("ms per image", *(f"{1e3 * second:.1f}" for second in result.seconds))
    table.add_row("cost", *(f"{second / result.seconds[0]:.1f}x" for second in result.seconds))
    return table


def _marked(line: np.ndarray) -> list[Text]:
    shown = np.round(line, 1)
    return [Text(f"* {value:.1f}", "bold green") if value == shown.max() else Text(f"{value:.1f}") for value in shown]


def summarise(result: DemoResult) -> str:
    """Say in one sentence what was seen."""
    ops, source = result.mean("ops"), result.mean("source")
    return (
        f"ops: {ops:.1f} % right against source's {source:.1f} % on corrupted digits, "
        "without labels, gradients or a second image."
    )
