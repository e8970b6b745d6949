"""export(): an adapted model as one file that runs without this library: views, blending and vote are in the graph."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .api import describe
from .backend import Backend, backend_of
from .card import KEY, Card, card_path
from .description import Description
from .errors import ExportError, SitaError, install, suggestion
from .export_check import TITLES, Check, make_check, verify
from .plan import make_plan, refuse_resampling
from .runtimes import RUNTIMES, SUFFIXES, Shape, first_line, installed_runtime
from .views import SpatialKind, spatial_kind

_NATIVE_SUFFIX = {"onnx": ".onnx", "pt2": ".pt2", "torchscript": ".pt", "litert": ".tflite", "saved_model": ""}


@dataclass(frozen=True)
class Exported:
    """What `export` wrote. Print it for a sentence; use it wherever a path goes.

    - `input_shape`: what the file takes; None where any number goes.
    - `difference`: the largest of a probability from the adapted model's, as its runtime answered; None where that is
      not installed, so that nothing was compared.
    """

    path: Path
    format: str
    input_shape: Shape
    difference: float | None

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def __str__(self) -> str:
        shape = ", ".join("N" if size is None else str(size) for size in self.input_shape)
        if self.difference is None:
            checked = f"not checked: {' or '.join(RUNTIMES[self.format])} is not installed"
        else:
            checked = f"checked: within {self.difference:.0e} of the adapted model's answers"
        return f"{self.path}: {TITLES[self.format]}, images ({shape}); {checked}"


def export(
    adapted: Any,
    path: str | os.PathLike[str],
    *,
    example: Any = None,
    format: str | None = None,
    verdict: bool = False,
) -> Exported:
    """Write an adapted model to a file that takes a batch of images, of any number, and returns their predictions.

    It holds the views, the blending and the vote, and needs neither this library nor the model's code. What was written
    is run once and compared with the adapted model; where it answers otherwise, or anything else fails, a file that
    was there before stays as it was.

    - `path`: its ending says the format. PyTorch: `.onnx`, `.pt2` (torch.export), `.pt`, `.ts` or `.torchscript`.
      Keras: `.onnx`, `.tflite` or `.litert`, or a folder's name without an ending (SavedModel).
    - `example`: a batch of images as the adapted model takes them. PyTorch needs one, which fixes their height and
      width; Keras only where the model leaves these open.
    - `format`: "onnx", "pt2", "torchscript", "litert" or "saved_model", where the ending does not say it.
    - `verdict`: put out, beside the scores, what tells how far an image is from the training images, as
      `sita.observe` has it: `prior` and `entropy`, (N,) or a map per image, and `source`, the scores of the source
      model, where λ = 1 is a candidate. The outputs have these names in the file; an only output of the model's own is
      called `scores`.

    >>> print(sita.export(adapted, "model.onnx", example=images))
    """
    return export_with_card(adapted, path, example, format, verdict=verdict)


def export_with_card(
    adapted: Any,
    path: str | os.PathLike[str],
    example: Any,
    format: str | None = None,
    about: Mapping[str, Any] | None = None,
    *,
    verdict: bool = False,
) -> Exported:
    """As `export`. `about`, fields of `Card`, is kept with the file.

    An ONNX file has a card in any case; any other gets one, beside it, if `about` is given.
    """
    backend = backend_of(adapted)
    description = describe(adapted)
    _check_exportable(description)
    target = Path(path)
    chosen = _read_format(target, format, backend, description)
    _check_place(target, chosen)
    with _temporary_directory(target) as folder:
        made = folder / f"model{_NATIVE_SUFFIX[chosen]}"
        check = _write(backend, adapted, made, chosen, example, verdict=verdict)
        card = _make_card(description, backend, check, about or {})
        if chosen == "onnx":
            _write_metadata(made, card)
        difference = None
        if installed_runtime(chosen) is not None:
            difference = verify(made, chosen, check, description, backend.ops.class_axis)
        beside = folder / "card.json"
        beside.write_text(card.to_json(), encoding="utf-8")
        _move(made, target)
        if chosen != "onnx" and (about is not None or card_path(target).is_file()):
            _move(beside, card_path(target))
    return Exported(target, chosen, check.input_shape, difference)


def require_exporter(*packages: str, to: str) -> None:
    """Raise an ExportError unless these packages, which write a format, are installed."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise ExportError(
            f"Export to {TITLES[to]} needs {', '.join(missing)}, not installed here. "
            f"Remedy: {install('export')}, or pip install {' '.join(missing)}."
        )


def _check_exportable(description: Description) -> None:
    if description.recipe.resample:
        raise refuse_resampling("An exported model")
    if description.max_rows is not None:
        raise ExportError(
            f"max_rows: an exported graph runs all rows at once; received a model adapted with max_rows="
            f"{description.max_rows}. Remedy: adapt without max_rows, and give the file fewer images at a time."
        )


