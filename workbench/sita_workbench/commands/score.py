"""`sita score`: a row for every image of a large set, as Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from . import options

_INPUT = "A folder of images, or a text file with a path per line."
_ENGINE = "Worker processes on this machine, or actors on a Ray cluster."
_ADDRESS = "The Ray cluster; auto: the one of this machine. By default one is started for the run."
_WORKERS = "Processes, each with its own model and one thread. By default one per core."


def score(
    model: options.AnyModel,
    *,
    input: Annotated[Path, typer.Option("--input", exists=True, metavar="PATH", help=_INPUT)],
    output: Annotated[Path, typer.Option(file_okay=False, metavar="DIR", help="A new folder, or one to resume.")],
    weights: options.Weights = None,
    recipe: options.OptionalRecipe = None,
    engine: Annotated[Literal["local", "ray"], typer.Option(metavar="local|ray", help=_ENGINE)] = "local",
    address: Annotated[str | None, typer.Option(help=_ADDRESS)] = None,
    shard: Annotated[int | None, typer.Option(min=1, help="Images per part: 1000, or less for a small set.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help=_WORKERS)] = None,
    labels: options.Labels = None,
    task: options.TaskName = None,
    inputs: options.PixelInputs = None,
    size: options.Side = None,
    crop: options.Crop = None,
    providers: options.Providers = None,
    trust: options.Trust = False,
) -> None:
    """Label a large set of images, as Parquet; resume after a stop.

    Each image is adapted to independently. DIR/parts is a Parquet dataset: a
    row has the path, label, class_name, probability, entropy in nats, prior
    (λ of the most certain candidate, 1: like the training images), the source
    model's label and probability, and changed (1 where the labels differ). An
    image that could not be scored has a reason, and no label. Label maps are
    PNG files in DIR/maps; their rows are means over the pixels.

    A run may be killed at any time: the same command resumes it, and does
    only the missing parts. Another model, recipe or list is refused.

    Examples:
      sita score timm:resnet50 --weights pretrained \\
        --input photos --output scored
      sita score model.onnx --input list.txt --output scored --workers 2
      sita score net.py:build --input list.txt --output scored \\
        --engine ray --address auto --workers 32

    All nodes of a cluster need sita-adapters, and the model's files, the
    images and DIR under the same paths. In Python: sita_workbench.score. Then:
      pandas.read_parquet("scored/parts").query("changed > 0")
    """
    options.require("PIL", "scipy", "pyarrow", extra="score")
    if engine == "ray":
        options.require("ray", extra="ray")
    from .. import scoring
    from ..progress import ConsoleProgress

    names, runs_on = options.read_names(labels), options.read_providers(providers)
    spec = scoring.ModelSpec(model, weights, recipe, inputs, size, crop, task, names, trust, runs_on)
    progress = ConsoleProgress(Console(stderr=True))
    try:
        scored = scoring.score(
            spec, input, output, engine=engine, workers=workers, shard=shard, address=address, progress=progress
        )
    except KeyboardInterrupt:
        progress.say(f"Stopped. Finished parts are in {output}; the same command resumes the run.")
        raise typer.Exit(130) from None
    typer.echo(f"{scored.rows:,} images have an answer, {scored.failed:,} failed.")
    if scored.changed is not None:
        typer.echo(f"{100 * scored.changed:.1f} % of the labels differ from the source model's.")
    for reason in scored.reasons:
        typer.echo(f"Failed: {reason}")
    typer.echo(f"Rows: {output / 'parts'}")
