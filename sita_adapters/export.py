"""export(): an adapted model as one file that runs without this library: views, blending and vote are in the graph."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .backend import Backend, adaptation_of, backend_of
from .diagnostics import NAMES
from .errors import ExportError, SitaError, install, suggestion
from .ops import Array
from .plan import resampling_error

TITLES = {"onnx": "ONNX", "pt2": "torch.export", "litert": "LiteRT", "saved_model": "SavedModel"}

SUFFIXES = {".onnx": "onnx", ".pt2": "pt2", ".tflite": "litert", ".litert": "litert", "": "saved_model"}
"""The format by the ending of a file's name. A SavedModel is a folder."""

_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Exported:
    """What `export` wrote. It can be used as a path.

    `input_shape` is what the file takes; None means any number.
    """

    path: Path
    format: str
    input_shape: tuple[int | None, ...]

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __str__(self) -> str:
        shape = ", ".join("N" if size is None else str(size) for size in self.input_shape)
        return f"{self.path}: {TITLES[self.format]}, images ({shape})"


def export(
    adapted: Any,
    path: str | os.PathLike[str],
    *,
    example: Any = None,
    format: str | None = None,
    diagnostics: bool = False,
) -> Exported:
    """Write an adapted model to a file that takes a batch of images and returns their predictions.

    The file contains the views, the blending and the vote, and needs neither this library nor the model's code. If
    anything fails, no partial file is left behind, and an existing file stays as it was. (The command `sita export`
    also runs the file and compares its answers.)

    Args:
        adapted: A model that `adapt` returned.
        path: Its ending sets the format. PyTorch: `.onnx` or `.pt2` (torch.export). Keras: `.onnx`, `.tflite` or
            `.litert`, or a folder without an ending (SavedModel).
        example: A batch of images as the adapted model takes them. PyTorch needs one, which fixes height and width;
            Keras only if the model leaves these open.
        format: "onnx", "pt2", "litert" or "saved_model", if the ending doesn't say it.
        diagnostics: Also return `prior` and `entropy` (of the most confident candidate) and `source` (the source
            model's scores, if λ = 1 is a candidate), by these names. A single output of the model is called `scores`.

    Returns:
        What was written.

    Raises:
        SitaError: The model cannot be exported, or the file cannot be written there.

    Example:
        >>> print(sita.export(adapted, "model.onnx", example=images))
        model.onnx: ONNX, images (N, 3, 224, 224)
    """
    backend, adaptation = backend_of(adapted), adaptation_of(adapted)
    if adaptation.recipe.resample:
        raise resampling_error("An exported model")
    if adaptation.settings.max_rows is not None:
        raise ExportError(
            "max_rows: an exported graph runs all rows at once; received a model adapted with max_rows="
            f"{adaptation.settings.max_rows}. Try: adapt without max_rows, and give the file fewer images at a time."
        )
    target = Path(path)
    chosen = resolve_format(target, format, backend)
    with replacing(target, chosen) as made:
        try:
            shape = backend.write(adapted, made, chosen, example, diagnostics)
        except SitaError:
            raise
        except Exception as error:
            others = ", ".join(TITLES[other] for other in backend.export_formats if other != chosen)
            raise ExportError(
                f"The adapted model could not be exported to {TITLES[chosen]}: {type(error).__name__}: {error} Try: "
                f"another format ({others}), and check that the plain model can be exported to this one."
            ) from error
    return Exported(target, chosen, shape)


@contextmanager
def replacing(target: Path, format: str) -> Iterator[Path]:
    """Yield a temporary path; what is written there takes the place of `target` if nothing fails."""
    target = target.resolve()
    replaceable = format != "saved_model"
    if target.is_dir():
        replaceable = not replaceable and (not any(target.iterdir()) or (target / "saved_model.pb").is_file())
    if target.exists() and not replaceable:
        raise ExportError(
            f"Expected a new name, or the name of a file of this format; {str(target)!r} is "
            f"{'a folder of something else' if target.is_dir() else 'a file'}. Try: another name."
        )
    folder = None
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.stem}-", dir=target.parent))
        ending = next(ending for ending, kind in SUFFIXES.items() if kind == format)
        made, old = folder / f"model{ending}", folder / "replaced"
        yield made
        if more := [path.name for path in folder.iterdir() if path != made]:
            raise ExportError(
                f"The exporter wrote further files ({', '.join(more[:3])}): the model is too large for one."
            )
        if target.is_dir():
            target.rename(old)
        os.replace(made, target)
    except OSError as error:
        if folder is not None and old.is_dir():
            old.rename(target)
        raise ExportError(
            f"{str(target)!r} could not be written: {error.strerror or error}. Try: another name or folder."
        ) from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


def require_exporter(*packages: str, to: str) -> None:
    """Raise an ExportError unless these packages, which write a format, are installed."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ExportError(
            f"Export to {TITLES[to]} needs {', '.join(missing)}, not installed here. "
            f"Try: {install('export')}, or pip install {' '.join(missing)}."
        )


def name_outputs(own: Sequence[tuple[str, Array]], diagnostics: Mapping[str, Array]) -> dict[str, Array]:
    """Return a model's outputs, given with their paths, and the diagnostics, by their names in a file.

    A single output is called `scores`. Others have their paths as names; one in a list has a number instead, which not
    every format allows, and is called `output_0`, …
    """
    names = [
        "scores" if len(own) == 1 else path if _NAME.fullmatch(path) else f"output_{place}"
        for place, (path, _) in enumerate(own)
    ]
    if diagnostics and (taken := sorted({*names} & {*NAMES})):
        raise ExportError(
            f"diagnostics: the model has an output called {', '.join(taken)}, like one of the diagnostics. "
            "Try: adapt a module that names it otherwise, or export without diagnostics."
        )
    return {name: array for name, (_, array) in zip(names, own, strict=True)} | dict(diagnostics)


def resolve_format(path: Path, format: str | None, backend: Backend) -> str:
    """Return the format that the caller named, or that the path's ending sets."""
    possible = backend.export_formats
    if format is not None and format not in possible:
        raise ExportError(
            f"format: expected one of {', '.join(map(repr, possible))} for a model of {backend.label}; received "
            f"{format!r}.{suggestion(str(format), possible)}"
        )
    found = format or SUFFIXES.get(path.suffix.lower())
    if found in possible and path.name:
        return found
    endings = [ending or "no ending (a SavedModel's folder)" for ending, kind in SUFFIXES.items() if kind in possible]
    raise ExportError(
        f"Expected a name that ends in {', '.join(endings)} for a model of {backend.label}; received {str(path)!r}. "
        "Try: another name, or format=."
    )
