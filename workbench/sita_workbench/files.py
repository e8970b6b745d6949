"""Files that are there whole or not at all, and the folder for what can be made again."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path


def cache_folder() -> Path:
    """Return this user's cache folder for sita-adapters, by the custom of the operating system; it may not exist."""
    if os.environ.get("XDG_CACHE_HOME"):
        base = Path(os.environ["XDG_CACHE_HOME"])
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    else:
        base = Path.home() / ".cache"
    return base / "sita-adapters"


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary name beside `path` to write to, and move it there once all is written.

    Whatever stops the writing, Ctrl-C included, leaves `path` as it was and nothing beside it.
    """
    target = path.resolve()
    temporary = target.with_name(f".{target.stem}-{os.getpid()}{target.suffix}")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
