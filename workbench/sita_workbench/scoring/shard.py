"""The function that scores a shard, which every engine calls; and the one that scores images, for engines of others.

What a shard's answers are depends on the job and the shard's number alone: its images run in batches that its own list
decides, on one thread, whichever process it is.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sita_adapters.errors import InputError, SitaError, SitaWarning

from ..files import write_atomically
from .folder import RUN, OutputFolder, shown
from .spec import Job, ModelSpec

if TYPE_CHECKING:
    import pyarrow as pa

    from ..predictor import Answers
    from .scorer import Scorer

Report = Callable[[int], None]
"""Is told after every batch how many images of the shard are done."""


@dataclass(frozen=True)
class ShardDone:
    """A shard whose part is on disk. `warnings` are what the library had to say."""

    number: int
    rows: int
    failed: int
    warnings: tuple[str, ...] = ()


@dataclass
class ScoredImages:
    """Rows, by column, and the images that could not be scored, with the reason."""

    segments: bool
    rows: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)


def score_shard(job: Job, number: int, report: Report | None = None) -> ShardDone:
    """Score the images of a shard and write its part; do nothing if the part is there.

    The failures are written before the part, whose being there says that the shard is done.
    """
    import pyarrow.parquet as pq

    folder = OutputFolder(Path(job.folder))
    paths = folder.read_paths(number)
    if folder.holds(number, job.run, len(paths)):  # a worker that was lost had finished it
        return ShardDone(number, pq.read_metadata(folder.part(number)).num_rows, 0)
    if job.keras_backend:
        os.environ["KERAS_BACKEND"] = job.keras_backend
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", SitaWarning)
        scored = score_images(job.spec, paths, base=job.base, maps=folder.maps(number), report=report)
    if scored.failed:
        _write(folder.failed_part(number), scored.failed, failed_schema().with_metadata({RUN: job.run}))
    else:
        folder.failed_part(number).unlink(missing_ok=True)  # of an attempt that did not get to its end
    _write(folder.part(number), scored.rows, row_schema(scored.segments).with_metadata({RUN: job.run}))
    said = dict.fromkeys(str(each.message) for each in caught if issubclass(each.category, SitaWarning))
    return ShardDone(number, len(scored.rows), len(scored.failed), tuple(said))


def score_images(
    spec: ModelSpec,
    paths: Sequence[str],
    *,
    base: str = "",
    maps: Path | None = None,
    report: Report | None = None,
) -> ScoredImages:
    """Return a row for every image that can be read, in order, and the reason for every other.

    The model is loaded once per process. `base` is what relative paths start from; label maps are written to `maps`.
    """
    from .scorer import open_scorer

    scorer = open_scorer(spec)
    scored = ScoredImages(scorer.segments)
    for batch in _read_batches(scorer, paths, base, scored.failed):
        try:
            scored.rows += _rows(scorer, batch, maps)
        except Exception as error:
            _raise_if_general(error)
            _score_one_by_one(scorer, batch, maps, scored)
        if report is not None:
            report(len(scored.rows) + len(scored.failed))
    return scored


@dataclass(frozen=True, eq=False)
class _Image:
    """An image in bytes, its place in the list, and how long it took to read."""

    path: str
    place: int
    pixels: np.ndarray
    seconds: float


def _read_batches(
    scorer: Scorer, paths: Sequence[str], base: str, failed: list[dict[str, str]]
) -> Iterator[list[_Image]]:
    """Yield images of one size, as many as run at once. The next are read when these are done: memory stays flat."""
    from ..commands.image_files import read_image

    batch: list[_Image] = []
    at_once = 1
    for place, path in enumerate(paths):
        start = time.perf_counter()
        try:
            pixels = read_image(Path(base, path), scorer.loaded)
        except Exception as error:  # damaged files raise whatever their format's reader comes across
            failed.append({"path": shown(path), "reason": shown(str(error) or type(error).__name__)})
            continue
        if batch and batch[0].pixels.shape != pixels.shape:
            yield batch
            batch = []
        if not batch:
            at_once = scorer.images_per_call(*pixels.shape[:2])
        batch.append(_Image(shown(path), place, pixels, time.perf_counter() - start))
        if len(batch) == at_once:
            yield batch
            batch = []
    if batch:
        yield batch


def _score_one_by_one(scorer: Scorer, batch: list[_Image], maps: Path | None, scored: ScoredImages) -> None:
    """Score the images of a batch on which the model failed, to find out which of them it fails on."""
    for image in batch:
        try:
            scored.rows += _rows(scorer, [image], maps)
        except Exception as error:
            _raise_if_general(error)
            height, width = image.pixels.shape[:2]
            reason = f"The model failed on an image of {width} × {height}: {error} Try: --size."
            scored.failed.append({"path": image.path, "reason": reason})


def _raise_if_general(error: Exception) -> None:
    """Raise what would come back with every image, as a full disk does; an InputError is of the image at hand."""
    if isinstance(error, OSError) or (isinstance(error, SitaError) and not isinstance(error, InputError)):
        raise error


def _rows(scorer: Scorer, batch: list[_Image], maps: Path | None) -> list[dict[str, Any]]:
    start = time.perf_counter()
    answers = scorer.answer(np.stack([image.pixels for image in batch]))
    rows = _map_rows(scorer, answers, batch, maps) if scorer.segments else _label_rows(scorer, answers, batch)
    share = (time.perf_counter() - start) / len(batch)
    for row, image in zip(rows, batch, strict=True):
        row["milliseconds"] = 1e3 * (image.seconds + share)
    return rows


def _label_rows(scorer: Scorer, answers: Answers, batch: list[_Image]) -> list[dict[str, Any]]:
    adapted = answers.adapted
    classes = adapted.probabilities.shape[-1]
    return [
        {
            "path": image.path,
            "label": (label := int(adapted.labels[place])),
            "class_name": scorer.name(label, classes),
            "probability": float(adapted.probabilities[place, label]),
            "entropy": float(adapted.entropies[place]),
            "prior": _mean(adapted.priors, place),
            "source_label": None if answers.source is None else int(answers.source.labels[place]),
            "source_probability": None if answers.source is None else float(answers.source.confidences[place]),
        }
        for place, image in enumerate(batch)
    ]


def _map_rows(scorer: Scorer, answers: Answers, batch: list[_Image], maps: Path | None) -> list[dict[str, Any]]:
    """Return means over the pixels; the labels are those of most pixels."""
    from ..label_maps import write_label_map

    adapted, rows = answers.adapted, []
    classes = adapted.probabilities.shape[-1]
    for place, image in enumerate(batch):
        labels = adapted.labels[place]
        source = None if answers.source is None else answers.source.labels[place]
        label = int(np.bincount(labels.ravel()).argmax())
        file = None
        if maps is not None:
            maps.mkdir(parents=True, exist_ok=True)
            file = maps / f"{image.place:05d}-{Path(image.path).stem[:100]}.png"
            write_label_map(file, labels, classes)
        rows.append(
            {
                "path": image.path,
                "label": label,
                "class_name": scorer.name(label, classes),
                "probability": _mean(adapted.confidences, place),
                "entropy": float(adapted.entropies[place].mean()),
                "prior": _mean(adapted.priors, place),
                "source_label": None if source is None else int(np.bincount(source.ravel()).argmax()),
                "source_probability": None if answers.source is None else _mean(answers.source.confidences, place),
                "changed": None if source is None else float((labels != source).mean()),
                "map": None if file is None else str(Path(*file.parts[-3:])),
            }
        )
    return rows


def _mean(values: np.ndarray | None, place: int) -> float | None:
    return None if values is None else float(values[place].mean())


def row_schema(segments: bool = False) -> pa.Schema:
    """Return the columns of a part. Label maps have two more: the share of pixels that changed, and the map's file."""
    import pyarrow as pa

    maps = [("changed", pa.float64()), ("map", pa.string())] if segments else []
    return pa.schema(
        [
            ("path", pa.string()),
            ("label", pa.int32()),
            ("class_name", pa.string()),
            ("probability", pa.float64()),
            ("entropy", pa.float64()),
            ("prior", pa.float64()),
            ("source_label", pa.int32()),
            ("source_probability", pa.float64()),
            *maps,
            ("milliseconds", pa.float64()),
        ]
    )


def failed_schema() -> pa.Schema:
    """Return the columns of `failed.parquet`."""
    import pyarrow as pa

    return pa.schema([("path", pa.string()), ("reason", pa.string())])


def _write(path: Path, rows: list[dict[str, Any]] | list[dict[str, str]], schema: pa.Schema) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with write_atomically(path) as temporary:
        pq.write_table(pa.Table.from_pylist(rows, schema=schema), temporary, write_page_checksum=True)
