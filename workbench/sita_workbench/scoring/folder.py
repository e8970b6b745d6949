"""The output folder: what it holds, which parts are missing, and whether it belongs to this run.

    score.json                what was scored with what; another model, recipe or list is refused
    inputs.arrow              the list of paths, one batch per shard: a worker reads its own batch alone
    parts/part-00042.parquet  the answers of a shard, with what score.json says in its metadata
    failed/part-00042.parquet what of the shard could not be scored
    failed.parquet            all of these, and
    summary.json              the summary, once all parts are there
    maps/00042/               of a segmentation model, the label maps

A part is written under another name and renamed, so whatever is killed leaves nothing half written. A part that was
damaged later, or that another run wrote, counts as missing. One run at a time holds the folder (.lock).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sita_adapters.errors import InputError

from ..files import write_atomically, write_json

if TYPE_CHECKING:
    import pyarrow as pa

SHARD = 1000
"""How many images a shard has, in a large set."""

_LEAST_SHARDS = 32
"""A small set is cut into about so many, so that there is work for every worker."""


RUN = b"sita"
"""The key under which a part says which run it belongs to."""


def choose_shard(images: int) -> int:
    """Return how many images a shard has: by their number alone, so that another number of workers goes on."""
    return max(1, min(SHARD, -(-images // _LEAST_SHARDS)))


@dataclass(frozen=True)
class OutputFolder:
    """The files of a run, by name."""

    path: Path

    @property
    def manifest(self) -> Path:
        """What was scored with what."""
        return self.path / "score.json"

    @property
    def inputs(self) -> Path:
        """The list of paths."""
        return self.path / "inputs.arrow"

    @property
    def parts(self) -> Path:
        """The folder of the answers: a Parquet dataset."""
        return self.path / "parts"

    @property
    def failures(self) -> Path:
        """The folder of what could not be scored, by shard."""
        return self.path / "failed"

    def part(self, number: int) -> Path:
        """Return the file of a shard's answers."""
        return self.parts / f"part-{number:05d}.parquet"

    def failed_part(self, number: int) -> Path:
        """Return the file of a shard's failures."""
        return self.failures / f"part-{number:05d}.parquet"

    def maps(self, number: int) -> Path:
        """Return the folder of a shard's label maps."""
        return self.path / "maps" / f"{number:05d}"

    def read_paths(self, number: int) -> list[str]:
        """Return the paths of a shard."""
        import pyarrow as pa

        with pa.memory_map(str(self.inputs)) as file, pa.ipc.open_file(file) as reader:
            return [os.fsdecode(path) for path in reader.get_batch(number).column(0).to_pylist()]

    def missing(self, shards: Shards) -> list[int]:
        """Return the numbers of the shards whose parts are not there, damaged, or another run's."""
        return [number for number in range(len(shards)) if not self.holds(number, shards.run, shards.images_in(number))]

    def holds(self, number: int, run: str, images: int) -> bool:
        """Return whether a shard's part is there: whole, of this run, with a row or a failure for every image."""
        import pyarrow as pa

        files = [path for path in (self.part(number), self.failed_part(number)) if path.exists()]
        try:
            tables = [_read_verified(path) for path in files]
        except (OSError, ValueError, pa.ArrowException):
            return False
        ours = [table for table in tables if (table.schema.metadata or {}).get(RUN) == run.encode()]
        whole = len(ours) == len(files) and self.part(number) in files
        return whole and sum(table.num_rows for table in ours) == images


def _read_verified(path: Path) -> pa.Table:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        return file.read()


@dataclass(frozen=True)
class Shards:
    """How a set is cut: `images` paths, `size` to a shard; `run` is what score.json says, as JSON."""

    images: int
    size: int
    run: str

    def __len__(self) -> int:
        return math.ceil(self.images / self.size)

    def images_in(self, number: int) -> int:
        """Return how many images a shard has."""
        return min(self.size, self.images - number * self.size)


def prepare_folder(folder: OutputFolder, identity: dict[str, Any], paths: Sequence[str], shard: int | None) -> Shards:
    """Make the folder ready for this run, or check that it is this run's; return how the set is cut.

    A folder without any part may become another run's: nothing in it could be mixed up.
    """
    digest = hashlib.sha256()
    for path in paths:
        digest.update(os.fsencode(path) + b"\n")
    relative = not all(map(os.path.isabs, paths))
    about = {
        **identity,
        "images": len(paths),
        "input list": digest.hexdigest()[:16],
        "paths relative to": os.getcwd() if relative else None,
    }
    known = _read_manifest(folder)
    if known is not None and any(folder.parts.glob("part-*.parquet")):
        about = {**about, "shard": shard or known.get("shard")}
        if known != about:
            raise InputError(_describe_difference(folder.path, known, about))
    else:
        about = {**about, "shard": shard or choose_shard(len(paths))}
        _write(folder, about, paths)
    return Shards(len(paths), about["shard"], json.dumps(about, sort_keys=True))


@contextlib.contextmanager
def held(folder: OutputFolder) -> Iterator[None]:
    """Hold the folder, so no second run writes to it. A killed process holds it no longer."""
    from filelock import FileLock, Timeout

    _read_manifest(folder)  # nothing is written to a folder that is not ours
    folder.path.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder.path / ".lock", timeout=0):
            yield
    except Timeout as error:
        raise InputError(
            f"output: another run is writing to {folder.path}. Try: wait for it, or another --output."
        ) from error


def shown(path: str) -> str:
    """Return a path as text for Parquet; bytes of a name that are not UTF-8 are escaped."""
    return path.encode("utf-8", "backslashreplace").decode()


def _read_manifest(folder: OutputFolder) -> dict[str, Any] | None:
    if not folder.manifest.exists():
        if folder.path.is_dir() and any(not path.name.startswith(".") for path in folder.path.iterdir()):
            raise InputError(
                f"output: expected a new folder, or one of an earlier run; {folder.path} holds other files. "
                "Try: another --output."
            )
        return None
    try:
        known = json.loads(folder.manifest.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{folder.manifest} cannot be read: {error}. Try: another --output.") from error
    return known if isinstance(known, dict) else {}


def _write(folder: OutputFolder, about: dict[str, Any], paths: Sequence[str]) -> None:
    import pyarrow as pa

    for made in (folder.path, folder.parts, folder.failures):
        made.mkdir(parents=True, exist_ok=True)
    schema = pa.schema([("path", pa.binary())])
    size = about["shard"]
    with write_atomically(folder.inputs) as temporary, pa.ipc.new_file(str(temporary), schema) as writer:
        for start in range(0, len(paths), size):
            names = [os.fsencode(path) for path in paths[start : start + size]]
            writer.write_batch(pa.record_batch([pa.array(names, pa.binary())], schema=schema))
    write_json(folder.manifest, about)


def _describe_difference(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> str:
    changed = [name for name in new if old.get(name) != new[name]]
    details = "; ".join(f"{name} was {old.get(name)!r:.120} and is {new[name]!r:.120}" for name in changed[:3])
    return (
        f"{folder} holds the answers of another run: {details}. Try: another --output, or delete this folder to "
        "score everything again."
    )


def leftovers(folder: OutputFolder) -> Iterator[Path]:
    """Yield what killed workers had begun to write."""
    for pattern in ("parts/.part-*", "failed/.part-*", "maps/*/.*.png"):
        yield from folder.path.glob(pattern)
