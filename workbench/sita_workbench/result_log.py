"""The file to which a long run writes its results line by line, so that it can continue after an interruption."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sita_adapters.errors import InputError


class ResultLog:
    """A file of JSON lines: first a description of the run, then one entry per result, each under its own key."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """Open or create the file. A file of another run is refused and left unchanged."""
        self.path = path
        lines = self._read()
        if lines and lines[0].get("about") != about:
            raise InputError(_describe_difference(path, lines[0].get("about"), about))
        self.entries: dict[str, dict[str, Any]] = {line["key"]: line["entry"] for line in lines[1:]}
        self._file = path.open("a", encoding="utf-8")
        if not lines:
            self._write({"about": about})

    def _read(self) -> list[dict[str, Any]]:
        """Return the complete lines. An incomplete last line, left by a killed run, is cut off."""
        if not self.path.exists():
            return []
        lines, end = [], 0
        with self.path.open("rb") as file:
            for raw in file:
                try:
                    line = json.loads(raw) if raw.endswith(b"\n") else None
                except ValueError:
                    line = None
                if not isinstance(line, dict):
                    break
                lines.append(line)
                end += len(raw)
            rest = file.read()
        if rest.strip():
            raise InputError(
                f"{self.path}: line {len(lines) + 1} cannot be read, and lines follow it. Expected a file that only "
                "`sita bench` wrote to. Try: --restart, or another --out."
            )
        if end < self.path.stat().st_size:
            os.truncate(self.path, end)
        return lines

    def add(self, key: str, entry: dict[str, Any]) -> None:
        """Write an entry; it is on disk when this returns."""
        self._write({"key": key, "entry": entry})
        self.entries[key] = entry

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _describe_difference(path: Path, old: Any, new: Mapping[str, Any]) -> str:
    was = old if isinstance(old, dict) else {}
    changed = [name for name in new if was.get(name) != new[name]]
    details = "; ".join(f"{name} was {was.get(name)!r} and is {new[name]!r}" for name in changed[:3])
    return f"{path.parent} holds another run: {details}. Try: another --out, or --restart to delete it."
