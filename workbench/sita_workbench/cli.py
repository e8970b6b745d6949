"""The `sita` command. A command imports its libraries when it runs: `sita --help` is quick."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, NoReturn

from sita_adapters.errors import SitaError, install
from sita_adapters.version import __version__

try:
    import typer
    from rich.console import Console
    from rich.text import Text
except ImportError:  # main says how to install them
    typer = None  # type: ignore[assignment]

_COMMANDS = ("demo", "ui", "bench", "inspect", "calibrate", "predict", "score", "serve", "export", "corruptions")

_ABOUT = """Adapt a trained image model with BatchNorm to each image independently.

Adaptation takes one forward pass. It needs no labels, no gradients and no
other images. In Python:

  import sita_adapters as sita
  adapted = sita.adapt(model)

To see what it does:     sita demo, or sita ui
To check your model:     sita inspect MODEL
To measure the benefit:  sita bench --model MODEL --data imagefolder:DIR
To use it:               sita predict MODEL IMAGE
"""


def main() -> None:
    """Run the command that the user typed. A SitaError or an OSError is printed as one line, without a traceback."""
    extras = ["bench"] if find_spec("torch") or find_spec("keras") else ["bench", "torch"]
    if typer is None:
        sys.exit(f"sita needs libraries that are not installed. Try: {install(*extras)}")
    try:
        make_app()()
    except SitaError as error:
        _fail(str(error))
    except OSError as error:  # a full or read-only disk, a missing folder
        if error.errno is None:
            raise
        _fail(f"{error.strerror}{f': {error.filename}' if error.filename else ''}")


def _fail(reason: str) -> NoReturn:
    Console(stderr=True).print(Text(f"Error: {reason}", "red"), soft_wrap=True)
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
    for name in _COMMANDS:
        app.command()(getattr(import_module(f".commands.{name}", __package__), name))
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"sita-adapters {__version__}")
        raise typer.Exit


def _sita(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


if __name__ == "__main__":
    main()
