"""The work of a worker, the same in every process: the rows of a list of images, and the part of a shard.

The answers of a shard depend only on the model and the shard's paths: these decide the batches, and they run on one
thread.
"""

from __future__ import annotations

import functools
import os
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from sita_adapters.errors import InputError, SitaError, SitaWarning

from ..commands.image_files import read_image
from ..files import write_atomically
from ..label_maps import write_label_map
from .folder import RUN, OutputFolder
from .spec import ModelSpec

if TYPE_CHECKING:
    from ..predictor import Predictor

Row: TypeAlias = dict[str, Any]

COLUMNS = {  # of a part
    "path": "string",
    "label": "int32",
    "class_name": "string",
    "probability": "double",
    "entropy": "double",
    "prior": "double",
    "source_label": "int32",
    "source_probability": "double",
    "changed": "double",  # 1 if the label differs from the source model's; in segmentation the share of the pixels
    "map": "string",  # the file of the label map, in segmentation
    "reason": "string",  # why the image could not be scored; then there is no label
}


@dataclass(frozen=True)
class Job:
    """What a worker needs for any shard: `base` is the folder that relative paths start at."""

    spec: ModelSpec
    folder: OutputFolder
    base: str
    keras_backend: str | None


@dataclass(frozen=True)
class Report:
    """The process `pid` has done this many images of a shard. With `done`, the part is on disk.

    `failed` and `warnings` (of the library) are those of the whole shard, in its last report.
    """

    number: int
    images: int
    pid: int
    done: bool = False
    failed: int = 0
    warnings: tuple[str, ...] = ()


def report_shard(job: Job, number: int, paths: Sequence[str]) -> Iterator[Report | SitaError]:
    """Yield the reports of `score_shard`. An error is the last item, and reaches the driver like a report."""
    try:
        yield from score_shard(job, number, paths)
    except SitaError as error:
        yield error
    except Exception:
        yield SitaError(f"A worker failed:\n{traceback.format_exc()}")


def score_shard(job: Job, number: int, paths: Sequence[str]) -> Iterator[Report]:
    """Score the images of a shard and write its part, unless the part exists; yield a report after every batch."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder, pid = job.folder, os.getpid()
    if folder.holds(number, len(paths)):  # a worker that was lost had finished it
        yield Report(number, len(paths), pid, done=True)
        return
    if job.keras_backend:
        os.environ["KERAS_BACKEND"] = job.keras_backend
    rows: dict[int, Row] = {}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SitaWarning)
        for scored in score_batches(job.spec, paths, job.base, folder.path / "maps" / f"{number:05d}"):
            rows |= scored
            yield Report(number, len(rows), pid)
    schema = pa.schema(COLUMNS.items(), {RUN: folder.run})
    with write_atomically(folder.part(number)) as temporary:
        table = pa.Table.from_pylist([rows[position] for position in range(len(paths))], schema=schema)
        pq.write_table(table, temporary, write_page_checksum=True)
    failed = sum("reason" in row for row in rows.values())
    said = dict.fromkeys(str(each.message) for each in caught if issubclass(each.category, SitaWarning))
    yield Report(number, len(rows), pid, True, failed, tuple(said))


def score_images(spec: ModelSpec, paths: Sequence[str]) -> list[Row]:
    """Return a row for every image, in order: an answer, or the reason why there is none."""
    rows = {position: row for scored in score_batches(spec, paths) for position, row in scored.items()}
    return [rows[position] for position in range(len(paths))]


def score_batches(
    spec: ModelSpec, paths: Sequence[str], base: str = "", maps: Path | None = None
) -> Iterator[dict[int, Row]]:
    """Yield the rows of some images, by position, until all have one.

    Images of one size run together, as many as fit in one call; later images are not read yet. Relative paths start at
    `base`; label maps are written to `maps`.
    """
    from ..methods import images_per_call

    predictor = _open_predictor(spec)
    batch: list[_Image] = []
    for position, path in enumerate(paths):
        try:
            pixels = read_image(Path(base, path), predictor.loaded)
        except Exception as error:  # the reader of a format may raise anything on a damaged file
            yield {position: _failure(path, error)}
            continue
        if batch and batch[0].pixels.shape != pixels.shape:
            yield _score_batch(predictor, spec, batch, maps)
            batch = []
        batch.append(_Image(position, path, pixels))
        if len(batch) == images_per_call(predictor.rows, *pixels.shape[:2]):
            yield _score_batch(predictor, spec, batch, maps)
            batch = []
    if batch:
        yield _score_batch(predictor, spec, batch, maps)


@functools.lru_cache(maxsize=1)
def _open_predictor(spec: ModelSpec) -> Predictor:
    """Load a model, once per process."""
    return spec.open_predictor()


class _Image(NamedTuple):
    position: int
    path: str
    pixels: np.ndarray


def _score_batch(predictor: Predictor, spec: ModelSpec, batch: list[_Image], maps: Path | None) -> dict[int, Row]:
    """Return the rows of a batch; if the model fails on it, those of each image alone.

    In segmentation, labels are the most frequent ones, and numbers are means.
    """
    try:
        answers = predictor.answer(np.stack([image.pixels for image in batch]))
    except InputError as error:  # of an image; any other error ends the run
        if len(batch) == 1:
            return {batch[0].position: _failure(batch[0].path, error)}
        return dict(item for image in batch for item in _score_batch(predictor, spec, [image], maps).items())
    adapted, source, priors = answers.adapted, answers.source, answers.adapted.priors
    classes, names = adapted.probabilities.shape[-1], predictor.loaded.names
    spec.check_names(classes)
    rows: dict[int, Row] = {}
    for at, image in enumerate(batch):
        labels = adapted.labels[at]
        label = _most_frequent(labels)
        row = rows[image.position] = {
            "path": _escape(image.path),
            "label": label,
            "class_name": names[label] if len(names) == classes else None,
            "probability": float(adapted.confidences[at].mean()),
            "entropy": float(adapted.entropies[at].mean()),
            "prior": None if priors is None else float(priors[at].mean()),
        }
        if source is not None:
            row["source_label"] = _most_frequent(source.labels[at])
            row["source_probability"] = float(source.confidences[at].mean())
            row["changed"] = float((labels != source.labels[at]).mean())
        if maps is not None and predictor.loaded.task == "segmentation":
            maps.mkdir(parents=True, exist_ok=True)
            file = maps / f"{image.position:05d}-{Path(row['path']).stem[:100]}.png"
            write_label_map(file, labels, classes)
            row["map"] = str(Path(*file.parts[-3:]))
    return rows


def _failure(path: str, error: Exception) -> Row:
    return {"path": _escape(path), "reason": _escape(str(error) or type(error).__name__)}


def _most_frequent(labels: np.ndarray) -> int:
    return int(np.bincount(labels.ravel()).argmax())


def _escape(text: str) -> str:
    """Return text that Parquet can hold: bytes of a file name that are not UTF-8 are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()
