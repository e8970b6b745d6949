"""`sita ui`: a page that shows what adaptation does to one image."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from sita_adapters.recipe import DEFAULT, RECIPES

from . import options


def ui(
    *,
    model: Annotated[str, typer.Option(metavar="MODEL", help="A model as sita inspect takes it.")] = "digits",
    weights: options.Weights = None,
    labels: options.Labels = None,
    samples: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            metavar="DIR",
            help="Images to pick from; one in a folder named after its class is marked right or wrong.",
        ),
    ] = None,
    recipe: options.RecipeName = DEFAULT,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port, on this machine only.")] = 7860,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    task: options.TaskName = None,
    inputs: options.PixelInputs = None,
    size: options.Side = None,
    trust: options.Trust = False,
) -> None:
    """See on a page what adaptation does to one image.

    Pick a sample or drop an image, choose a corruption and drag its severity.
    The page shows both answers, the shift that every layer sees, λ over the
    layers, what each candidate said, and the views; for a segmentation model,
    both label maps and where they differ.

    Without --model, a small network that comes with the package reads
    handwritten digits. The page is served on 127.0.0.1, needs no network,
    and sends nothing anywhere.

    Examples:
      sita ui
      sita ui --model timm:resnet50 --weights pretrained --samples photos/
    """
    options.require("gradio", "PIL", "scipy", "sklearn", "matplotlib", extra="ui")
    from ..methods import open_recipe
    from ..models.loading import load_model
    from ..ui.look import Viewer
    from ..ui.page import Page, build, launch
    from ..ui.samples import load_samples

    console = Console(stderr=True, highlight=False)
    console.print(Text(f"Loading {model} …"))
    loaded = load_model(model, weights, inputs=inputs, size=size, trust=trust)
    loaded = replace(loaded, task=task or loaded.task)
    recipes = {name: open_recipe(name, loaded.task) for name in (recipe, *RECIPES)}
    names = options.read_names(labels) or loaded.names
    page = Page(Viewer(loaded, recipes), load_samples(loaded, samples, names), names, recipe)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="sita-ui-") as uploads:  # nothing of them stays behind
        os.environ["GRADIO_TEMP_DIR"] = uploads
        address = launch(build(page), port, browser)
        console.print(Text(f"The page is at {address} (Ctrl-C ends it)"), soft_wrap=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            console.print()
