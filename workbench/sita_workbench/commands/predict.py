"""`sita predict`: the predictions of an adapted model and of the source model."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sita_adapters.errors import InputError, SitaError
from sita_adapters.recipe import DEFAULT

from . import options
from .image_files import find_images, read_image

if TYPE_CHECKING:
    from ..methods import Prediction
    from ..models.loaded import LoadedModel
    from ..predictor import Predictions, Predictor
    from ..progress import Progress


def predict(
    model: options.AnyModel,
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE", exists=True, help="Image files, or folders of them.")
    ],
    *,
    weights: options.Weights = None,
    recipe: options.OptionalRecipe = None,
    labels: options.Labels = None,
    top: Annotated[int, typer.Option(min=1, help="Show this many classes for each image.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    corrupt: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Corrupt the images first. sita corruptions --list shows the kinds."),
    ] = None,
    severity: Annotated[int, typer.Option(min=1, max=5, help="The severity of the corruption.")] = 5,
    out: Annotated[
        Path | None, typer.Option(file_okay=False, help="For segmentation: write label maps to this folder, as PNG.")
    ] = None,
    task: options.TaskName = None,
    inputs: options.PixelInputs = None,
    size: options.Side = None,
    crop: options.Crop = None,
    trust: options.Trust = False,
    providers: options.Providers = None,
) -> None:
    """Label images with the adapted model and with the source model.

    The model adapts to each image independently. The table shows:
      p        the probability of the label
               (for label maps, share: the share of pixels with the label)
      entropy  the uncertainty in nats; 0 is certain
      λ        the prior of the most confident candidate; near 1, the image
               is similar to the training images
      ≠        marks labels that differ from the source model's

    An exported file shows λ and the source model's prediction only if it was
    written with --diagnostics. Images that cannot be labeled are skipped, and
    the exit code is then 1.

    Examples:
      sita predict timm:resnet50 photos/ --weights pretrained --top 3
      sita predict keras:ResNet50 cat.jpg --weights resnet50.weights.h5 \\
        --labels imagenet.txt --corrupt fog --severity 4
      sita predict net.py:build street.jpg --out maps --json
      sita predict resnet50.onnx cat.jpg
    """
    options.require("PIL", "scipy")
    from ..methods import open_recipe
    from ..models.loading import load_model
    from ..predictor import open_predictor
    from ..progress import ConsoleProgress

    open_recipe(recipe or DEFAULT, task or "classification")  # reports a wrong name before a model is loaded
    paths, names = find_images(images), None if labels is None else options.read_names(labels)
    progress = ConsoleProgress(Console(stderr=True))
    with progress.console.status(f"Loading {model} …"):
        files: dict[str, Any] = {"exported": True, "trust": trust, "providers": options.read_providers(providers)}
        loaded = load_model(model, weights, inputs=inputs, size=size, task=task, **files)
        predictor = open_predictor(replace(loaded, crop=crop or loaded.crop), recipe)
    if out is not None:
        _check_maps(paths, loaded)
    entries, failed = _Labeling(predictor, names, top, corrupt, severity, out).run(paths, progress)
    report: dict[str, Any] = {"model": loaded.spec, "weights": loaded.weights, "recipe": predictor.recipe}
    report |= {"corrupted": f"{corrupt}, severity {severity}" if corrupt else None, "images": entries, "failed": failed}
    if as_json:
        typer.echo(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print_table(report, Console(highlight=False))
    if failed:
        raise SitaError(f"{len(failed)} of {len(paths)} images have no prediction: see the messages above.")


def _check_maps(paths: Sequence[Path], loaded: LoadedModel) -> None:
    """Raise if label maps cannot be written for these images."""
    if len({path.stem for path in paths}) < len(paths):
        raise InputError(
            "--out: two images have the same name, so their label maps would, too. Try: one folder at a time."
        )
    if loaded.task != "segmentation":
        what = f"--out is for label maps; {loaded.spec} returns one label per image"
        raise InputError(f"{what}. Try: omit it, or use --json.")


@dataclass(frozen=True)
class _Labeling:
    """What is done with every image: corrupt it, predict, and write a label map to the folder `maps`."""

    predictor: Predictor
    names: tuple[str, ...] | None
    top: int
    corruption: str | None
    severity: int
    maps: Path | None

    def run(self, paths: Sequence[Path], progress: Progress) -> tuple[list[dict[str, Any]], list[dict[str, str]]]:
        """Return the predictions as JSON, and the images without one with the reasons."""
        from ..data.images import ImageError
        from ..predictor import NoAnswerError

        entries: list[dict[str, Any]] = []
        failed: list[dict[str, str]] = []
        with progress.track(f"{len(paths)} images, {self.predictor.rows} rows each", len(paths)) as advance:
            for path in paths:
                try:
                    found = self.predictor.answer(self._read(path)[None])
                except (ImageError, NoAnswerError) as error:
                    failed.append({"file": str(path), "reason": str(error)})
                    progress.say(f"Skipped {path}: {error}")
                else:
                    names = _check_names(self.names, self.predictor.loaded.names, found)
                    entries.append(_make_entry(path, found, names, self.top, self.maps))
                advance()
        if not entries:
            raise InputError(f"None of the {len(paths)} images could be labeled. First error: {failed[0]['reason']}")
        return entries, failed

    def _read(self, path: Path) -> np.ndarray:
        """Return an image, corrupted. Random parts depend on the pixels: a file gives the same result in any list."""
        from ..corruptions import corrupt

        pixels = read_image(path, self.predictor.loaded)
        if self.corruption is None:
            return pixels
        return corrupt(pixels, self.corruption, self.severity, index=zlib.crc32(pixels.tobytes()))


def _check_names(given: tuple[str, ...] | None, known: tuple[str, ...], found: Predictions) -> tuple[str, ...]:
    """Return a name for every class, or none at all."""
    classes = found.adapted.probabilities.shape[-1]
    if given is not None and len(given) != classes:
        raise InputError(f"--labels: expected a name for each of the model's {classes} classes; received {len(given)}.")
    names = known if given is None else given
    return names if len(names) == classes else ()


def _make_entry(path: Path, found: Predictions, names: tuple[str, ...], top: int, maps: Path | None) -> dict[str, Any]:
    """Return an image's predictions as JSON, and write its label map. A file without diagnostics has fewer entries."""
    from ..label_maps import write_label_map

    adapted, source = found.adapted, found.source
    entry: dict[str, Any] = {"file": str(path), "adapted": _summarize(adapted, names, top)}
    if adapted.priors is not None:
        entry["prior"] = float(adapted.priors[0].mean())
    if source is not None:
        changed = adapted.labels[0] != source.labels[0]
        entry["changed"] = float(changed.mean()) if changed.ndim else bool(changed)
        entry["source"] = _summarize(source, names, top)
    if maps is not None:
        maps.mkdir(parents=True, exist_ok=True)
        entry["map"] = str(maps / f"{path.stem}.png")
        write_label_map(maps / f"{path.stem}.png", adapted.labels[0], adapted.probabilities.shape[-1])
    return entry


