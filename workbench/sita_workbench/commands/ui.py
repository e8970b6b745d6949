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

from sita_adapters.errors import InputError
from sita_adapters.recipe import RECIPES

from . import options


def ui(
    *,
    model: Annotated[
        str,
        typer.Option(
            metavar="MODEL",
            help="Any that sita predict takes, exported files included. digits, or digits:keras, is a small network "
            "that comes with the package.",
        ),
    ] = "digits",
    weights: options.Weights = None,
    labels: options.Labels = None,
    samples: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            metavar="DIR",
            help="Images to pick from; one in a folder named as its class is marked right or wrong.",
            show_default=False,
        ),
    ] = None,
    recipe: options.OptionalRecipe = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port, on this machine only.")] = 7860,
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
    task: options.TaskName = None,
    inputs: options.PixelInputs = None,
    size: options.Side = None,
    trust: options.Trust = False,
    providers: options.Providers = None,
) -> None:
    """See on a page what adaptation does to one image.

    Pick a sample or drop an image, choose a corruption and drag its severity:
    the source model's answer and the adapted one's stand side by side, with
    the shift that every layer sees, λ over the layers, what each candidate
    said, and the views. Of a segmentation model you see both label maps and
    where they differ.

    Without --model, a small network that comes with the package reads
    handwritten digits. The page is served on 127.0.0.1, needs no network,
    and sends nothing anywhere.

    Examples:
      sita ui
      sita ui --model timm:resnet50 --weights pretrained --samples photos/
      sita ui --model resnet50.onnx --labels imagenet.txt --no-browser
    """
    options.require("gradio", "PIL", "scipy", "sklearn", extra="ui")
    from ..methods import open_recipe
    from ..models.loading import load_model
    from ..ui.look import open_viewer
    from ..ui.page import Page, build, choose_start, launch
    from ..ui.samples import load_samples

    console = Console(stderr=True, highlight=False)
    console.print(Text(f"Loading {model} …"))
    loaded = load_model(
        model,
        weights,
        inputs=inputs,
        size=size,
        exported=True,
        trust=trust,
        providers=options.read_providers(providers),
    )
    loaded = replace(loaded, task=task or loaded.task)
    if recipe is not None and loaded.file is not None:
        raise InputError(f"--recipe: {model} was exported with a recipe of its own. Try: leave --recipe out.")
    chosen = [name for name in (recipe, *RECIPES) if name not in (None, "source")]
    viewer = open_viewer(loaded, {name: open_recipe(name, loaded.task) for name in dict.fromkeys(chosen) if name})
    names = loaded.names if labels is None else options.read_names(labels)
    page = Page(viewer, load_samples(loaded, samples, names), names, choose_start(loaded, recipe))
    page.check()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="sita-ui-") as uploads:  # nothing of them stays behind
        os.environ["GRADIO_TEMP_DIR"] = uploads
        address = launch(build(page), port, browser)
        console.print(Text(f"The page is at {address} (Ctrl-C ends it)"), soft_wrap=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            console.print()
