"""The file that a long run writes what it finds to, line by line, so that it can go on where it was stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sita_adapters.errors import InputError


class Ledger:
    """Lines of JSON: first what the run is about, then an entry for everything done, each under a key of its own."""

    def __init__(self, path: Path, about: Mapping[str, Any]) -> None:
        """Open the file, or begin it. A file that is about something else is refused and left as it is."""
        self.path = path
        self.entries: dict[str, dict[str, Any]] = {}
        lines = self._read()
        if lines and lines[0].get("about") != about:
            raise InputError(_differs(path, lines[0].get("about"), about))
        for line in lines[1:]:
            self.entries[line["key"]] = line["entry"]
        self._file = path.open("a", encoding="utf-8")
        if not lines:
            self._write({"about": about})

    def _read(self) -> list[dict[str, Any]]:
        """Return the whole lines. What a kill left of a last one is cut off."""
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
                "`sita bench` wrote to. Remedy: --restart, or another --out."
            )
        if end < self.path.stat().st_size:
            os.truncate(self.path, end)
        return lines

    def __contains__(self, key: str) -> bool:
        return key in self.entries

    def add(self, key: str, entry: dict[str, Any]) -> None:
        """Write an entry down; it is on the disk when this returns."""
        self._write({"key": key, "entry": entry})
        self.entries[key] = entry

    def _write(self, line: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _differs(path: Path, old: Any, new: Mapping[str, Any]) -> str:
    changed = [name for name in new if not isinstance(old, dict) or old.get(name) != new[name]]
    was = old if isinstance(old, dict) else {}
    details = "; ".join(f"{name} was {was.get(name)!r} and is {new[name]!r}" for name in changed[:3])
    return f"{path.parent} holds another run: {details}. Remedy: another --out, or --restart to throw it away."
