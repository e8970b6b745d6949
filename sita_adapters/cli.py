"""The `sita` command. What a command runs is imported when it runs, so that `sita --help` is quick."""

from __future__ import annotations

import logging
import os
import sys
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from .bench.digits import TEST_COUNT
from .errors import SitaError
from .version import __version__

try:
    import typer
    from rich.console import Console
    from rich.text import Text
except ImportError:  # main says what to install
    typer = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from .bench.demo import Framework

_REMEDY = "pip install 'sita-adapters[bench,torch]'"

_ABOUT = """Adapt trained BatchNorm image models to every single image they meet.

One forward pass; no labels, no gradients, no second image. In Python:

  import sita_adapters as sita
  adapted = sita.adapt(model)

Start here: sita demo
"""


class Backend(str, Enum):
    """The frameworks that the demo has a network in."""

    torch = "torch"
    keras = "keras"


def main() -> None:
    """Run the command that the user typed. An error of ours is one line, without a traceback."""
    if typer is None:
        sys.exit(f"sita needs libraries that are not installed. Remedy: {_REMEDY}")
    try:
        make_app()()
    except SitaError as error:
        Console(stderr=True).print(Text(f"Error: {error}", "red"), soft_wrap=True)
        sys.exit(1)


def make_app() -> typer.Typer:
    """Return the application with all its commands."""
    app = typer.Typer(
        name="sita",
        help=_ABOUT,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_sita)
    app.command()(demo)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sita-adapters {__version__}")
        raise typer.Exit


def _sita(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    pass


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
    _require(*frameworks[backend], "sklearn", "scipy", "safetensors", "matplotlib", extra=backend.value)
    from .bench import figure, report
    from .bench.demo import run_demo

    _check_picture(out, figure.FORMATS)
    framework = _load_framework(backend)
    console = Console(highlight=False)
    result = run_demo(images, seed, report.ConsoleProgress(console), framework)
    console.print()
    console.print(report.make_table(result))
    try:
        figure.save(result, out)
    except OSError as error:
        raise SitaError(f"The picture could not be written: {error}") from error
    console.print(Text(report.summarise(result), "bold"))
    console.print(Text("A demonstration, not a benchmark: another network gains more or less (try --seed 1)."))
    console.print(Text(f"Picture: {out}"), soft_wrap=True)
    console.print(Text("With a model of your own: sita.adapt(model), after import sita_adapters as sita."))


def _require(*packages: str, extra: str) -> None:
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise SitaError(f"This command needs {', '.join(missing)}. Remedy: pip install 'sita-adapters[bench,{extra}]'")


def _load_framework(backend: Backend) -> Framework[Any]:
    """Import the framework. What Keras runs on is found out here, by Keras itself."""
    from .bench.demo import load_framework

    if (
        backend is Backend.keras
    ):  # TensorFlow's notes on the processor, and on how often it traces, would fill the screen
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        logging.getLogger("tensorflow").setLevel(logging.ERROR)
    try:
        return load_framework(backend.value)
    except (ImportError, ValueError) as error:  # Keras raises a ValueError where it does not know KERAS_BACKEND
        raise SitaError(
            f"{backend.value} could not be loaded: {error}. Remedy: pip install 'sita-adapters[bench,{backend.value}]'"
            + ("; KERAS_BACKEND names one of tensorflow, jax, torch." if backend is Backend.keras else ".")
        ) from error


def _check_picture(path: Path, formats: tuple[str, ...]) -> None:
    """Find out before the work whether the picture can be written after it."""
    if path.suffix.lower() not in formats:
        raise typer.BadParameter(
            f"expected a name that ends in {', '.join(formats)}; received {str(path)!r}.", param_hint="'--out'"
        )
    if not path.resolve().parent.is_dir():
        raise typer.BadParameter(f"the folder {str(path.parent)!r} does not exist.", param_hint="'--out'")