def _summarize(predicted: Prediction, names: tuple[str, ...], top: int) -> dict[str, Any]:
    """Return the most probable classes of an image; for a label map, the labels with the largest shares."""
    labels, values, key = predicted.labels[0], predicted.probabilities[0], "probability"
    if labels.ndim:
        values, key = np.bincount(labels.ravel(), minlength=values.shape[-1]) / labels.size, "share"
    order = np.argsort(-values, kind="stable")[:top].tolist()
    ranked = [{"label": n, "name": names[n] if names else None, key: float(values[n])} for n in order]
    return {**ranked[0], "entropy": float(predicted.entropies[0].mean()), "top": ranked}


def _print_table(report: dict[str, Any], console: Console) -> None:
    """Print the predictions as a table, with a line about the model above it and a summary below it."""
    entries = report["images"]
    corrupted = f", images corrupted by {report['corrupted']}" if report["corrupted"] else ""
    console.print(Text(f"{report['model']}, weights: {report['weights']}{corrupted}"), soft_wrap=True)
    table = _make_table(entries, report["recipe"].partition(":")[0])
    if not console.is_terminal:  # nothing limits the width: file names stay in one piece
        needed = console.measure(table, options=console.options.update(width=10_000)).maximum
        console.width = max(console.width, needed)
    console.print(table)
    if "changed" in entries[0] and len(entries) > 1:
        share = np.mean([entry["changed"] for entry in entries])
        console.print(f"{100 * share:.1f} % of the labels differ from the source model's (≠).")
    if report["weights"] == "random":
        console.print("The weights are random, so these predictions are meaningless.")


def _make_table(entries: list[dict[str, Any]], recipe: str) -> Table:
    """Return a table with the adapted model's predictions, λ, and the source model's, as far as they are known."""
    value = "share" if "share" in entries[0]["adapted"] else "p"
    headings = ["image", recipe, value, "entropy"]
    headings += ["λ"] if "prior" in entries[0] else []
    headings += ["≠", "source", value, "entropy"] if "source" in entries[0] else []
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for heading in headings:
        number = heading in (value, "entropy", "λ", "≠")
        table.add_column(heading, overflow="fold", justify="right" if number else "left", no_wrap=number)
    for entry in entries:
        cells = [Text(Path(entry["file"]).name), *_cells(entry["adapted"])]
        cells += [Text(f"{entry['prior']:.2f}")] if "prior" in entry else []
        if "source" in entry:
            changed = entry["changed"]
            mark = "≠" if changed is True else f"{100 * changed:.1f} %" if changed else ""
            cells += [Text(mark, "bold yellow"), *_cells(entry["source"])]
        table.add_row(*cells)
    return table


def _cells(summary: dict[str, Any]) -> list[Text]:
    """Return the labels and their probabilities or shares, one line each, and the entropy of a prediction."""
    parts = summary["top"]
    labels = [f"{part['label']} {part['name'] or ''}".rstrip() for part in parts]
    values = [f"{100 * part['share']:.1f} %" if "share" in part else f"{part['probability']:.2f}" for part in parts]
    return [Text("\n".join(labels)), Text("\n".join(values)), Text(f"{summary['entropy']:.2f}")]
