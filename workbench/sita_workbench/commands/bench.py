"""`sita bench`: whether adaptation helps on your model and images, what it costs, and which recipe is best."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from sita_adapters.errors import SitaError

from .options import PixelInputs, Side, Trust, Weights, require

if TYPE_CHECKING:
    from ..runs import Run

_STOPPED = 130
"""The exit code of a command that Ctrl-C ended."""


def bench(
    *,
    model: Annotated[str, typer.Option(help="A model as sita inspect takes it: timm:NAME, file.py:function, …")],
    data: Annotated[
        str,
        typer.Option(
            help="imagefolder:DIR, npz:FILE, segmentation:DIR (images/ and labels/), camvid:DIR, "
            "cifar10c:DIR, cifar100c:DIR, imagenet-c:DIR."
        ),
    ],
    weights: Weights = None,
    recipes: Annotated[
        str,
        typer.Option(
            help="Names of recipes, files that sita calibrate wrote, tent and memo (PyTorch). Change a field in "
            r"brackets: ops\[combine=mean,top_k=5]."
        ),
    ] = "source,auto,auto3,bn,shift,ops",
    corrupt: Annotated[
        str, typer.Option(help="all, none, or names separated by commas (sita corruptions --list), clean among them.")
    ] = "all",
    severity: Annotated[str, typer.Option(help="1 to 5, or several separated by commas.")] = "5",
    limit: Annotated[int | None, typer.Option(min=1, help="The largest number of images per condition.")] = None,
    size: Side = None,
    inputs: PixelInputs = None,
    ignore: Annotated[int | None, typer.Option(help="The label of pixels that do not count.")] = None,
    timing: Annotated[int, typer.Option(min=0, help="Rounds of timing, one image at a time; 0 for none.")] = 15,
    out: Annotated[Path, typer.Option(help="The folder for the results and the report.")] = Path("sita-bench"),
    trust: Trust = False,
) -> None:
    """See on your own model and images whether adaptation helps, and what it costs.

    Every image is adapted to independently. Results are written immediately
    (results.jsonl): rerun an interrupted command to resume it, or with more
    recipes to add them. At the end: report.html, results.json, timing.json.

    Examples:
      sita bench --model timm:resnet18 --weights pretrained
          --data imagefolder:photos --limit 200
      sita bench --model keras:ResNet50 --weights pretrained
          --data imagefolder:photos --corrupt fog,gaussian_noise --severity 3,5
      sita bench --model mine.py:load --data npz:test.npz --corrupt none
    """
    require("scipy", "matplotlib", "PIL")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    severities = _read_severities(severity)
    out.mkdir(parents=True, exist_ok=True)
    if not os.access(out, os.W_OK):
        raise SitaError(f"--out: the folder {out} cannot be written to. Try: another folder.")
    from ..data.opening import open_data
    from ..methods import make_methods
    from ..models.loading import load_model
    from ..runs import Run

    loaded = load_model(model, weights, inputs=inputs, size=size, trust=trust)
    methods = make_methods(recipes, loaded.task)
    conditions: dict[str, Any] = {"corrupt": corrupt, "severities": severities, "limit": limit, "ignore": ignore}
    opened = open_data(data, **conditions, size=loaded.size, crop=loaded.crop)
    try:
        _run(Run(loaded, opened, methods), timing, out)
    except KeyboardInterrupt:
        typer.echo(f"Stopped. Finished results are in {out}; rerun the same command to resume.")
        raise typer.Exit(_STOPPED) from None


def _read_severities(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise typer.BadParameter(
            f"expected whole numbers from 1 to 5 separated by commas; received {text!r}.", param_hint="'--severity'"
        ) from None


def _run(run: Run, rounds: int, out: Path) -> None:
    """Measure and time what is missing, write the report, and print the table and the headline."""
    from ..progress import ConsoleProgress
    from ..report.summary import summarize
    from ..report.tables import make_bench_table
    from ..report.writing import write_report
    from ..runs import run_bench
    from ..timing import time_methods

    console = Console(highlight=False)
    progress = ConsoleProgress(console)
    names = ", ".join(method.name for method in run.methods[:9]) + (" …" if len(run.methods) > 9 else "")
    progress.say(
        f"{run.loaded.spec} ({run.loaded.weights}) on {run.data.name}: {len(run.data)} images under each of "
        f"{len(run.data.conditions)} conditions; {names}."
    )
    results = run_bench(run, out, progress)
    results["command"] = shlex.join(["sita", *sys.argv[1:]])
    times = time_methods(run, rounds, out / "timing.json", progress)
    write_report(results, times, out)
    console.print("", make_bench_table(results, times))
    summary = summarize(results, times)
    console.print(Text(summary.sentence, "bold"), *map(Text, summary.notes), sep="\n")
    progress.say(f"Report: {out / 'report.html'}")
