"""`sita calibrate`: a recipe for a model, chosen on clean images of the user."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from sita_adapters.errors import InputError

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
    movement: Annotated[
        float,
        typer.Option(min=0.01, max=1.0, help="How far outputs for clean images may move. A larger share adapts more."),
    ] = 0.15,
    limit: Annotated[int, typer.Option(min=16, help="Use at most this many images, evenly spaced.")] = 128,
    out: Annotated[Path, typer.Option(dir_okay=False, help="The file for the recipe. Pass it to --recipe.")] = Path(
        "recipe.json"
    ),
    task: options.TaskName = None,
    inputs: options.PixelInputs = None,
    size: options.Side = None,
    trust: options.Trust = False,
) -> None:
    """Measure a recipe with one row for your model, on clean images without labels.

    A channel whose statistics vary from one clean image to the next says little
    about shift, and then follows an image less. How much less is set such that
    the outputs for clean images hardly move: by 15% of the distance between
    the outputs for two images. A table compares the recipe with the source
    model on corrupted copies of some of your images. There, a prediction counts
    as right if it equals the source model's prediction on the clean image. If
    you have labels, use sita.calibrate in Python.

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
    with progress.track(f"Measuring {len(pixels)} images", 100) as advance:

        def show(share: float) -> None:
            shares.append(round(100 * share))
            advance(shares[-1] - shares[-2])

        recipe = sita.calibrate(
            loaded.model,
            loaded.arrange(loaded.encode(pixels)),
            movement=movement,
            progress=show,
            task=loaded.task,
            inputs=loaded.inputs,
            scores=loaded.scores,
        )
    write_text(out, recipe.to_json() + "\n")
    advice = f"Use it: --recipe {out}, or Recipe.from_json in Python."
    Console(highlight=False).print(Text(f"{recipe.notes}\nWrote {out}: {recipe}. {advice}"), soft_wrap=True)


def _read(paths: list[Path], limit: int, loaded: LoadedModel) -> np.ndarray:
    """Return images in bytes (N, h, w, 3), all of one size."""
    step = -(-len(paths) // limit)
    images = [read_image(path, loaded) for path in paths[::step]]
    sizes = sorted({f"{image.shape[1]} × {image.shape[0]}" for image in images})
    if len(sizes) > 1:
        raise InputError(f"Expected images of one size; received {', '.join(sizes[:4])}. Try: --size.")
    return np.stack(images)
