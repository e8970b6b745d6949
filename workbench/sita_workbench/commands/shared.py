"""What several commands need: libraries that are there, and files that can be written."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import typer

from sita_adapters.errors import SitaError


def require(*packages: str, extra: str) -> None:
    """Raise unless these import packages are installed; the message names the extra that brings them."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise SitaError(f"This command needs {', '.join(missing)}. Remedy: pip install 'sita-adapters[bench,{extra}]'")


def check_picture(path: Path, formats: tuple[str, ...]) -> None:
    """Find out before the work whether the picture can be written after it."""
    if path.suffix.lower() not in formats:
        raise typer.BadParameter(
            f"expected a name that ends in {', '.join(formats)}; received {str(path)!r}.", param_hint="'--out'"
        )
    if not path.resolve().parent.is_dir():
        raise typer.BadParameter(f"the folder {str(path.parent)!r} does not exist.", param_hint="'--out'")
