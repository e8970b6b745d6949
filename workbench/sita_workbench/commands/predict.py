"""`sita predict`: the predictions of an adapted model, beside those of the source model."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sita_adapters.errors import InputError, SitaError, suggestion
from sita_adapters.recipe import DEFAULT, RECIPES

from .image_files import find_damaged, find_images, read_image
from .options import AnyModel, PixelInputs, Providers, Side, TaskName, Trust, Weights, read_providers, require

if TYPE_CHECKING:
    from sita_adapters.recipe import Task

    from ..predictor import Predictor
    from .prediction import Answer


_MANY_ROWS = 4
"""A recipe that runs more rows for an image takes so long that it is said beforehand."""


def predict(
    model: AnyModel,
    images: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGE", exists=True, help="Image files, or folders of them.", show_default=False),
    ],
    *,
    weights: Weights = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"One of {', '.join(RECIPES)}. By default {DEFAULT}; an exported file has its own.",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="The classes' names, one per line.", show_default=False),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Show this many classes of each answer, the likeliest first.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    corrupt: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Corrupt the images first; sita corruptions --list.", show_default=False),
    ] = None,
    severity: Annotated[int, typer.Option(min=1, max=5, help="How much to corrupt them.")] = 5,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Draws what is random in a corruption.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="Segmentation: write the label maps here, as PNG.", show_default=False),
    ] = None,
    task: TaskName = None,
    inputs: PixelInputs = None,
    size: Side = None,
    crop: Annotated[
        float | None,
        typer.Option(
            min=0.01, max=1.0, help="Keep this share of the shorter side, not the usual one.", show_default=False
        ),
    ] = None,
    trust: Trust = False,
    providers: Providers = None,
) -> None:
    """Label images with an adapted model, beside the source model.

    Each image is adapted to by itself. The table shows its label, the
    probability, the entropy of the prediction in nats (0: certain), and λ,
    the prior of the most certain candidate (1: the image is like the training
    images; the lower, the stranger). Beside it stands the source model's
    prediction, marked ≠ where it differs. Images are resized and cropped as
    the model expects them. Of a segmentation model the table shows the share
    of each label. An exported file says λ, and what the source model answers,
    if it was written with --diagnostics. Images that cannot be read are named and
    left out; the exit code is then 1.

    Examples:
      sita predict cifar10-resnet20 cat.png --weights resnet20.safetensors
      sita predict timm:resnet50 photos/ --weights pretrained --top 3
      sita predict keras:ResNet50 cat.jpg --weights resnet50.weights.h5 \\
        --labels imagenet.txt --corrupt fog --severity 4
      sita predict net.py:build street.jpg --out maps --json
      sita predict resnet50.onnx cat.jpg
    """
    require("PIL", "scipy")
    from ..data.images import ImageError
    from ..methods import open_recipe
    from ..predictor import NoAnswerError
    from ..progress import ConsoleProgress
    from .prediction import predict_file
    from .prediction_report import PredictionReport

    open_recipe(recipe or DEFAULT, task or "classification")
    _check_kind(corrupt)
    errors = Console(stderr=True)
    progress = ConsoleProgress(errors)
    paths = find_images(images)
    damaged = find_damaged(paths)
    for reason in damaged.values():
        progress.say(f"Left out: {reason}")
    names = None if labels is None else read_names(labels)
    with errors.status(f"Loading {model} …"):
        predictor = _load(
            model,
            recipe,
            weights=weights,
            inputs=inputs,
            size=size,
            task=task,
            crop=crop,
            trust=trust,
            providers=read_providers(providers),
        )
    loaded = predictor.loaded
    if out is not None and loaded.task != "segmentation":
        raise InputError(f"--out is for label maps; {model} gives one label per image. Try: leave it out, or --json.")
    if predictor.rows > _MANY_ROWS:
        progress.say(
            f"Every image runs as {predictor.rows} rows: about {predictor.rows} times the model's own time."
            + ("" if loaded.file else f" The default recipe, {DEFAULT}, is several times as fast.")
        )
    answers: list[Answer] = []
    readable = [path for path in paths if path not in damaged]
    with progress.track(f"{len(readable)} images, {predictor.rows} rows each", len(readable)) as advance:
        for path in readable:
            try:
                pixels = read_image(path, loaded)
                if corrupt is not None:
                    from ..corruptions import corrupt as corrupt_image

                    # Random parts follow from the pixels: the same file gives the same answer in any list.
                    pixels = corrupt_image(pixels, corrupt, severity, seed=seed, index=zlib.crc32(pixels.tobytes()))
                answers.append(predict_file(predictor, path, pixels))
            except (ImageError, NoAnswerError) as error:
                damaged[path] = str(error) if isinstance(error, ImageError) else f"{path}: {error}"
                progress.say(f"Left out: {damaged[path]}")
            else:
                known = _check_names(names, loaded.names, answers[0].classes)
            advance()
    if not answers:
        raise InputError(f"None of {len(paths)} images got an answer. The first: {next(iter(damaged.values()))}")
    maps = None if out is None else _write_maps(answers, out)
    corrupted = "" if corrupt is None else f"{corrupt}, severity {severity}"
    report = PredictionReport(loaded, predictor.recipe, answers, known, top, corrupted, maps, damaged)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2, ensure_ascii=False))
    else:
        report.print(Console(highlight=False))
    if damaged:
        raise SitaError(f"{len(damaged)} of {len(paths)} images got no answer: they are named above.")


def _load(
    model: str,
    recipe: str | None,
    *,
    weights: str | None,
    inputs: str | None,
    size: int | None,
    task: Task | None,
    crop: float | None,
    trust: bool,
    providers: list[str] | None,
) -> Predictor:
    from ..models.loading import load_model
    from ..predictor import open_predictor

    loaded = load_model(model, weights, inputs=inputs, size=size, exported=True, trust=trust, providers=providers)
    return open_predictor(replace(loaded, task=task or loaded.task, crop=crop or loaded.crop), recipe)


def _check_kind(corrupt: str | None) -> None:
    from ..corruptions import CORRUPTIONS

    if corrupt is not None and corrupt not in CORRUPTIONS:
        raise InputError(
            f"--corrupt: expected one of {', '.join(CORRUPTIONS)}; received {corrupt!r}."
            f"{suggestion(corrupt, CORRUPTIONS)}"
        )


def read_names(path: Path) -> tuple[str, ...]:
    """Return the names of the classes, one per line of a file."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except ValueError as error:
        raise InputError(f"--labels: expected a text file, one name per line; received {path}: {error}.") from error
    while lines and not lines[-1].strip():
        lines.pop()
    return tuple(line.strip() for line in lines)


def _check_names(given: tuple[str, ...] | None, known: tuple[str, ...], classes: int) -> tuple[str, ...]:
    """Return a name for every class, or none at all."""
    if given is not None and len(given) != classes:
        raise InputError(f"--labels: expected a name for each of the model's {classes} classes; received {len(given)}.")
    names = known if given is None else given
    return names if len(names) == classes else ()


def _write_maps(answers: Sequence[Answer], folder: Path) -> list[Path]:
    """Write every label map as a PNG whose values are the labels, with a palette."""
    from ..label_maps import write_label_map

    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for answer in answers:
            same = sum(path.stem.split("~")[0] == answer.path.stem for path in written)
            path = folder / f"{answer.path.stem}{f'~{same + 1}' if same else ''}.png"
            write_label_map(path, answer.adapted.labels, answer.classes)
            written.append(path)
    except OSError as error:
        raise SitaError(f"The label maps could not be written: {error}") from error
    return written
