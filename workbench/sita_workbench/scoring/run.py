"""score(): one row per image of a set, on this machine or on a cluster. An interrupted run can be resumed."""

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

from ..commands.image_files import find_images
from ..progress import Progress
from .cluster import run_ray
from .folder import OutputFolder, open_folder
from .shard import Job, Report
from .spec import ModelSpec
from .workers import Shards, run_local

Paths: TypeAlias = str | PathLike[str] | Iterable[str | PathLike[str]]
Watch: TypeAlias = Callable[[Report], None]


@dataclass(frozen=True)
class Scored:
    """A scored set of images: how many have an answer (`rows`), how many failed, and the first few reasons.

    `output / "parts"` is a Parquet dataset with one row per image. `changed` is the share of labels (in segmentation,
    of pixels) that differ from the source model's. It is None if the source model's labels are not known.
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
    """Write one Parquet row per image of a set to a folder. Call it again to resume an interrupted run.

    - `spec`: the model and its recipe. A string names a model that has its own weights, with the default recipe.
    - `paths`: a folder, a text file with one path per line, or the paths themselves.
    - `output`: a new folder, or the folder of an earlier run of the same model, recipe and paths.
    - `engine`: "local" for worker processes on this machine, "ray" for actors on a Ray cluster.
    - `address`: the address of a Ray cluster, or "auto" for the cluster of this machine. By default, a cluster is
      started on this machine for the run.
    - `workers`: how many, each with its own model and one thread. By default, one per core.
    - `shard`: how many images a part has. A killed worker loses at most this many. By default 1,000, fewer for a small
      set.
    - `progress`: shows the progress.
    - `watch`: called with every report of a worker.

    >>> score(ModelSpec("timm:resnet50", weights="pretrained", recipe="augbn"), "photos", "scored").changed
    """
    expect_one_of("engine", engine, ("local", "ray"), InputError)
    for name, value in (("workers", workers), ("shard", shard)):
        if value is not None:
            expect_integer(name, value, 1, InputError)
    if address is not None and engine != "ray":
        raise InputError(f"address: expected engine='ray' with an address; received {engine!r}.")
    listed = list_paths(paths)
    chosen = (ModelSpec(spec) if isinstance(spec, str) else spec).resolved()
    with open_folder(Path(output), chosen.identity(), listed, shard) as folder:
        starts = range(0, len(listed), folder.shard)
        shards = {number: listed[start : start + folder.shard] for number, start in enumerate(starts)}
        if missing := folder.find_missing(shards):
            job = Job(chosen, folder, os.getcwd(), os.environ.get("KERAS_BACKEND"))
            reports = run_ray(job, missing, workers, address) if engine == "ray" else run_local(job, missing, workers)
            with contextlib.closing(reports):
                _follow(reports, missing, len(listed), progress or Progress(), watch)
        return _finish(folder, shards)


def _follow(
    reports: Iterable[Report | str], shards: Shards, images: int, progress: Progress, watch: Watch | None
) -> None:
    """Show how far the run is. A shard that is done again counts from its start."""
    total = sum(map(len, shards.values()))
    if total < images:
        progress.say(f"{images - total:,} of {images:,} images are already done.")
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
    """Check that all parts exist, count the rows, and remove what killed workers left."""
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    if missing := folder.find_missing(shards):
        raise SitaError(
            f"{len(missing)} of {len(shards)} parts in {folder.path} are missing or damaged, although every shard was "
            "reported as done. Do all workers share the disk of this folder? Try: run the same command again."
        )
    for pattern in ("parts/.part-*", "maps/*/.*.png"):
        for path in folder.path.glob(pattern):
            path.unlink(missing_ok=True)
    parts = pq.read_table(folder.path / "parts", columns=["changed", "reason"])
    reasons = parts["reason"].drop_null()
    failed, rows = len(reasons), len(parts) - len(reasons)
    shown = tuple(reasons.slice(0, 3).to_pylist())
    if not rows:
        raise InputError(f"None of {failed} images could be scored. {shown[0]}")
    return Scored(folder.path, rows, failed, pc.mean(parts["changed"]).as_py(), shown)


def list_paths(given: Paths) -> list[str]:
    """Return the paths of a set of images, in order; a path that is listed twice is returned twice."""
    if not isinstance(given, str | PathLike):
        paths = [fspath(path) for path in given]
    elif Path(given).is_dir():
        paths = [str(path) for path in find_images([Path(given)])]
    elif not Path(given).is_file():
        raise InputError(f"input: expected a folder, or a text file with one path per line; {given} does not exist.")
    else:
        text = os.fsdecode(Path(given).read_bytes().removeprefix(codecs.BOM_UTF8))
        if "\0" in text:
            raise InputError(f"input: expected text, one path per line; {given} is a binary file.")
        paths = [line.strip() for line in text.splitlines() if line.strip()]
    if not paths:
        raise InputError("input: expected at least one path; received none.")
    return paths
