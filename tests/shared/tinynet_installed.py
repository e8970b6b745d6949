"""The example of a backend, installed as pip would: modules that can be imported, and metadata with entry points."""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "tinynet"


def install() -> list[str]:
    """Put the example on sys.path, and return what was put there."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")  # pytest brings tomli
    project = toml.loads((FOLDER / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    folder = Path(tempfile.mkdtemp())
    metadata = folder / "sita_tinynet-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.1.0\n")
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    added = [str(folder), str(FOLDER)]
    sys.path[:0] = added
    importlib.invalidate_caches()
    return added
