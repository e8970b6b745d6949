"""`sita demo`: adaptation on corrupted digits, without a download."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..demo.digits import TEST_COUNT
from .options import check_picture, require

if TYPE_CHECKING:
    from ..demo.demo import DemoResult


def demo(
    out: Annotated[Path, typer.Option(help="The figure to write: a .png, .pdf or .svg file.")] = Path("sita-demo.png"),
    images: Annotated[int, typer.Option(min=1, max=TEST_COUNT, help="The number of test digits.")] = 300,
    backend: Annotated[
        Literal["torch", "keras"],
        typer.Option(help="The framework. For Keras, set KERAS_BACKEND to tensorflow, jax or torch."),
    ] = "torch",
) -> None:
    """See adaptation at work in about a minute, without a download.

    A small ResNet was trained on clean handwritten digits. The demo corrupts
    other digits with noise, blur, weather, lighting or lost detail, and runs
    the network on them with and without adaptation. It prints a table of
    accuracies and draws a figure.

    Examples:
      sita demo
      sita demo --images 597 --out digits.pdf
      sita demo --backend keras
    """
    frameworks = {"torch": ("torch", "array_api_compat"), "keras": ("keras",)}
    require(*frameworks[backend], "sklearn", "scipy", "safetensors", "matplotlib", extra=f"bench,{backend}")
    from ..demo import figure
    from ..demo.demo import run_demo
    from ..models.digits import load_digits_model
    from ..progress import ConsoleProgress

    check_picture(out, figure.FORMATS)
    loaded = load_digits_model("digits" if backend == "torch" else "digits:keras")
    console = Console(highlight=False)
    result = run_demo(loaded, images, ConsoleProgress(console))
    console.print()
    console.print(_make_table(result))
    figure.save(result, out)
    outcomes = {name: int(which.sum()) for name, which in result.outcomes().items()}
    summary = (
        f"auto reads {result.mean('auto'):.1f} % of the corrupted digits correctly, the source model "
        f"{result.mean('source'):.1f} %. It corrects {outcomes['only auto right']} wrong answers and spoils "
        f"{outcomes['only source right']} of {sum(outcomes.values())}."
    )
    console.print(Text(summary, "bold"))
    console.print(Text("This is a demonstration, not a benchmark. README.md has results on photographs."))
    console.print(Text(f"Picture: {out}"), soft_wrap=True)
    console.print(Text("To adapt your own model: import sita_adapters as sita; adapted = sita.adapt(model)"))


def _make_table(result: DemoResult) -> Table:
    """Return a table of accuracies, one row per condition and one column per recipe, the best of each row marked."""
    from ..demo.demo import row_count

    title = f"% correct on {len(result.labels)} digits, {result.framework} (* best)"
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("corruption", no_wrap=True)
    for recipe in result.recipes:
        table.add_column(recipe, justify="right", no_wrap=True)
    names = ["none (clean)", *result.conditions[1:]]
    for name, line in zip(names, result.accuracies, strict=True):
        table.add_row(name, *_mark_best(line), end_section=name in (names[0], names[-1]))
    table.add_row(Text("mean, corrupted", "bold"), *_mark_best(result.means), end_section=True)
    table.add_row("rows per image", *(str(row_count(recipe)) for recipe in result.recipes))
    table.add_row("ms per image", *(f"{1e3 * second:.1f}" for second in result.seconds))
    return table


def _mark_best(line: np.ndarray) -> list[Text]:
    shown = np.round(line, 1)
    return [Text(f"* {value:.1f}", "bold green") if value == shown.max() else Text(f"{value:.1f}") for value in shown]
