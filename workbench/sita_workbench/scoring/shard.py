"""The work of a worker, the same in every process: the rows of a list of images, and the part of a shard.

The answers of a shard depend only on the model and the shard's paths: these decide the batches, and they run on one
thread.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sita_adapters.errors import InputError, OutputError, SitaError, SitaWarning

from ..files import write_atomically
from ..label_maps import write_label_map
from .folder import RUN, OutputFolder
from .spec import ModelSpec

if TYPE_CHECKING:
    from ..predictor import Predictor

FAILED = {"path": "string", "reason": "string"}  # the columns of failed.parquet

ROW = {  # the columns of a part
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


@dataclass
class ScoredImages:
    """The rows, and the images that could not be scored, with the reason."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows) + len(self.failed)

    def fail(self, path: str, error: Exception) -> None:
        """Add a failure."""
        self.failed.append({"path": _escape(path), "reason": _escape(str(error) or type(error).__name__)})


def use_one_thread() -> None:
    """Let this process compute on one core: several such workers together are faster than one with many threads.

    Frameworks that are not imported yet read it from the environment; torch can be told at any time.
    """
    variables = "OMP_NUM_THREADS MKL_NUM_THREADS OPENBLAS_NUM_THREADS TF_NUM_INTRAOP_THREADS TF_NUM_INTEROP_THREADS"
    os.environ.update(dict.fromkeys(variables.split(), "1"))
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


def report_shard(job: Job, number: int, paths: Sequence[str]) -> Iterator[Report | SitaError]:
    """Yield the reports of `score_shard`. An error is the last item: it crosses to the driver like a report."""
    try:
        yield from score_shard(job, number, paths)
    except SitaError as error:
        yield error
    except Exception:
        yield SitaError(f"A worker failed:\n{traceback.format_exc()}")


def score_shard(job: Job, number: int, paths: Sequence[str]) -> Iterator[Report]:
    """Score the images of a shard and write its part, unless the part exists; yield a report after every batch.

    The failures are written before the part, whose existence marks the shard as done.
    """
    folder, pid = job.folder, os.getpid()
    if folder.holds(number, len(paths)):  # a worker that was lost had finished it
        yield Report(number, len(paths), pid, done=True)
        return
    if job.keras_backend:
        os.environ["KERAS_BACKEND"] = job.keras_backend
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SitaWarning)
        for scored in score_batches(job.spec, paths, job.base, folder.path / "maps" / f"{number:05d}"):
            yield Report(number, len(scored), pid)
    if scored.failed:
        _write(folder.part(number, "failed"), scored.failed, FAILED, folder.run)
    else:
        folder.part(number, "failed").unlink(missing_ok=True)  # of an attempt that was killed
    _write(folder.part(number), scored.rows, ROW, folder.run)
    said = dict.fromkeys(str(each.message) for each in caught if issubclass(each.category, SitaWarning))
    yield Report(number, len(scored), pid, True, len(scored.failed), tuple(said))


def _write(path: Path, rows: list[dict[str, Any]], columns: dict[str, str], run: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pylist(rows, schema=pa.schema(columns.items(), {RUN: run}))
    with write_atomically(path) as temporary:
        pq.write_table(table, temporary, write_page_checksum=True)


def score_images(spec: ModelSpec, paths: Sequence[str]) -> ScoredImages:
    """Return a row for every image that can be read, in order, and the reason for every other."""
    *_, scored = score_batches(spec, paths)
    return scored


def score_batches(
    spec: ModelSpec, paths: Sequence[str], base: str = "", maps: Path | None = None
) -> Iterator[ScoredImages]:
    """Yield what is scored so far, after every batch and at the end.

    Relative paths start at `base`; label maps are written to `maps`.
    """
    predictor = _open_predictor(spec)
    scored = ScoredImages()
    for batch in _read_batches(predictor, paths, base, scored):
        _score_batch(predictor, spec.names, batch, maps, scored)
        yield scored
    yield scored


def _score_batch(
    predictor: Predictor, names: Sequence[str], batch: list[_Image], maps: Path | None, scored: ScoredImages
) -> None:
    """Add the rows of a batch; if the model fails on it, those of each image alone."""
    try:
        scored.rows += _rows(predictor, names, batch, maps)
    except Exception as error:
        # Every image would have an error such as a full disk; an InputError is about one image.
        if isinstance(error, OSError) or (isinstance(error, SitaError) and not isinstance(error, InputError)):
            raise
        if len(batch) == 1:
            scored.fail(batch[0].path, error)
            return
        for image in batch:
            _score_batch(predictor, names, [image], maps, scored)


@functools.lru_cache(maxsize=1)
def _open_predictor(spec: ModelSpec) -> Predictor:
    """Load a model, once per process."""
    from ..models.loading import load_model
    from ..predictor import open_predictor

    options: dict[str, Any] = {"trust": spec.trust, "providers": spec.providers, "exported": True}
    loaded = load_model(spec.model, spec.weights, inputs=spec.inputs, size=spec.size, **options)
    loaded = replace(loaded, task=spec.task or loaded.task, crop=spec.crop or loaded.crop)
    return open_predictor(loaded, spec.open_recipe(loaded.task))


class _Image(NamedTuple):
    """An image in bytes, and its position in the list."""

    path: str
    position: int
    pixels: np.ndarray


def _read_batches(
    predictor: Predictor, paths: Sequence[str], base: str, scored: ScoredImages
) -> Iterator[list[_Image]]:
    """Yield images of one size, as many as run at once. Later images are not read yet."""
    from ..commands.image_files import read_image
    from ..methods import images_per_call

    batch: list[_Image] = []
    for position, path in enumerate(paths):
        try:
            pixels = read_image(Path(base, path), predictor.loaded)
        except Exception as error:  # the reader of a format may raise anything on a damaged file
            scored.fail(path, error)
            continue
        if batch and batch[0].pixels.shape != pixels.shape:
            yield batch
            batch = []
        batch.append(_Image(path, position, pixels))
        if len(batch) == images_per_call(predictor.rows, *pixels.shape[:2]):
            yield batch
            batch = []
    if batch:
        yield batch


def _rows(
    predictor: Predictor, names: Sequence[str], batch: Sequence[_Image], maps: Path | None
) -> list[dict[str, Any]]:
    """Return a row for every image. In segmentation, labels are the most frequent ones, and numbers are means."""
    answers = predictor.answer(np.stack([image.pixels for image in batch]))
    adapted, source, priors = answers.adapted, answers.source, answers.adapted.priors
    classes = adapted.probabilities.shape[-1]
    if names and len(names) != classes:
        raise OutputError(
            f"--labels: expected a name for each of the model's {classes} classes; received {len(names)}."
        )
    names = names or predictor.loaded.names
    rows: list[dict[str, Any]] = []
    for at, image in enumerate(batch):
        labels = adapted.labels[at]
        label = _most_frequent(labels)
        row: dict[str, Any] = {
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
        rows.append(row)
    return rows


def _most_frequent(labels: np.ndarray) -> int:
    return int(np.bincount(labels.ravel()).argmax())


def _escape(text: str) -> str:
    """Return text that Parquet can hold: bytes of a file name that are not UTF-8 are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()
