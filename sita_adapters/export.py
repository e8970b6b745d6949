"""export(): write an adapted model to one file that runs without this library.

The graph contains the views, the blending and the vote.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .backend import Backend, adaptation_of, backend_of
from .diagnostics import NAMES
from .errors import ExportError, SitaError, install
from .ops import Array

TITLES = {"onnx": "ONNX", "pt2": "torch.export", "litert": "LiteRT", "saved_model": "SavedModel"}
SUFFIXES = {".onnx": "onnx", ".pt2": "pt2", ".tflite": "litert", ".litert": "litert", "": "saved_model"}
"""File formats by suffix. A SavedModel is a folder, which has none."""


@dataclass(frozen=True)
class Exported:
    """What `export` wrote. You can use it as a path.

    Attributes:
        path: The file or folder.
        format: "onnx", "pt2", "litert" or "saved_model".
        input_shape: The shape of the images that the file takes. None stands for any number.
    """

    path: Path
    format: str
    input_shape: tuple[int | None, ...]

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __str__(self) -> str:
        shape = ", ".join("N" if size is None else str(size) for size in self.input_shape)
        return f"{self.path}: {TITLES[self.format]}, images ({shape})"


def export(adapted: Any, path: str | os.PathLike[str], *, example: Any = None, diagnostics: bool = False) -> Exported:
    """Write an adapted model to a file that takes images and returns predictions, and runs without this library.

    If anything fails, no partial file is left behind, and an existing file is unchanged. The command `sita export` also
    runs the file and compares its answers with the adapted model's.

    Args:
        adapted: A model that `adapt` returned.
        path: The suffix sets the format. PyTorch: `.onnx` or `.pt2` (torch.export). Keras: `.onnx`, `.tflite` or
            `.litert`, or a folder without a suffix (SavedModel).
        example: A batch of images. PyTorch needs it, and its height and width become fixed. Keras needs it only if the
            model's input shape leaves height or width open.
        diagnostics: Also return `prior` and `entropy` (of the most confident candidate) and `source` (the source
            model's scores, if λ = 1 is a candidate). If the model has a single output, it is named `scores`.

    Returns:
        The path, the format and the shape of the images, as an `Exported`.

    Raises:
        SitaError: The model cannot be exported, or the file cannot be written.

    Example:
        >>> print(sita.export(adapted, "model.onnx", example=images))
        model.onnx: ONNX, images (N, 3, 224, 224)
    """
    backend, adaptation = backend_of(adapted), adaptation_of(adapted)
    if (most := adaptation.settings.max_rows) is not None:
        raise ExportError(f"max_rows={most}: an exported graph runs all rows at once. Try: adapt without max_rows.")
    target, chosen = Path(path), resolve_format(Path(path), backend)
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
    """Yield a temporary path. The file written there replaces `target` if nothing fails."""
    target, ending = target.resolve(), next(ending for ending, kind in SUFFIXES.items() if kind == format)
    is_folder = format == "saved_model"
    if target.exists() and (target.is_dir() != is_folder or (is_folder and any(target.iterdir()))):
        what = "a folder" if target.is_dir() else "a file"
        raise ExportError(f"{str(target)!r} is already {what}. Try: another name, or remove it first.")
    try:
        with tempfile.TemporaryDirectory(prefix=".sita-", dir=target.parent, ignore_cleanup_errors=True) as folder:
            made = Path(folder, f"model{ending}")
            yield made
            if more := [path.name for path in Path(folder).iterdir() if path != made]:
                raise ExportError(f"The exporter wrote several files ({more[0]}, …): the model is too large for one.")
            made.replace(target)
    except OSError as error:
        raise ExportError(f"{str(target)!r} could not be written: {error}. Try: another name or folder.") from error


def require_exporter(*packages: str, to: str) -> None:
    """Raise an ExportError unless these packages, which write a format, are installed."""
    if missing := [package for package in packages if find_spec(package) is None]:
        message = f"Export to {TITLES[to]} needs missing packages: {', '.join(missing)}."
        raise ExportError(f"{message} Try: {install('export')}, or pip install {' '.join(missing)}.")


def name_outputs(own: Sequence[tuple[str, Array]], diagnostics: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays of an exported file by name: the model's outputs, given with their paths, and the diagnostics.

    A single output is named `scores`. Others are named by their paths, or `output_0`, … if a path is not an identifier.
    """
    paths = ["scores"] if len(own) == 1 else [path for path, _ in own]
    names = [path if path.isidentifier() else f"output_{place}" for place, path in enumerate(paths)]
    if diagnostics and (taken := sorted({*names} & {*NAMES})):
        raise ExportError(f"diagnostics: the model already outputs {taken[0]!r}. Try: export without diagnostics.")
    return {name: array for name, (_, array) in zip(names, own, strict=True)} | dict(diagnostics)


def resolve_format(path: Path, backend: Backend) -> str:
    """Return the format for the path's suffix."""
    endings = {ending: kind for ending, kind in SUFFIXES.items() if kind in backend.export_formats}
    if path.suffix.lower() in endings and path.name:
        return endings[path.suffix.lower()]
    expected = ", ".join(ending or "no ending (a SavedModel's folder)" for ending in endings)
    raise ExportError(f"Expected a name that ends in {expected} for a {backend.label} model; received '{path}'.")
