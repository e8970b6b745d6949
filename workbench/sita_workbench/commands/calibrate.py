"""`sita calibrate`: a recipe for a model, chosen on clean images of the user."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from sita_adapters.errors import InputError, SitaWarning

from . import options
from .image_files import find_images, read_image

if TYPE_CHECKING:
    from ..models.loaded import LoadedModel


def calibrate(
    model: options.ModelSpec,
    images: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGE", exists=True, help="Clean image files, or folders of them. Use at least 128."),
    ],
    *,
    weights: options.Weights = None,
    min_agreement: Annotated[
        float, typer.Option(min=0.01, max=1.0, help="The share of predictions on these images that must not change.")
    ] = 0.9,
    limit: Annotated[int, typer.Option(min=16, help="Use at most this many images, evenly spaced.")] = 128,
    out: Annotated[Path, typer.Option(dir_okay=False, help="The file for the recipe. Pass it to --recipe.")] = Path(
        "recipe.json"
    ),
    task: options.TaskName = None,
    inputs: options.PixelInputs = None,
    size: options.Side = None,
    trust: options.Trust = False,
) -> None:
    """Choose a recipe for your model from clean images, without labels.

    It measures the shift of your clean images in every layer. The calibrated
    recipe adapts only to larger shifts. It is tried with one row and with two,
    and compared with the default on your images and on corrupted copies of
    them. A prediction counts as right if it equals the source model's
    prediction on the clean image. If you have labels, use sita.calibrate in
    Python.

    Examples:
      sita calibrate timm:resnet50 photos/ --weights pretrained
      sita predict timm:resnet50 foggy.jpg --weights pretrained \\
        --recipe recipe.json
    """
    options.require("PIL", "scipy")
    import sita_adapters as sita

    from ..files import write_text
    from ..models.loading import load_model
    from ..progress import ConsoleProgress

    paths = find_images(images)
    progress = ConsoleProgress(Console(stderr=True))
    with progress.console.status(f"Loading {model} …"):
        loaded = load_model(model, weights, inputs=inputs, size=size, task=task, trust=trust)
        pixels = _read(paths, limit, loaded)
    shares = [0]
    with progress.track(f"Trying recipes on {len(pixels)} images", 100) as advance, warnings.catch_warnings():

        def show(share: float) -> None:
            shares.append(round(100 * share))
            advance(shares[-1] - shares[-2])

        warnings.simplefilter("ignore", SitaWarning)  # what it says is printed below
        recipe = sita.calibrate(
            loaded.model,
            loaded.arrange(loaded.encode(pixels)),
            min_agreement=min_agreement,
            progress=show,
            task=loaded.task,
            inputs=loaded.inputs,
            scores=loaded.scores,
        )
    write_text(out, recipe.to_json() + "\n")
    advice = f"Use it: --recipe {out}, or Recipe.from_json in Python."
    if recipe.name == "source":
        advice = "It does not adapt: no other recipe qualified. Try: a lower --min-agreement, or other images."
    Console(highlight=False).print(Text(f"{recipe.notes}\nWrote {out}: {recipe}. {advice}"), soft_wrap=True)


def _read(paths: list[Path], limit: int, loaded: LoadedModel) -> np.ndarray:
    """Return images in bytes (N, h, w, 3), all of one size."""
    step = -(-len(paths) // limit)
    images = [read_image(path, loaded) for path in paths[::step]]
    sizes = sorted({f"{image.shape[1]} × {image.shape[0]}" for image in images})
    if len(sizes) > 1:
        raise InputError(f"Expected images of one size; received {', '.join(sizes[:4])}. Try: --size.")
    return np.stack(images)
