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


def bench(
    *,
    model: Annotated[
        str, typer.Option(help="timm:NAME, keras:NAME, file.py:function, … (sita inspect --help lists all).")
    ],
    data: Annotated[
        str,
        typer.Option(
            help="imagefolder:DIR (one subfolder per class), npz:FILE, segmentation:DIR (images/ and labels/), "
            "camvid:DIR, cifar10c:DIR, cifar100c:DIR or imagenet-c:DIR."
        ),
    ],
    weights: Weights = None,
    recipes: Annotated[
        str,
        typer.Option(
            help="Recipes, files from sita calibrate, and published methods (tent, memo, mixnorm, ttt), separated by "
            r"commas. To change a recipe's fields, use brackets: ops\[combine=mean,top_k=5]."
        ),
    ] = "source,auto,restore,bn,shift",
    corrupt: Annotated[
        str,
        typer.Option(
            help="all, none, or names separated by commas (sita corruptions --list shows them; clean is one, too)."
        ),
    ] = "all",
    severity: Annotated[str, typer.Option(help="1 to 5, or several separated by commas.")] = "5",
    limit: Annotated[int | None, typer.Option(min=1, help="The maximum number of images per condition.")] = None,
    size: Side = None,
    inputs: PixelInputs = None,
    ignore: Annotated[
        int | None, typer.Option(help="For segmentation:DIR, the label of pixels to ignore. By default 255.")
    ] = None,
    timing: Annotated[
        int, typer.Option(min=0, help="Timed runs per recipe, one image at a time. 0 skips timing.")
    ] = 15,
    device: Annotated[str, typer.Option(help="Where to run a PyTorch model: cpu, cuda, cuda:1, mps.")] = "cpu",
    out: Annotated[Path, typer.Option(help="The folder for the results and the report.")] = Path("sita-bench"),
    trust: Trust = False,
) -> None:
    """Measure whether adaptation helps your model on your images, and what it costs.

    It corrupts your labeled images, runs the source model and the recipes on
    them, and compares their accuracy. To use images that are already shifted,
    add --corrupt none. The results are in --out: open report.html first;
    results.json and timing.json have the numbers.

    To resume an interrupted run, rerun the same command. To add recipes,
    rerun it with more of them.

    Examples:
      sita bench --model timm:resnet18 --weights pretrained \\
        --data imagefolder:photos --limit 200
      sita bench --model keras:ResNet50 --weights pretrained \\
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

    loaded = load_model(model, weights, inputs=inputs, size=size, trust=trust).on(device)
    methods = make_methods(recipes, loaded.task)
    conditions: dict[str, Any] = {"corrupt": corrupt, "severities": severities, "limit": limit, "ignore": ignore}
    opened = open_data(data, **conditions, size=loaded.size, crop=loaded.crop, names=loaded.names)
    try:
        _run(Run(loaded, opened, methods), timing, out)
    except KeyboardInterrupt:
        typer.echo(f"Stopped. Finished results are in {out}; rerun the same command to resume.")
        raise typer.Exit(130) from None  # as after any Ctrl-C


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
        f"{run.loaded.spec} ({run.loaded.weights}) on {run.data.name}: {len(run.data)} images, conditions: "
        f"{len(run.data.conditions)}; {names}."
    )
    results = run_bench(run, out, progress)
    results["command"] = shlex.join(["sita", *sys.argv[1:]])
    times = time_methods(run, rounds, out / "timing.json", progress)
    write_report(results, times, out)
    console.print("", make_bench_table(results, times))
    summary = summarize(results, times)
    console.print(Text(summary.sentence, "bold"), *map(Text, summary.notes), sep="\n")
    progress.say(f"Report: {out / 'report.html'}")
