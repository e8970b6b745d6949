"""`sita bench`: whether adaptation helps on your model and images, what it costs, and which recipe is best."""

from __future__ import annotations

import functools
import json
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

from .options import Trust, require

if TYPE_CHECKING:
    from ..progress import Progress
    from ..runs import Run

DEFAULT_RECIPES = "source,auto,auto3,bn,shift,ops"
_STOPPED = 130
"""The exit code of a command that Ctrl-C ended."""

_OUTPUTS = ("results.jsonl", "results.json", "timing.json", "report.md", "report.html")


def bench(
    *,
    model: Annotated[
        str,
        typer.Option(
            help="timm:NAME, torchvision:NAME, keras:NAME, file.py:function (returns the model), cifar10-resnet20 "
            "(32, 44, 56, 110), cifar10-densenet, cifar10-mobilenet, or camvid-roadnet."
        ),
    ],
    data: Annotated[
        str,
        typer.Option(
            help="cifar10c:DIR, cifar100c:DIR, imagenet-c:DIR, imagefolder:DIR, npz:FILE, npy:FILE, "
            "segmentation:DIR (images/ and labels/), camvid:DIR."
        ),
    ],
    weights: Annotated[
        str | None, typer.Option(help="A file; pretrained, which the library downloads; or random.")
    ] = None,
    recipes: Annotated[
        str,
        typer.Option(
            help="source, auto, auto3, shift, bn, augbn, ops, ops_shared, ensemble, ptn; tent and memo (PyTorch). "
            r"Change a field in brackets: ops\[combine=mean,top_k=5]."
        ),
    ] = DEFAULT_RECIPES,
    study: Annotated[
        str | None,
        typer.Option(help="Instead of --recipes, a study: lambda, batch, layers, views, seeds or defaults."),
    ] = None,
    corrupt: Annotated[
        str,
        typer.Option(help="all, none, or names separated by commas (sita corruptions --list); clean is one of them."),
    ] = "all",
    severity: Annotated[str, typer.Option(help="1 to 5, or several separated by commas.")] = "5",
    limit: Annotated[int | None, typer.Option(min=1, help="At most this many images under each condition.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to run random methods with.")] = 1,
    size: Annotated[
        int | None, typer.Option(min=1, help="Side of the images, instead of the model's usual size.")
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(help="How pixels are encoded, instead of the model's usual encoding: imagenet, caffe, …"),
    ] = None,
    ignore: Annotated[int | None, typer.Option(help="The label of pixels that do not count.")] = None,
    timing: Annotated[
        int, typer.Option("--timing", min=0, help="Rounds of timing, one image at a time; 0 leaves it out.")
    ] = 15,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads for PyTorch.")] = None,
    out: Annotated[Path, typer.Option(help="The folder for results, figures and the report.")] = Path("sita-bench"),
    restart: Annotated[bool, typer.Option("--restart", help="Delete earlier results in the folder.")] = False,
    trust: Trust = False,
) -> None:
    """See on your own model and images whether adaptation helps, and what it costs.

    Every image is adapted to by itself. Results are written as they come
    (results.jsonl): a run that was interrupted continues where it stopped,
    and more recipes can be added later. At the end: report.html, report.md,
    results.json, timing.json, and figures as PNG and SVG.

    Examples:
      sita bench --model timm:resnet18 --weights pretrained
          --data imagefolder:photos --limit 200
      sita bench --model cifar10-resnet20 --weights resnet20.safetensors
          --data cifar10c:CIFAR-10-C
          --recipes bn,augbn,ops,ops_shared,ensemble,ptn,tent,memo
      sita bench --model keras:ResNet50 --weights pretrained
          --data imagefolder:photos --corrupt fog,gaussian_noise --severity 3,5
      sita bench --model mine.py:load --data npz:test.npz --study lambda
    """
    require("scipy", "matplotlib", "PIL")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    severities = _read_severities(severity)
    _check_folder(out)
    from ..progress import ConsoleProgress
    from ..runs import run_bench

    console = Console(highlight=False)
    run = _make_run(
        model=model,
        weights=weights,
        data=data,
        recipes=recipes,
        study=study,
        corrupt=corrupt,
        severities=severities,
        limit=limit,
        seeds=seeds,
        size=size,
        inputs=inputs,
        ignore=ignore,
        trust=trust,
    )
    _set_threads(threads, run)
    if restart:
        _delete_results(out)
    progress = ConsoleProgress(console)
    names = ", ".join(method.name for method in run.methods[:9]) + (" …" if len(run.methods) > 9 else "")
    progress.say(
        f"{run.loaded.spec} ({run.loaded.weights}) on {run.data.name}: {len(run.data)} images under each of "
        f"{len(run.data.conditions)} conditions; {names}."
    )
    try:
        results = run_bench(run, out, progress)
        results["command"] = shlex.join(["sita", *sys.argv[1:]])
        times = _timing(out, timing, run, progress)
        _report(console, results, times, out)
    except KeyboardInterrupt:
        again = " without --restart" if restart else ""
        progress.say(f"Stopped. What is done is in {out}; the same command{again} goes on where it stopped.")
        raise typer.Exit(_STOPPED) from None


