"""`sita bench`: whether adaptation helps on your model and images, what it costs, and which recipe is best."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from sita_adapters.errors import InputError, SitaError

from .options import PixelInputs, Side, Trust, Weights, require

if TYPE_CHECKING:
    from ..models.loaded import LoadedModel

DEFAULT_RECIPES = "source,auto,auto3,bn,shift,ops"
_STOPPED = 130
"""The exit code of a command that Ctrl-C ended."""

_OUTPUTS = ("results.jsonl", "results.json", "timing.json", "report.md", "report.html")


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
    ] = DEFAULT_RECIPES,
    study: Annotated[
        str | None, typer.Option(help="Instead of --recipes, draw a curve: lambda, batch or layers.")
    ] = None,
    corrupt: Annotated[
        str, typer.Option(help="all, none, or names separated by commas (sita corruptions --list), clean among them.")
    ] = "all",
    severity: Annotated[str, typer.Option(help="1 to 5, or several separated by commas.")] = "5",
    limit: Annotated[int | None, typer.Option(min=1, help="The largest number of images per condition.")] = None,
    size: Side = None,
    inputs: PixelInputs = None,
    ignore: Annotated[int | None, typer.Option(help="The label of pixels that do not count.")] = None,
    timing: Annotated[
        int, typer.Option("--timing", min=0, help="Rounds of timing, one image at a time; 0 for none.")
    ] = 15,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads for PyTorch.")] = None,
    out: Annotated[Path, typer.Option(help="The folder for results, figures and the report.")] = Path("sita-bench"),
    restart: Annotated[bool, typer.Option("--restart", help="Delete earlier results in the folder.")] = False,
    trust: Trust = False,
) -> None:
    """See on your own model and images whether adaptation helps, and what it costs.

    Every image is adapted to independently. Results are written immediately
    (results.jsonl): rerun an interrupted command to resume it, or with more
    recipes to add them. At the end: report.html, report.md, results.json,
    timing.json, and figures as PNG and SVG.

    Examples:
      sita bench --model timm:resnet18 --weights pretrained
          --data imagefolder:photos --limit 200
      sita bench --model keras:ResNet50 --weights pretrained
          --data imagefolder:photos --corrupt fog,gaussian_noise --severity 3,5
      sita bench --model mine.py:load --data npz:test.npz --study lambda
    """
    require("scipy", "matplotlib", "PIL")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if study is not None and recipes != DEFAULT_RECIPES:
        raise SitaError("--study has its own recipes; received --recipes as well. Try: leave one of them out.")
    severities = _read_severities(severity)
    out.mkdir(parents=True, exist_ok=True)
    if not os.access(out, os.W_OK):
        raise SitaError(f"--out: the folder {out} cannot be written to. Try: another folder.")
    from ..data.opening import open_data
    from ..methods import make_methods
    from ..models.loading import load_model
    from ..progress import ConsoleProgress
    from ..runs import Run, run_bench
    from ..studies import study_methods
    from ..timing import time_methods

    loaded = load_model(model, weights, inputs=inputs, size=size, trust=trust)
    methods = make_methods(recipes, loaded.task) if study is None else study_methods(study, loaded)
    opened = open_data(
        data,
        corrupt=corrupt,
        severities=severities,
        limit=limit,
        size=loaded.size,
        crop=loaded.crop,
        ignore=ignore,
    )
    run = Run(loaded, opened, methods, study)
    _set_threads(threads, loaded)
    if restart:
        _delete_results(out)
    console = Console(highlight=False)
    progress = ConsoleProgress(console)
    names = ", ".join(method.name for method in methods[:9]) + (" …" if len(methods) > 9 else "")
    progress.say(
        f"{loaded.spec} ({loaded.weights}) on {run.data.name}: {len(run.data)} images under each of "
        f"{len(run.data.conditions)} conditions; {names}."
    )
    try:
        results = run_bench(run, out, progress)
        results["command"] = shlex.join(["sita", *sys.argv[1:]])
        _report(console, results, time_methods(run, timing, out / "timing.json", progress), out)
    except KeyboardInterrupt:
        again = " without --restart" if restart else ""
        progress.say(f"Stopped. Finished results are in {out}; rerun the same command{again} to resume.")
        raise typer.Exit(_STOPPED) from None


def _read_severities(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise typer.BadParameter(
            f"expected whole numbers from 1 to 5 separated by commas; received {text!r}.", param_hint="'--severity'"
        ) from None


def _delete_results(out: Path) -> None:
    for name in _OUTPUTS:
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / "figures", ignore_errors=True)


def _set_threads(threads: int | None, loaded: LoadedModel) -> None:
    if threads is None:
        return
    if loaded.framework != "torch":
        raise InputError("--threads is for PyTorch. Try: TF_NUM_INTRAOP_THREADS=1 before the command, for TensorFlow.")
    import torch

    torch.set_num_threads(threads)


def _report(console: Console, results: dict[str, Any], times: dict[str, Any] | None, out: Path) -> None:
    from ..report.summary import summarize
    from ..report.tables import make_bench_table
    from ..report.writing import write_report

    write_report(results, times, out)
    console.print()
    console.print(make_bench_table(results, times))
    summary = summarize(results, times)
    console.print(Text(summary.sentence, "bold"))
    for note in summary.notes:
        console.print(Text(note))
    console.print(Text(f"Report: {out / 'report.html'}"), soft_wrap=True)
