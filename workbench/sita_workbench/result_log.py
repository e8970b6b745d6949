"""The file to which a long run writes its results line by line to continue after an interruption."""

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
        old = lines[0].get("about") if lines else about
        if old != about:
            was = old if isinstance(old, dict) else {}
            changed = [
                f"{name} was {was.get(name)!r} and is {new!r}" for name, new in about.items() if was.get(name) != new
            ]
            details = "; ".join(changed[:3])
            raise InputError(f"{path.parent} holds another run: {details}. Try: another --out, or delete this folder.")
        self.entries: dict[str, dict[str, Any]] = {line["key"]: line["entry"] for line in lines[1:]}
        self._file = path.open("a", encoding="utf-8")
        if not lines:
            self._write({"about": about})

    def _read(self) -> list[dict[str, Any]]:
        """Return the complete lines. An incomplete last line, left by a killed run, is cut off."""
        text = self.path.read_bytes() if self.path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        lines = []
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                lines.append({**json.loads(line)})
            except (TypeError, ValueError):
                raise InputError(
                    f"{self.path}: line {number} cannot be read. Expected a file that only this command wrote to. "
                    "Try: another --out."
                ) from None
        if len(whole) < len(text):
            os.truncate(self.path, len(whole))
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
