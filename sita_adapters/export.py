"""export(): an adapted model as one file that runs without this library."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .api import describe
from .backend import Backend, backend_of
from .description import Description
from .errors import ExportError, SitaError, install, suggestion
from .plan import refuse_resampling

TITLES = {"onnx": "ONNX", "pt2": "torch.export", "litert": "LiteRT", "saved_model": "SavedModel"}
"""The formats, and what a reader calls them."""

SUFFIXES = {".onnx": "onnx", ".pt2": "pt2", ".tflite": "litert", ".litert": "litert", "": "saved_model"}
"""The format of each file suffix. A SavedModel is a folder."""


@dataclass(frozen=True)
class Exported:
    """The file that `export` wrote. Use it wherever a path is accepted; print it for a summary.

    Attributes:
        path: Where the file is.
        format: "onnx", "pt2", "litert" or "saved_model".
        input_shape: The shape of the images that it takes; None stands for any number.
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
    """Write an adapted model to a file that takes a batch of any number of images and returns their predictions.

    The file contains the views, the blending and the combination of candidates. It needs neither this library nor the
    model's code. If anything fails, no partial file is left behind, and an existing file stays as it was. The file is
    not run: compare its answers with the adapted model's before you deploy it. `sita export` does both.

    Args:
        adapted: A model that `sita.adapt` returned.
        path: The file to write. Its suffix selects the format. PyTorch: `.onnx` or `.pt2` (torch.export). Keras:
            `.onnx`, `.tflite` or `.litert`, or a folder name without a suffix (SavedModel).
        example: A batch of images as the adapted model takes them. PyTorch requires one, and its height and width are
            those of the file. Keras requires one only if the model leaves height or width open.
        format: "onnx", "pt2", "litert" or "saved_model", if the suffix does not say it.
        diagnostics: Whether the file also returns how far each image is from the training images: `prior` and
            `entropy`, (N,) or one map per image, and `source`, the source model's scores, if λ = 1 is a candidate.
            The outputs have these names in the file; the model's own output is called `scores` if it is the only one.

    Returns:
        The path, format and input shape of the file.

    Raises:
        ExportError: The model cannot be exported to this format, or the file cannot be written.
        NotAdaptedError: `adapted` is a plain model.

    Example:
        >>> images = torch.rand(2, 3, 224, 224)
        >>> exported = sita.export(sita.adapt(model), "model.onnx", example=images)
        >>> exported.input_shape
        (None, 3, 224, 224)
    """
    backend, target = backend_of(adapted), Path(path)
    description = describe(adapted)
    if description.recipe.resample:
        raise refuse_resampling("An exported model")
    if description.max_rows is not None:
        raise ExportError(
            "Expected a model that runs all rows at once, as an exported file does; received one that was adapted with "
            f"max_rows={description.max_rows}. Try: adapt without max_rows, and give the file fewer images at a time."
        )
    chosen = resolve_format(target, format, backend, description)
    with replacing(target, chosen) as temporary:
        try:
            images = backend.read_example(adapted, example)
            backend.write(backend.with_diagnostics(adapted) if diagnostics else adapted, temporary, chosen, images)
        except SitaError:
            raise
        except Exception as error:
            others = ", ".join(TITLES[other] for other in backend.export_formats if other != chosen)
            raise ExportError(
                f"The adapted model could not be exported to {TITLES[chosen]}: {first_line(error)} Try: export the "
                f"source model the same way. If that fails too, use another format ({others}); if not, report a bug."
            ) from error
    return Exported(target, chosen, (None, *images.shape[1:]))


def resolve_format(path: Path, format: str | None, backend: Backend, description: Description) -> str:
    """Return the format to write: the one that was asked for, or the one of the path's suffix."""
    possible = backend.export_formats
    model = f"a {description.backend.split()[0]} model"
    if format is not None:
        if format in possible:
            return format
        raise ExportError(
            f"format: expected one of {', '.join(map(repr, possible))} for {model}; received {format!r}."
            f"{suggestion(str(format), possible)}"
        )
    found = SUFFIXES.get(path.suffix.lower())
    if found in possible and path.name:
        return found
    suffixes = [suffix or "no suffix (a SavedModel's folder)" for suffix, kind in SUFFIXES.items() if kind in possible]
    raise ExportError(
        f"Expected a name that ends in {', '.join(suffixes)} for {model}; received {str(path)!r}. "
        "Try: another name, or format=."
    )


@contextlib.contextmanager
def replacing(target: Path, format: str) -> Iterator[Path]:
    """Yield a temporary path beside the target to write to; put it in the target's place if the block succeeds."""
    _check_destination(target, format)
    target = target.resolve()
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.stem}-", dir=target.parent))
    except OSError as error:
        raise ExportError(f"Cannot write next to {str(target)!r}: {error}. Try: another folder.") from error
    try:
        suffix = next(suffix for suffix, kind in SUFFIXES.items() if kind == format)
        temporary, old = folder / f"model{suffix}", folder / "replaced"
        yield temporary
        if target.is_dir():
            target.rename(old)  # removed with the temporary folder
        try:
            os.replace(temporary, target)
        except OSError as error:
            if old.is_dir():
                old.rename(target)
            raise ExportError(f"{str(target)!r} could not be written: {error}. Try: another folder.") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_destination(path: Path, format: str) -> None:
    """Raise before the work begins if the file cannot be put where it belongs."""
    parent = path.resolve().parent
    if not parent.is_dir():
        raise ExportError(f"Expected a folder to write to; {str(parent)!r} does not exist. Try: create it first.")
    replaceable = path.is_file()
    if format == "saved_model":
        replaceable = path.is_dir() and (not any(path.iterdir()) or (path / "saved_model.pb").is_file())
    if path.exists() and not replaceable:
        raise ExportError(
            f"Expected a new name, or the {TITLES[format]} to replace; {str(path)!r} is something else. "
            "Try: another name."
        )


def require_exporter(*packages: str, to: str) -> None:
    """Raise an ExportError unless the packages that write a format are installed."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ExportError(
            f"Export to {TITLES[to]} needs {', '.join(missing)}, which is not installed. "
            f"Try: {install('export')}, or pip install {' '.join(missing)}."
        )


def first_line(error: BaseException) -> str:
    """Return the first informative line of an error as a sentence."""
    lines = str(error).replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    stripped = [line.strip(" .=-") for line in lines if not line.startswith("Exception encountered when calling")]
    return next(filter(None, stripped), type(error).__name__) + "."