def _read_format(path: Path, format: str | None, backend: Backend, description: Description) -> str:
    possible = backend.export_formats
    if format is not None:
        if format in possible:
            return format
        raise ExportError(
            f"format: expected one of {', '.join(map(repr, possible))} for {_article(description)} model; received "
            f"{format!r}.{suggestion(str(format), possible)}"
        )
    found = SUFFIXES.get(path.suffix.lower())
    if found in possible and path.name:
        return found
    endings = [ending or "no ending (a SavedModel's folder)" for ending, kind in SUFFIXES.items() if kind in possible]
    raise ExportError(
        f"Expected a name that ends in {', '.join(endings)} for {_article(description)} model; received {str(path)!r}. "
        "Remedy: another name, or format=."
    )


def _article(description: Description) -> str:
    return f"a {description.backend.split()[0]}"


def _check_place(path: Path, format: str) -> None:
    """Find out before the work whether the file can be put where it shall be."""
    parent = path.resolve().parent
    if not parent.is_dir():
        raise ExportError(f"Expected a folder to write to; {str(parent)!r} does not exist. Remedy: make it first.")
    if not os.access(parent, os.W_OK):
        raise ExportError(f"The folder {str(parent)!r} cannot be written to. Remedy: another folder.")
    if format != "saved_model":
        if path.is_dir():
            raise ExportError(f"Expected the name of a file; {str(path)!r} is a folder. Remedy: another name.")
    elif path.is_file() or (path.is_dir() and any(path.iterdir()) and not (path / "saved_model.pb").is_file()):
        raise ExportError(
            f"Expected a new folder, an empty one, or a SavedModel to replace; {str(path)!r} holds something else. "
            "Remedy: another name."
        )


@contextlib.contextmanager
def _temporary_directory(path: Path) -> Iterator[Path]:
    """Give a folder beside `path`, and remove it again, whatever happens."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{path.stem}-", dir=path.resolve().parent))
    except OSError as error:
        raise ExportError(f"Nothing can be written beside {str(path)!r}: {error}. Remedy: another folder.") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _move(made: Path, target: Path) -> None:
    """Put what was made in its place. A folder that is there is moved to the temporary one, and removed with it."""
    target, old = target.resolve(), made.with_name("replaced")
    if target.is_dir():
        target.rename(old)
    try:
        os.replace(made, target)
    except OSError as error:
        if old.is_dir():
            old.rename(target)
        raise ExportError(f"{str(target)!r} could not be written: {error}. Remedy: another place.") from error


def _write(backend: Backend, adapted: Any, path: Path, format: str, example: Any, *, verdict: bool) -> Check:
    """Write the file, and run the adapted model on what it is to be checked with."""
    try:
        images = backend.read_example(adapted, example)
        written = backend.with_verdict(adapted) if verdict else adapted
        backend.write(written, path, format, images)
        return make_check(backend, adapted, written, images)
    except SitaError:
        raise
    except Exception as error:
        raise ExportError(
            f"The adapted model could not be exported to {TITLES[format]}: {first_line(error)} Remedy: where the "
            f"plain model cannot be exported either, {_others(backend, format)}; else report it to us."
        ) from error


def _others(backend: Backend, format: str) -> str:
    others = [TITLES[other] for other in backend.export_formats if other != format]
    return f"another format ({', '.join(others)})"


def _make_card(description: Description, backend: Backend, check: Check, about: Mapping[str, Any]) -> Card:
    """Return a card with what is known of the adapted model and of the file, and what the caller adds."""
    known = Card(
        recipe=str(description.recipe),
        scores=description.scores,
        class_axis=backend.ops.class_axis,
        scores_place=check.scores_place or 0,
        input_shape=check.input_shape,
        inputs=description.inputs,
        verdict=check.verdict,
        rows=make_plan(description.recipe, _kind(description, check.input_shape, backend.ops.class_axis)).rows,
    )
    return replace(known, **about)


def _kind(description: Description, shape: Shape, channel_axis: int) -> SpatialKind:
    """Return what the adapted model takes images of this shape for, which decides their views."""
    if len(description.kinds) == 1:
        return description.kinds[0]
    return spatial_kind([size or 0 for place, size in enumerate(shape) if place not in (0, channel_axis % len(shape))])


def _write_metadata(path: Path, card: Card) -> None:
    """Write the card into an ONNX file."""
    import onnx

    model = onnx.load(str(path))
    entry = model.metadata_props.add()
    entry.key, entry.value = KEY, card.to_json()
    onnx.save(model, str(path))
