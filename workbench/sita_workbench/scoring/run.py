"""score(): a row for every image of a set, on this machine or on a cluster. A stopped run can be resumed."""

from __future__ import annotations

import codecs
import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import Literal, TypeAlias

from sita_adapters.errors import InputError, SitaError, expect_integer, expect_one_of

from ..files import write_atomically, write_json
from ..progress import NoProgress, Progress
from .cluster import run_ray
from .folder import OutputFolder, open_folder
from .shard import FAILED, Job, Report
from .spec import ModelSpec
from .workers import Shards, run_local

Paths: TypeAlias = str | PathLike[str] | Iterable[str | PathLike[str]]
Watch: TypeAlias = Callable[[Report], None]


@dataclass(frozen=True)
class Scored:
    """A scored set of images: how many have a row, and how many failed, with the first few reasons.

    `output / "parts"` is a Parquet dataset with the rows. `changed` is the share of labels, in segmentation of pixels,
    that differ from the source model's; None if these are not known.
    """

    output: Path
    rows: int
    failed: int
    changed: float | None
    reasons: tuple[str, ...] = ()


def score(
    spec: ModelSpec | str,
    paths: Paths,
    output: str | PathLike[str],
    *,
    engine: Literal["local", "ray"] = "local",
    workers: int | None = None,
    shard: int | None = None,
    address: str | None = None,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Scored:
    """Write a row for every image of a set to a folder, as Parquet; resume where an earlier run was stopped.

    - `spec`: the model and its recipe; a text is a model that has its own weights, with the default recipe.
    - `paths`: a folder, a Parquet file with a column `path`, a text file with a path per line, or the paths themselves.
    - `output`: a new folder, or the folder of an earlier run of the same model, recipe and paths.
    - `engine`: "local", worker processes on this machine, or "ray", actors on a cluster: the one at `address` ("auto":
      the one that this machine belongs to), or one that is started on this machine for the run.
    - `workers`: how many, each with its own model and one thread; by default one per core.
    - `shard`: how many images a part has, which is what a killed worker loses. By default 1,000, less for a small set.
    - `watch`: called with every report of a worker.

    >>> score(ModelSpec("timm:resnet50", weights="pretrained", recipe="augbn"), "photos", "scored").changed
    """
    expect_one_of("engine", engine, ("local", "ray"), InputError)
    for name, value in (("workers", workers), ("shard", shard)):
        if value is not None:
            expect_integer(name, value, 1, InputError)
    if address is not None and engine != "ray":
        raise InputError(f"address: expected engine='ray' with it; received {engine!r}.")
    listed = list_paths(paths)
    chosen = (ModelSpec(spec) if isinstance(spec, str) else spec).resolved()
    with open_folder(Path(output), chosen.identity(), listed, shard) as folder:
        starts = range(0, len(listed), folder.shard)
        shards = {number: listed[start : start + folder.shard] for number, start in enumerate(starts)}
        missing = _find_missing(folder, shards)
        if missing:
            job = Job(chosen, folder, os.getcwd(), os.environ.get("KERAS_BACKEND"))
            reports = run_ray(job, missing, workers, address) if engine == "ray" else run_local(job, missing, workers)
            with contextlib.closing(reports):
                _follow(reports, missing, len(listed), progress or NoProgress(), watch)
        return _finish(folder, shards)


def _find_missing(folder: OutputFolder, shards: Shards) -> Shards:
    return {number: paths for number, paths in shards.items() if not folder.holds(number, len(paths))}


def _follow(
    reports: Iterable[Report | str], shards: Shards, images: int, progress: Progress, watch: Watch | None
) -> None:
    """Show how far the run is. A shard that is done again counts from its start."""
    total = sum(map(len, shards.values()))
    if total < images:
        progress.say(f"{images - total:,} of {images:,} images are done already.")
    counts = dict.fromkeys(shards, 0)
    done, failed, said = 0, 0, set[str]()
    with progress.track(f"{total:,} images", total) as advance:
        for report in reports:
            if isinstance(report, str):
                progress.say(report)
                continue
            steps = report.images - counts[report.number]
            counts[report.number] = report.images
            done, failed = done + steps, failed + report.failed
            advance(steps, f"{done:,} of {total:,} images, {failed:,} failed")
            for warning in set(report.warnings) - said:
                progress.say(f"Warning: {warning}")
            said.update(report.warnings)
            if watch is not None:
                watch(report)


def _finish(folder: OutputFolder, shards: Shards) -> Scored:
    """Check that all parts exist, gather the failures, count the rows, and remove what killed workers left."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.dataset as ds
    import pyarrow.parquet as pq

    missing = _find_missing(folder, shards)
    if missing:
        raise SitaError(
            f"{len(missing)} of {len(shards)} parts are missing in {folder.path}, or damaged, though every shard was "
            "reported as done. Is the folder on a disk that all workers share? Try: run the same command again."
        )
    for pattern in ("parts/.part-*", "failed/.part-*", "maps/*/.*.png"):
        for path in folder.path.glob(pattern):
            path.unlink(missing_ok=True)
    failures = [pq.read_table(path) for path in (folder.part(number, "failed") for number in shards) if path.exists()]
    failed = pa.concat_tables([pa.schema(FAILED.items()).empty_table(), *failures]).replace_schema_metadata()
    with write_atomically(folder.path / "failed.parquet") as temporary:
        pq.write_table(failed, temporary)
    rows = ds.dataset(folder.path / "parts", format="parquet").to_table(columns=["changed"])
    reasons = tuple(failed.column("reason").slice(0, 3).to_pylist())
    if not len(rows):
        raise InputError(f"None of {len(failed)} images could be scored. {reasons[0]}")
    changed = pc.mean(rows.column("changed")).as_py()
    write_json(folder.path / "summary.json", {"rows": len(rows), "failed": len(failed), "changed": changed})
    return Scored(folder.path, len(rows), len(failed), changed, reasons)


def list_paths(given: Paths) -> list[str]:
    """Return the paths of a set of images, in order; a path that is listed twice is returned twice."""
    if not isinstance(given, str | PathLike):
        paths = [fspath(path) for path in given]
    elif Path(given).is_dir():
        from ..commands.image_files import find_images

        paths = [str(path) for path in find_images([Path(given)])]
    elif not Path(given).is_file():
        raise InputError(f"input: expected a folder, a .parquet file or a list of paths; there is no {given}.")
    elif Path(given).suffix.lower() in (".parquet", ".pq"):
        paths = _read_parquet(Path(given))
    else:
        text = os.fsdecode(Path(given).read_bytes().removeprefix(codecs.BOM_UTF8))
        if "\0" in text:
            raise InputError(f"input: expected text, one path per line; {given} is a binary file.")
        paths = [line.strip() for line in text.splitlines() if line.strip()]
    if not paths:
        raise InputError("input: expected at least one path; received none.")
    return paths


def _read_parquet(source: Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(source) as file:
            kinds = {field.name: str(field.type) for field in file.schema_arrow}
            if kinds.get("path") not in ("string", "large_string", "string_view"):
                raise InputError(f"input: expected a column 'path' with text in {source}; received {kinds}.")
            column = file.read(columns=["path"]).column("path")
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"input: {source} cannot be read as Parquet: {error}.") from error
    if column.null_count:
        raise InputError(f"input: {column.null_count} rows of the column 'path' of {source} are empty.")
    paths: list[str] = column.to_pylist()
    return paths
