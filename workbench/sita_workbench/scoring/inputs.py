"""The list of images to score: a folder, a Parquet file, or a text file."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from sita_adapters.errors import InputError

COLUMN = "path"
"""The column of a Parquet file that holds the paths."""


def list_paths(given: str | PathLike[str] | Iterable[str | PathLike[str]]) -> list[str]:
    """Return the paths of a set of images, in order; one that is listed twice is there twice.

    - a folder: every image file in it and in its folders, sorted.
    - `FILE.parquet`: those of its column `path`.
    - any other file: one path per line.
    - several paths: these, as they are.
    """
    if not isinstance(given, str | PathLike):
        paths = [fspath(path) for path in given]
        return _require(paths, "the list that was given")
    source = Path(given)
    if source.is_dir():
        from ..commands.image_files import find_images

        return [str(path) for path in find_images([source])]
    if not source.is_file():
        raise InputError(f"input: expected a folder, a .parquet file or a list of paths; there is no {source}.")
    paths = _read_parquet(source) if source.suffix.lower() in (".parquet", ".pq") else _read_lines(source)
    return _require(paths, str(source))


def _read_lines(source: Path) -> list[str]:
    text = os.fsdecode(source.read_bytes().removeprefix(codecs.BOM_UTF8))
    if "\0" in text:
        raise InputError(f"input: expected text, one path per line; {source} is a binary file.")
    lines = text.splitlines()
    return [line.strip() for line in lines if line.strip()]


def _read_parquet(source: Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(source) as file:
            names: list[str] = file.schema_arrow.names
            column: Any = file.read(columns=[COLUMN]).column(COLUMN) if COLUMN in names else None
    except (OSError, pa.ArrowException) as error:
        raise InputError(f"input: {source} cannot be read as Parquet: {error}.") from error
    if column is None:
        raise InputError(f"input: expected a column {COLUMN!r} in {source}; it has {', '.join(names)}.")
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)):
        raise InputError(f"input: expected text in the column {COLUMN!r} of {source}; received {kind}.")
    if column.null_count:
        raise InputError(f"input: {column.null_count} rows of the column {COLUMN!r} of {source} are empty.")
    paths: list[str] = column.to_pylist()
    return paths


def _require(paths: list[str], where: str) -> list[str]:
    if not paths:
        raise InputError(f"input: expected at least one path in {where}; received none.")
    return paths
