"""`sita serve`: an adapted model behind HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from sita_adapters.errors import InputError
from sita_adapters.recipe import DEFAULT, RECIPES

from .options import AnyModel, PixelInputs, Providers, Side, TaskName, Trust, Weights, read_providers, require


def serve(
    model: AnyModel,
    *,
    weights: Weights = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"One of {', '.join(RECIPES)}, or a file of sita calibrate. By default {DEFAULT}; an exported file "
            "has its own.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Processes, each with the model and its share of the cores.")] = 1,
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Threads that each worker computes with. By default the cores, shared out; with other work on the "
            "machine, or small images, 1 is faster.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        int, typer.Option(min=1, help="At most so many images that wait at the same time run in one call.")
    ] = 4,
    max_mb: Annotated[float, typer.Option(min=0.001, help="The largest upload, in megabytes.")] = 10.0,
    max_pixels: Annotated[
        float | None,
        typer.Option(
            min=0.0001,
            help="The largest image, in millions of pixels; checked before it is decoded. By default 50, or less for a "
            "model without a fixed size, whose features must fit the memory.",
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        bool,
        typer.Option(
            help="Say what the source model answers, too. It costs a row more where λ = 1 is not a candidate (augbn)."
        ),
    ] = True,
    baseline: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="results.json of sita bench: the share of answers that change on clean images, for /metrics.",
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
    trust: Trust = False,
    providers: Providers = None,
) -> None:
    """Answer for images over HTTP with an adapted model.

    POST an image to /predict, as it is or in a form, and get JSON: label,
    name, probability and entropy, λ of the most certain candidate, the source
    model's answer, the top 5, and how many rows and milliseconds it took. Of
    a segmentation model you get a PNG of labels; the rest is in its headers.
    GET /health, /info, and /metrics for Prometheus, where sita_changed_share
    tells how far the images are from the training images.

    Images that wait at the same time run in one call, but each is adapted to
    by itself: its answer is the same as alone. What is too large, damaged or
    no image gets a 4xx with a line of reason. The server listens on this
    machine only, unless --host says otherwise; it knows no passwords and no
    encryption: put it behind something that does.

    Examples:
      sita serve cifar10-resnet20 --weights resnet20.safetensors
      curl --data-binary @cat.png -H "Content-Type: image/png" \\
        http://127.0.0.1:8000/predict
      curl -F image=@cat.png http://127.0.0.1:8000/predict
      sita serve resnet50.onnx --batch 1
      sita serve timm:resnet50 --weights pretrained --workers 2
    """
    require("fastapi", "uvicorn", "prometheus_client", "python_multipart", extra="serve")
    from ..methods import open_recipe
    from ..models.loading import is_exported
    from ..serving.baseline import read_baseline
    from ..serving.server import serve as run_server
    from ..serving.settings import ServeSettings
    from .predict import read_names

    opened = open_recipe(recipe or DEFAULT, task or "classification")  # reports a wrong name before a model is loaded
    if opened.share == "batch":
        raise InputError(
            "recipe: with share='batch' an answer depends on the images that happen to wait beside it. Expected "
            "share='image'. Try: another recipe."
        )
    if baseline is not None and not is_exported(model):  # a file says itself what recipe it has
        read_baseline(baseline, str(opened))
    settings = ServeSettings(
        model=model,
        weights=weights,
        recipe=recipe,
        inputs=inputs,
        size=size,
        task=task,
        names=() if labels is None else read_names(labels),
        trust=trust,
        providers=None if providers is None else tuple(read_providers(providers) or ()),
        with_source=source,
        batch=batch,
        max_bytes=round(max_mb * 1e6),
        max_pixels=None if max_pixels is None else round(max_pixels * 1e6),
        baseline=None if baseline is None else str(baseline),
        threads=threads or max(1, (os.cpu_count() or 1) // workers),
    )
    console = Console(stderr=True, highlight=False)
    console.print(Text(f"Loading {model} …"), soft_wrap=True)
    run_server(
        settings, host=host, port=port, workers=workers, say=lambda text: console.print(Text(text), soft_wrap=True)
    )
