"""`sita calibrate`: a recipe for a model, chosen on clean images of the user."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from sita_adapters.errors import InputError, SitaWarning

from .image_files import check_images, find_images, read_image
from .options import ModelSpec, PixelInputs, Side, TaskName, Trust, Weights, require

if TYPE_CHECKING:
    from ..models.loaded import LoadedModel


def calibrate(
    model: ModelSpec,
    images: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="IMAGE",
            exists=True,
            help="64 to 256 clean image files, or folders of them: like those that the model was trained on.",
            show_default=False,
        ),
    ] = None,
    *,
    weights: Weights = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="Instead of image files, labelled images as sita bench takes them: imagefolder:DIR, npz:FILE, … Then "
            "the labels say which predictions are right.",
            show_default=False,
        ),
    ] = None,
    min_agreement: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="The share of predictions on these images that must stay.")
    ] = 0.9,
    limit: Annotated[int, typer.Option(min=16, help="At most so many images, at even distances.")] = 128,
    out: Annotated[Path, typer.Option(dir_okay=False, help="The recipe, for --recipe of the other commands.")] = Path(
        "recipe.json"
    ),
    task: TaskName = None,
    inputs: PixelInputs = None,
    size: Side = None,
    trust: Trust = False,
) -> None:
    """Choose the recipe for a model, from clean images of yours.

    It measures, layer by layer, how far clean images are from the model's
    statistics: only what is further off is adapted. This is tried in one row
    and in two, and compared with the default, on your images and on corrupted
    copies of them. Labels are not needed: a prediction counts as right if it
    is the model's own on the clean image. A row more must gain a point.

    Examples:
      sita calibrate timm:resnet50 photos/ --weights pretrained
      sita calibrate cifar10-resnet20 --weights resnet20.safetensors
          --data npz:test_1000.npz
      sita predict timm:resnet50 foggy.jpg --weights pretrained
          --recipe recipe.json

    In Python: sita.calibrate(model, images), and Recipe.from_json.
    """
    require("PIL", "scipy")
    if bool(images) == bool(data):
        raise InputError("Expected image files or --data, and not both; received " + ("both." if data else "neither."))
    import sita_adapters as sita

    from ..files import write_text
    from ..models.loading import load_model
    from ..progress import ConsoleProgress

    paths = find_images(images or [])
    check_images(paths)
    console, errors = Console(highlight=False), Console(stderr=True)
    with errors.status(f"Loading {model} …"):
        loaded = load_model(model, weights, inputs=inputs, size=size, trust=trust)
        loaded = replace(loaded, task=task or loaded.task)
    pixels, labels = _read_data(data, limit, loaded) if data else (_read_all(paths, limit, loaded), None)
    with ConsoleProgress(errors).track(f"Trying recipes on {len(pixels)} images", 100) as advance:
        done = 0

        def show(share: float) -> None:
            nonlocal done
            advance(round(100 * share) - done)
            done = round(100 * share)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SitaWarning)  # the command says it below
            recipe = sita.calibrate(
                loaded.model,
                loaded.arrange(loaded.encode(pixels)),
                labels,
                min_agreement=min_agreement,
                progress=show,
                task=loaded.task,
                inputs=loaded.inputs,
                scores=loaded.scores,
            )
    write_text(out, recipe.to_json() + "\n")
    console.print(Text(recipe.notes), soft_wrap=True)
    if recipe.name == "source":
        said = (
            f"No recipe keeps {min_agreement:.0%} of the predictions and gains: {out} is the recipe 'source', which "
            "adapts nothing. Try: a lower --min-agreement, or other images."
        )
    else:
        said = f"Wrote {out}: {recipe}. Use it: --recipe {out}, or Recipe.from_json in Python."
    console.print(Text(said), soft_wrap=True)


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
