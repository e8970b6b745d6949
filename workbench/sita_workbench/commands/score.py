"""`sita score`: a row for every image of a large set, as Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from . import options

_INPUT = "A folder of images, or a text file with one path per line."
_ENGINE = "Run worker processes on this machine, or actors on a Ray cluster."
_ADDRESS = "The address of a Ray cluster, or auto for this machine's cluster. By default, a local cluster is started."
_WORKERS = "The number of processes, each with its own model and one thread. By default, one per core."


def score(
    model: options.AnyModel,
    *,
    input: Annotated[Path, typer.Option("--input", exists=True, metavar="PATH", help=_INPUT)],
    output: Annotated[
        Path, typer.Option(file_okay=False, metavar="DIR", help="A new folder, or the folder of a run to resume.")
    ],
    weights: options.Weights = None,
    recipe: options.OptionalRecipe = None,
    engine: Annotated[Literal["local", "ray"], typer.Option(metavar="local|ray", help=_ENGINE)] = "local",
    address: Annotated[str | None, typer.Option(help=_ADDRESS)] = None,
    shard: Annotated[
        int | None, typer.Option(min=1, help="Images per Parquet file. By default 1000, fewer for a small set.")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help=_WORKERS)] = None,
    labels: options.Labels = None,
    task: options.TaskName = None,
    inputs: options.PixelInputs = None,
    size: options.Side = None,
    crop: options.Crop = None,
    providers: options.Providers = None,
    trust: options.Trust = False,
) -> None:
    """Label a large set of images and write the results as Parquet.

    The model adapts to each image independently. DIR/parts is a Parquet
    dataset with one row per image: path, label, class_name, probability,
    entropy (in nats), prior (λ of the most confident candidate; near 1, the
    image is similar to the training images), source_label,
    source_probability, and changed (1 if the two labels differ). If an image
    cannot be scored, its row has a reason and no label. For a segmentation
    model, the values are means over the pixels, and the label maps are PNG
    files in DIR/maps.

    To resume an interrupted run, rerun the same command. A folder with the
    results of another model, recipe or list of images is refused.

    Examples:
      sita score timm:resnet50 --weights pretrained \\
        --input photos --output scored
      sita score model.onnx --input list.txt --output scored --workers 2
      sita score net.py:build --input list.txt --output scored \\
        --engine ray --address auto --workers 32

    On a cluster, every node needs sita-adapters, and the model's files, the
    images and DIR must have the same paths on every node.

    To read the results in Python:
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
        progress.say(f"Stopped. Finished parts are in {output}; rerun the same command to resume.")
        raise typer.Exit(130) from None
    typer.echo(f"{scored.rows:,} images scored, {scored.failed:,} failed.")
    if scored.changed is not None:
        typer.echo(f"{100 * scored.changed:.1f} % of the labels differ from the source model's.")
    for reason in scored.reasons:
        typer.echo(f"Failed: {reason}")
    typer.echo(f"Rows: {output / 'parts'}")
