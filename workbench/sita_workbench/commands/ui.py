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
    model: Annotated[str, typer.Option(metavar="MODEL", help="As for sita inspect.")] = "digits",
    weights: options.Weights = None,
    labels: options.Labels = None,
    samples: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            metavar="DIR",
            help="Images to pick from. If their folders are named after classes, answers are marked right or wrong.",
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
    """Explore in your browser what adaptation does to one image.

    Pick a sample or drop an image, then choose a corruption and its severity.
    The page shows the answers of the source model and the adapted model, the
    shift and λ of every layer, each candidate's answer, and the views. For a
    segmentation model, it shows both label maps and their differences.

    Without --model, it uses a small network for handwritten digits that comes
    with the package. The server listens on 127.0.0.1 only, needs no internet
    connection, and sends no data anywhere.

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
        console.print(Text(f"The page is at {address} (press Ctrl-C to stop)"), soft_wrap=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            console.print()
