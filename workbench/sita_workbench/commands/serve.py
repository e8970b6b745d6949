"""`sita serve`: an adapted model behind HTTP."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import Console

from . import options

_THREADS = "Threads per worker. By default, the cores are divided among the workers. For small images, 1 is faster."
_PIXELS = "The largest image, in millions of pixels. The limit may be lower for a model that takes any image size."
_SOURCE = "Also return the source model's answer. It costs one more row if λ = 1 is not a candidate (augbn)."


def serve(
    model: options.AnyModel,
    *,
    weights: options.Weights = None,
    recipe: options.OptionalRecipe = None,
    host: Annotated[str, typer.Option(help="Address to listen on. 0.0.0.0 is open to other machines.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="The number of processes, each with its own model.")] = 1,
    threads: Annotated[int | None, typer.Option(min=1, help=_THREADS, show_default=False)] = None,
    batch: Annotated[int, typer.Option(min=1, help="The maximum batch size.")] = 4,
    max_mb: Annotated[float, typer.Option(min=0.001, help="The largest upload, in megabytes.")] = 10.0,
    max_pixels: Annotated[float, typer.Option(min=0.0001, help=_PIXELS)] = 50.0,
    source: Annotated[bool, typer.Option(help=_SOURCE)] = True,
    labels: options.Labels = None,
    task: options.TaskName = None,
    inputs: options.PixelInputs = None,
    size: options.Side = None,
    trust: options.Trust = False,
    providers: options.Providers = None,
) -> None:
    """Serve an adapted model over HTTP.

    POST an image to /predict, as the request body or in a form. The response
    is JSON with the label, name, probability, entropy, prior (λ of the most
    confident candidate), the source model's answer, the top 5 classes, rows
    and milliseconds. A segmentation model returns a label map as PNG, with
    the other values in the headers.

    GET /health, /info, or /metrics (for Prometheus). To monitor shift, divide
    sita_answers_changed_total by sita_answers_compared_total: it is the share
    of answers that adaptation changes.

    Queued images run as one batch, but the model adapts to each one
    independently. The server listens on this machine only, unless you set
    --host. It has no authentication and no encryption: use a proxy for these.

    Examples:
      sita serve cifar10-resnet20 --weights resnet20.safetensors
      curl --data-binary @cat.png -H "Content-Type: image/png" \\
        http://127.0.0.1:8000/predict
      curl -F image=@cat.png http://127.0.0.1:8000/predict
      sita serve resnet50.onnx --batch 1
      sita serve timm:resnet50 --weights pretrained --workers 2
    """
    options.require("fastapi", "uvicorn", "prometheus_client", "python_multipart", extra="serve")
    from ..progress import ConsoleProgress
    from ..scoring import ModelSpec
    from ..serving import server
    from ..serving.app import ServeSettings

    names, runs_on = options.read_names(labels), options.read_providers(providers)
    spec = ModelSpec(model, weights, recipe, inputs, size, None, task, names, trust, runs_on)
    spec.open_recipe()  # reports a wrong name before a model is loaded
    threads = threads or max(1, (os.cpu_count() or 1) // workers)
    settings = ServeSettings(spec, source, batch, round(max_mb * 1e6), round(max_pixels * 1e6), threads)
    say = ConsoleProgress(Console(stderr=True)).say
    say(f"Loading {model} …")
    server.serve(settings, host=host, port=port, workers=workers, say=say)
