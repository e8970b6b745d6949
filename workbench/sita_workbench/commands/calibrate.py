"""`sita calibrate`: how far to adapt, chosen on clean images of the user."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sita_adapters.errors import InputError, SitaWarning

from .image_files import check_images, find_images, read_image
from .options import ModelSpec, PixelInputs, Side, TaskName, Trust, Weights, require

if TYPE_CHECKING:
    from sita_adapters import Recipe
    from sita_adapters.calibrate import Calibration

    from ..models.loaded import LoadedModel

_KINDS = ("gaussian_noise", "defocus_blur", "fog", "contrast", "jpeg_compression")
_SEVERITY = 4


def calibrate(
    model: ModelSpec,
    images: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="IMAGE",
            exists=True,
            help="32 to 256 clean image files, or folders of them: like those that the model was trained on.",
            show_default=False,
        ),
    ] = None,
    *,
    weights: Weights = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Instead of image files, labelled images as sita bench takes them: imagefolder:DIR, npz:FILE, … Then "
            "their accuracy must stay, not every prediction.",
            show_default=False,
        ),
    ] = None,
    min_agreement: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="The share of predictions that must stay unchanged.")
    ] = 0.98,
    recipe: Annotated[
        str, typer.Option(metavar="NAME", help="What is calibrated: auto, shift, or a file with a rule for λ.")
    ] = "auto",
    limit: Annotated[int, typer.Option(min=16, help="At most so many images, at even distances.")] = 128,
    trial: Annotated[
        bool, typer.Option("--trial/--no-trial", help="Try the chosen recipe on corruptions of these very images.")
    ] = True,
    out: Annotated[Path, typer.Option(dir_okay=False, help="The recipe, for --recipe of the other commands.")] = Path(
        "recipe.json"
    ),
    task: TaskName = None,
    inputs: PixelInputs = None,
    size: Side = None,
    trust: Trust = False,
) -> None:
    """Choose how strongly to adapt a model, from clean images of yours.

    Adaptation improves predictions on shifted images, and may spoil those on
    clean ones. How strong it can be differs by network. This tries one
    strength after the other, from the strongest, and takes the first that
    keeps 98 % (--min-agreement) of the predictions on these images unchanged.
    Labels are not needed. If none does, the recipe is source: no adaptation.

    Examples:
      sita calibrate timm:resnet50 photos/ --weights pretrained
      sita calibrate cifar10-resnet20 --weights resnet20.safetensors
          --data npz:test_1000.npz --min-agreement 0.99
      sita predict timm:resnet50 foggy.jpg --weights pretrained
          --recipe recipe.json

    In Python: sita.calibrate(model, images).recipe, and Recipe.from_json.
    """
    require("PIL", "scipy")
    if bool(images) == bool(data):
        raise InputError("Expected image files or --data, and not both; received " + ("both." if data else "neither."))
    import sita_adapters as sita

    from ..files import write_text
    from ..methods import open_recipe
    from ..models.loading import load_model
    from ..progress import ConsoleProgress

    chosen = open_recipe(recipe, task or "classification")
    paths = find_images(images or [])
    check_images(paths)
    console, errors = Console(highlight=False), Console(stderr=True)
    with errors.status(f"Loading {model} …"):
        loaded = load_model(model, weights, inputs=inputs, size=size, trust=trust)
        loaded = replace(loaded, task=task or loaded.task)
    pixels, labels = _read_data(data, limit, loaded) if data else (_read_all(paths, limit, loaded), None)
    with errors.status(f"Trying strengths on {len(pixels)} images …"), warnings.catch_warnings():
        warnings.simplefilter("ignore", SitaWarning)  # if none keeps the predictions, the command says so below
        found = sita.calibrate(
            loaded.model,
            loaded.arrange(loaded.encode(pixels)),
            labels,
            min_agreement=min_agreement,
            recipe=chosen,
            task=loaded.task,
            inputs=loaded.inputs,
            scores=loaded.scores,
        )
    console.print(_table(found, "unchanged" if labels is None else "accuracy"))
    write_text(out, found.recipe.to_json() + "\n")
    for line in _verdict(found, min_agreement, len(pixels), out):
        console.print(Text(line), soft_wrap=True)
    if trial and found.recipe.name != "source":
        with ConsoleProgress(errors).track("Corrupted images", len(_KINDS)) as advance:
            console.print(_try(loaded, found.recipe, pixels, labels, advance))


def _read_all(paths: list[Path], limit: int, loaded: LoadedModel) -> np.ndarray:
    """Return images in bytes (N, h, w, 3), all of one size."""
    step = max(1, -(-len(paths) // limit))
    images = [read_image(path, loaded) for path in paths[::step]]
    sizes = sorted({f"{image.shape[1]} × {image.shape[0]}" for image in images})
    if len(sizes) > 1:
        raise InputError(
            f"{loaded.spec} takes images of any size, and these have several: {', '.join(sizes[:4])}. Try: --size."
        )
    return np.stack(images)


def _read_data(spec: str, limit: int, loaded: LoadedModel) -> tuple[np.ndarray, np.ndarray]:
    from ..data.dataset import CLEAN
    from ..data.opening import open_data

    data = open_data(spec, corrupt="none", limit=limit, size=loaded.size, crop=loaded.crop)
    return data.read(CLEAN, 0, len(data))


def _table(found: Calibration, what: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in ("λ", what):
        table.add_column(heading, justify="right", no_wrap=True)
    for recipe, share in found.tried:
        prior = "1 (source)" if recipe.name == "source" else _prior(recipe)
        table.add_row(Text(prior), f"{share:.1%}", style="bold" if recipe == found.recipe else "")
    return table


def _prior(recipe: Recipe) -> str:
    from sita_adapters.recipe import prior_text

    return ", ".join(map(prior_text, recipe.prior_values))


def _verdict(found: Calibration, min_agreement: float, count: int, out: Path) -> list[str]:
    if found.recipe.name == "source":
        return [
            f"No strength keeps {min_agreement:.0%} of the predictions on these {count} images: {out} is the recipe "
            "'source', which adapts nothing. Try: a lower --min-agreement, or other images."
        ]
    return [f"{found.recipe}", f"Wrote {out}. Use it: --recipe {out}, or Recipe.from_json in Python."]


def _try(loaded: LoadedModel, recipe: Recipe, pixels: np.ndarray, labels: np.ndarray | None, advance: Any) -> Table:
    """Return how many answers on corrupted images are right; without labels, are the source's on the clean image."""
    from sita_adapters.recipe import resolve_recipe

    from ..corruptions import corrupt_all
    from ..methods import SOURCE, Method, prepare

    source = prepare(Method(SOURCE, resolve_recipe(SOURCE, {}, loaded.task)), loaded)
    adapted = prepare(Method("calibrated", recipe), loaded)
    truth = source.predict(loaded.encode(pixels)).labels if labels is None else labels
    what = "as on the clean image" if labels is None else "right"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(f"severity {_SEVERITY}: answers that are {what}", no_wrap=True)
    for heading in ("source", "calibrated"):
        table.add_column(heading, justify="right", no_wrap=True)
    shares = []
    for kind in _KINDS:
        images = loaded.encode(corrupt_all(pixels, kind, _SEVERITY))
        shares.append([float((method.predict(images).labels == truth).mean()) for method in (source, adapted)])
        table.add_row(kind, *(f"{share:.1%}" for share in shares[-1]))
        advance()
    table.add_section()
    table.add_row("mean", *(f"{share:.1%}" for share in np.mean(shares, axis=0)), style="bold")
    return table
