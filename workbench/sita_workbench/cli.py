"""The `sita` command. A command imports its libraries when it runs, so that `sita --help` is quick."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated, NoReturn

from sita_adapters.errors import SitaError, install
from sita_adapters.version import __version__

try:
    import typer
    from rich.console import Console
    from rich.text import Text
except ImportError:  # main names the remedy
    typer = None  # type: ignore[assignment]

_ABOUT = """Adapt trained BatchNorm image models to every single image.

One forward pass; no labels, no gradients, no second image. In Python:

  import sita_adapters as sita
  adapted = sita.adapt(model)

Start here: sita demo, or sita ui
Then, with your own model: sita inspect MODEL, sita predict MODEL IMAGE,
sita score MODEL --input DIR --output DIR, sita serve MODEL,
sita export MODEL --out model.onnx
"""


def main() -> None:
    """Run the command that the user typed. A SitaError, or a disk's, is printed as one line, without a traceback."""
    if typer is None:
        sys.exit(f"sita needs libraries that are not installed. Try: {_remedy()}")
    try:
        make_app()()
    except SitaError as error:
        _fail(str(error))
    except OSError as error:  # a full or read-only disk, a folder that is not there
        if error.errno is None:
            raise
        _fail(f"{error.strerror}{f': {error.filename}' if error.filename else ''}")


def _fail(reason: str) -> NoReturn:
    Console(stderr=True).print(Text(f"Error: {reason}", "red"), soft_wrap=True)
    sys.exit(1)


def _remedy() -> str:
    """Return how to install the command's libraries, and a framework where none is there."""
    return install("bench") if find_spec("torch") or find_spec("keras") else install("bench", "torch")


def make_app() -> typer.Typer:
    """Return the application with all its commands."""
    from .commands.bench import bench
    from .commands.calibrate import calibrate
    from .commands.corruptions import corruptions
    from .commands.demo import demo
    from .commands.export import export
    from .commands.inspect import inspect
    from .commands.predict import predict
    from .commands.score import score
    from .commands.serve import serve
    from .commands.ui import ui

    app = typer.Typer(
        name="sita",
        help=_ABOUT,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_sita)
    for command in (demo, ui, bench, inspect, calibrate, predict, score, serve, export, corruptions):
        app.command()(command)
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


if __name__ == "__main__":
    main()
