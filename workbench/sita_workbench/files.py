"""Files that are written completely or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, and rename it to `path` afterwards.

    If writing stops for any reason, Ctrl-C included, `path` stays unchanged and the temporary file is removed. The
    name is random, because machines that share a disk may have processes with the same id.
    """
    target = path.resolve()
    temporary = target.with_name(f".{target.stem}-{secrets.token_hex(6)}{target.suffix}")
    try:
        yield temporary
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8 with Unix line ends."""
    with write_atomically(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(value, indent=1) + "\n")
