"""`sita demo`: see it help, without a download."""

from __future__ import annotations

import logging
import os
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from sita_adapters.errors import SitaError

from ..demo.digits import TEST_COUNT
from .shared import check_picture, require

if TYPE_CHECKING:
    from ..demo.demo import Framework


class Backend(str, Enum):
    """The frameworks that the demo has a network in."""

    torch = "torch"
    keras = "keras"


def demo(
    out: Annotated[
        Path, typer.Option(help="Where to put the picture: a .png, .pdf or .svg file.", dir_okay=False)
    ] = Path("sita-demo.png"),
    images: Annotated[
        int, typer.Option(min=1, max=TEST_COUNT, help="Test digits under every corruption; more take longer.")
    ] = 60,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Draws the network and the corruptions.")] = 0,
    backend: Annotated[
        Backend, typer.Option(help="The framework. Of Keras, KERAS_BACKEND says which: tensorflow, jax, torch.")
    ] = Backend.torch,
) -> None:
    """See it help, in about a minute and without a download.

    A small ResNet learns clean handwritten digits (once: it is then kept in
    your cache folder) and reads others, corrupted by noise, blur, weather,
    lighting or lost detail: as it is, and adapted to every image by itself.
    Prints a table of who was right how often, and draws it.

    Examples:
      sita demo
      sita demo --images 300 --out digits.pdf
      sita demo --backend keras
    """
    frameworks = {Backend.torch: ("torch", "array_api_compat"), Backend.keras: ("keras",)}
    require(*frameworks[backend], "sklearn", "scipy", "safetensors", "matplotlib", extra=backend.value)
    from ..console import ConsoleProgress
    from ..demo import figure, tables
    from ..demo.demo import run_demo

    check_picture(out, figure.FORMATS)
    framework = _load_framework(backend)
    console = Console(highlight=False)
    result = run_demo(images, seed, ConsoleProgress(console), framework)
    console.print()
    console.print(tables.make_table(result))
    try:
        figure.save(result, out)
    except OSError as error:
        raise SitaError(f"The picture could not be written: {error}") from error
    console.print(Text(tables.summarise(result), "bold"))
    console.print(Text("A demonstration, not a benchmark: another network gains more or less (try --seed 1)."))
    console.print(Text(f"Picture: {out}"), soft_wrap=True)
    console.print(Text("With a model of your own: sita.adapt(model), after import sita_adapters as sita."))


def _load_framework(backend: Backend) -> Framework[Any]:
    """Import the framework. What Keras runs on is found out here, by Keras itself."""
    from ..demo.demo import load_framework

    if backend is Backend.keras:
        # TensorFlow's notes on the processor, and on how often it traces, would fill the screen.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
    try:
        return load_framework(backend.value)
    except (ImportError, ValueError) as error:  # Keras raises a ValueError where it does not know KERAS_BACKEND
        raise SitaError(
            f"{backend.value} could not be loaded: {error}. Remedy: pip install 'sita-adapters[bench,{backend.value}]'"
            + ("; KERAS_BACKEND names one of tensorflow, jax, torch." if backend is Backend.keras else ".")
        ) from error
