"""`sita score`: an answer for every image of a large set, as Parquet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.text import Text

from sita_adapters.recipe import DEFAULT, RECIPES

from .options import AnyModel, PixelInputs, Providers, Side, TaskName, Trust, Weights, read_providers, require
from .predict import read_names

_STOPPED = 130
"""The exit code of a command that Ctrl-C ended."""


def score(
    model: AnyModel,
    *,
    input: Annotated[
        Path,
        typer.Option(
            "--input",
            exists=True,
            metavar="PATH",
            help="The images: a folder and its folders; the column path of a Parquet file; or a path per line of a "
            "text file. What is listed twice is scored twice.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            file_okay=False,
            metavar="DIR",
            help="A new folder; or that of a run that was stopped, which goes on.",
            show_default=False,
        ),
    ],
    weights: Weights = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"One of {', '.join(RECIPES)}, or a file of sita calibrate. By default {DEFAULT}; an exported file "
            "has its own.",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(metavar="local|ray", help="Worker processes on this machine, or actors of a Ray cluster."),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            help="With --engine ray: the cluster, auto for the one that this machine belongs to. By default one is "
            "started here, and ended.",
            show_default=False,
        ),
    ] = None,
    shard: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Images per part: what is lost with a killed worker. By default 1000, less for a small set.",
            show_default=False,
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many, each with a model of its own and one thread, on one core. By default one per core; more "
            "than that gain nothing, and each takes the model's memory.",
            show_default=False,
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="The classes' names, one per line.", show_default=False),
    ] = None,
    task: TaskName = None,
    inputs: PixelInputs = None,
    size: Side = None,
    crop: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=1.0, help="Keep this share of the shorter side, not the usual one.", show_default=False
        ),
    ] = None,
    providers: Providers = None,
    trust: Trust = False,
) -> None:
    """Label a large set of images, as Parquet, and go on after a stop.

    Each image is adapted to by itself. A row has its path, label, class_name,
    probability, entropy in nats, prior (λ of the most certain candidate, 1:
    like the training images), the source model's label and probability, and
    milliseconds. DIR/parts is a Parquet dataset; DIR/failed.parquet has what
    could not be read, with the reason, and can be the --input of another run.
    Label maps are PNG files in DIR/maps; their rows are means over the pixels.

    The set is cut into shards. A shard's part is on disk as a whole or not at
    all, so that a run may be stopped or killed at any time: the same command
    does what is missing. Another model, recipe or list is refused.

    Examples:
      sita score timm:resnet50 --weights pretrained \\
        --input photos --output scored
      sita score cifar10-resnet20 --weights resnet20.safetensors \\
        --input list.txt --output scored --recipe augbn --workers 2
      sita score model.onnx --input photos --output scored
      sita score net.py:build --input images.parquet --output scored \\
        --engine ray --address auto --workers 32

    All nodes of a cluster have sita-adapters, and see the model's files, the
    images and DIR under the same paths. In Python: sita_workbench.score. Then:
      pandas.read_parquet("scored/parts").query("label != source_label")
    """
    require("PIL", "scipy")
    require("pyarrow", extra="score")
    if engine == "ray":
        require("ray", extra="ray")
    from .. import scoring
    from ..scoring.display import ConsoleDisplay
    from ..scoring.folder import OutputFolder

    names = () if labels is None else read_names(labels)
    chosen = read_providers(providers)
    spec = scoring.ModelSpec(
        model,
        weights,
        recipe,
        inputs=inputs,
        size=size,
        crop=crop,
        task=task,
        names=names,
        trust=trust,
        providers=None if chosen is None else tuple(chosen),
    )
    try:
        scored = scoring.score(
            spec,
            input,
            output,
            engine=engine,
            workers=workers,
            shard=shard,
            address=address,
            display=ConsoleDisplay(Console(stderr=True)),
        )
    except KeyboardInterrupt:
        parts = sum(1 for _ in OutputFolder(output).parts.glob("part-*.parquet"))
        Console(stderr=True).print(
            Text(f"Stopped. {parts} parts are in {output}; the same command goes on with what is missing."),
            soft_wrap=True,
        )
        raise typer.Exit(_STOPPED) from None
    console = Console(highlight=False)
    for line in scored.lines():
        console.print(Text(line), soft_wrap=True)
    console.print(Text(f"Rows: {output / 'parts'}   Failures: {output / 'failed.parquet'}"), soft_wrap=True)