def _make_run(
    *,
    model: str,
    weights: str | None,
    data: str,
    recipes: str,
    study: str | None,
    corrupt: str,
    severities: tuple[int, ...],
    limit: int | None,
    seeds: int,
    size: int | None,
    inputs: str | None,
    ignore: int | None,
    trust: bool,
) -> Run:
    from ..data.opening import open_data
    from ..methods import read_methods
    from ..models.loading import load_model
    from ..runs import Run
    from ..studies import study_methods

    if study is not None and recipes != DEFAULT_RECIPES:
        raise SitaError("--study has its own recipes; received --recipes as well. Try: leave one of them out.")
    loaded = load_model(model, weights, inputs=inputs, size=size, trust=trust)
    methods = read_methods(recipes, loaded.task) if study is None else study_methods(study, loaded)
    if study == "seeds" and seeds == 1:
        seeds = 5

    @functools.cache
    def opened(seed: int) -> Any:
        return open_data(
            data,
            corrupt=corrupt,
            severities=severities,
            limit=limit,
            seed=seed,
            size=loaded.size,
            crop=loaded.crop,
            ignore=ignore,
        )

    return Run(loaded, opened, methods, seeds, study)


def _read_severities(text: str) -> tuple[int, ...]:
    try:
        return tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise typer.BadParameter(
            f"expected whole numbers from 1 to 5 separated by commas; received {text!r}.", param_hint="'--severity'"
        ) from None


def _check_folder(out: Path) -> None:
    """Raise, before the work starts, where results could not be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe = out / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise SitaError(f"--out: the folder cannot be written to: {error}") from error


def _delete_results(out: Path) -> None:
    for name in _OUTPUTS:
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / "figures", ignore_errors=True)


def _set_threads(threads: int | None, run: Run) -> None:
    if threads is None:
        return
    if run.loaded.framework != "torch":
        raise InputError(
            "--threads is for PyTorch. Remedy for Keras on TensorFlow: TF_NUM_INTRAOP_THREADS=1 before the command."
        )
    import torch

    torch.set_num_threads(threads)


def _timing(out: Path, rounds: int, run: Run, progress: Progress) -> dict[str, Any] | None:
    """Return the times of all methods; those of an earlier run where it timed the same methods."""
    from ..files import write_json
    from ..timing import time_methods, timed_methods

    path = out / "timing.json"
    wanted = {method.name for method in timed_methods(run.methods)}
    if path.exists():
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if wanted <= set(stored["methods"]) and (not rounds or stored["rounds"] == rounds):
            progress.say("Kept from an earlier run: the times.")
            return stored
    if not rounds:
        return None
    times = time_methods(run, rounds, progress)
    write_json(path, times)
    return times


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
