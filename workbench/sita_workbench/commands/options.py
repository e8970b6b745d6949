"""Options that several commands share, and checks before the work starts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from sita_adapters.errors import SitaError, install
from sita_adapters.inputs import ENCODINGS
from sita_adapters.recipe import RECIPES

USUAL_SIDE = 224
"""The side of an example image where a model takes any size."""

ModelSpec = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="timm:NAME, torchvision:NAME, torchvision:segmentation.NAME, keras:NAME, cifar10-resnet20 (or 32, 44, 56, "
        "110), camvid-roadnet, digits (the demo's network), or file.py:function: your own function that returns the "
        "model, or the model and a dict with any of inputs, size, crop, task, scores.",
        show_default=False,
    ),
]

AnyModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="As for sita inspect: timm:NAME, torchvision:NAME, keras:NAME, cifar10-resnet20, file.py:function, …; or "
        "a file that sita export wrote (.onnx, .pt2, .tflite, a SavedModel's folder), which contains its weights "
        "and its recipe.",
        show_default=False,
    ),
]

Weights = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="A file (.safetensors, .pt, .pth, .weights.h5, .keras), pretrained (a download), or random. Your "
        "own function returns a model with weights.",
        show_default=False,
    ),
]

Trust = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Open files that can execute code when they are loaded, too: pickles, .pt2, Lambda layers. "
        "SECURITY.md says which files execute what.",
    ),
]

Providers = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,…",
        help="What onnxruntime runs an .onnx file on, by preference: CUDA,CPU for one. By default the CPU.",
        show_default=False,
    ),
]

RecipeName = Annotated[
    str, typer.Option(metavar="NAME", help=f"One of {', '.join(RECIPES)}, or a file that sita calibrate wrote.")
]

PixelInputs = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"How pixels are encoded, instead of the model's usual encoding: {', '.join(ENCODINGS)}.",
        show_default=False,
    ),
]

Side = Annotated[
    int | None,
    typer.Option(min=1, help="Height and width of the images, instead of the model's usual size.", show_default=False),
]

TaskName = Annotated[
    Literal["classification", "segmentation"] | None,
    typer.Option(
        metavar="TASK",
        help="classification or segmentation (one label per pixel), where the model does not say.",
        show_default=False,
    ),
]


def read_providers(providers: str | None) -> list[str] | None:
    """Return the names that are separated by commas."""
    return None if providers is None else [name.strip() for name in providers.split(",") if name.strip()]


def require(*packages: str, extra: str = "bench") -> None:
    """Raise unless these import packages are installed; the message names the extra that installs them."""
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise SitaError(f"This command needs {', '.join(missing)}. Try: {install(extra)}")


def check_picture(path: Path, formats: tuple[str, ...]) -> None:
    """Raise, before the work starts, where the picture could not be written."""
    if path.suffix.lower() not in formats:
        raise typer.BadParameter(
            f"expected a name that ends in {', '.join(formats)}; received {str(path)!r}.", param_hint="'--out'"
        )
    if not path.resolve().parent.is_dir():
        raise typer.BadParameter(f"the folder {str(path.parent)!r} does not exist.", param_hint="'--out'")
