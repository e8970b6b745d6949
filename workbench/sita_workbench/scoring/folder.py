"""The output folder: its contents, its missing parts, and whether it belongs to this run.

    score.json                the model, recipe and list of images; a run with others is refused
    parts/part-00042.parquet  a row for every image of a shard, with the content of score.json in the metadata
    maps/00042/               the label maps of a segmentation model

A part is written under another name and renamed, so a killed process leaves no incomplete part. A part that was
damaged later, or that another run wrote, counts as missing. A lock (.lock) lets one run at a time write to the folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sita_adapters.errors import InputError

from ..files import write_json

RUN = b"sita"  # the metadata key under which a part names its run


@dataclass(frozen=True)
class OutputFolder:
    """The folder of a run; `run` is the content of score.json, `shard` the number of images in a part."""

    path: Path
    run: str
    shard: int

    def part(self, number: int) -> Path:
        """Return the file with the rows of a shard."""
        return self.path / "parts" / f"part-{number:05d}.parquet"

    def holds(self, number: int, images: int) -> bool:
        """Return whether a shard is done: its part is intact, of this run, with a row for every image."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(self.part(number), page_checksum_verification=True) as file:
                run = (file.schema_arrow.metadata or {}).get(RUN)
                return run == self.run.encode() and file.read().num_rows == images
        except (OSError, ValueError, pa.ArrowException):
            return False

    def find_missing(self, shards: Mapping[int, Sequence[str]]) -> dict[int, Sequence[str]]:
        """Return the shards that are not done."""
        return {number: paths for number, paths in shards.items() if not self.holds(number, len(paths))}


@contextlib.contextmanager
def open_folder(
    path: Path, identity: dict[str, Any], paths: Sequence[str], shard: int | None
) -> Iterator[OutputFolder]:
    """Lock the folder, and prepare it for this run or check that it belongs to this run.

    Another run may use a folder without parts, because there is nothing to mix up.
    """
    from filelock import FileLock, Timeout

    _read_manifest(path)  # before anything is written to a folder that is not ours
    path.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(path / ".lock", timeout=0):
            known = _read_manifest(path) if any(path.glob("parts/part-*.parquet")) else None
            # About 32 shards for a small set. Not by the number of workers: a run can be resumed with another.
            shard = shard or (known or {}).get("shard") or max(1, min(1000, math.ceil(len(paths) / 32)))
            digest = hashlib.sha256(b"".join(os.fsencode(each) + b"\n" for each in paths))
            about = {
                **identity,
                "images": len(paths),
                "input list": digest.hexdigest()[:16],
                "paths relative to": None if all(map(os.path.isabs, paths)) else os.getcwd(),
                "shard": shard,
            }
            if known is not None and known != about:
                names = [name for name in {**known, **about} if known.get(name) != about.get(name)]
                changes = [f"{name} was {known.get(name)!r:.120} and is {about.get(name)!r:.120}" for name in names[:3]]
                raise InputError(
                    f"{path} holds the answers of another run: {'; '.join(changes)}. Try: another --output, or delete "
                    "this folder to score everything again."
                )
            write_json(path / "score.json", about)
            (path / "parts").mkdir(exist_ok=True)
            yield OutputFolder(path.resolve(), json.dumps(about, sort_keys=True), shard)
    except Timeout as error:
        raise InputError(f"output: another run is writing to {path}. Try: wait for it, or another --output.") from error


def _read_manifest(path: Path) -> dict[str, Any] | None:
    manifest = path / "score.json"
    if manifest.exists():
        try:
            return dict(json.loads(manifest.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise InputError(f"{manifest} cannot be read: {error}. Try: another --output.") from error
    if path.is_dir() and any(not file.name.startswith(".") for file in path.iterdir()):
        raise InputError(
            f"output: expected a new folder, or the folder of an earlier run; {path} holds other files. "
            "Try: another --output."
        )
    return None
