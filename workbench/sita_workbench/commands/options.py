"""Options that several commands share, and checks before the work starts."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import typer

from sita_adapters.errors import InputError, SitaError, install
from sita_adapters.inputs import ENCODINGS
from sita_adapters.recipe import DEFAULT, RECIPES

USUAL_SIDE = 224
"""The side of an example image where a model takes any size."""

_RECIPES = f"One of {', '.join(RECIPES)}, or a file that sita calibrate wrote."

ModelSpec = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="timm:NAME, torchvision:NAME, torchvision:segmentation.NAME, keras:NAME, cifar10-resnet20 (or 32, 44, 56, "
        "110), camvid-roadnet, digits (the demo's network), or file.py:function: your own function that returns the "
        "model, or the model and a dict with any of inputs, size, crop, task, scores.",
    ),
]

AnyModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model as sita inspect takes it (timm:NAME, keras:NAME, file.py:function, …), or an .onnx file that "
        "sita export wrote.",
    ),
]

Weights = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A file (.safetensors, .pt, .weights.h5, …), pretrained (downloaded) or random."),
]

Trust = Annotated[
    bool, typer.Option("--trust", help="Also open files that can execute code: pickles, Lambda layers (SECURITY.md).")
]

Providers = Annotated[
    str | None,
    typer.Option(metavar="NAME,…", help="What onnxruntime runs an .onnx file on, by preference; CUDA,CPU for example."),
]

RecipeName = Annotated[str, typer.Option(metavar="NAME", help=_RECIPES)]

OptionalRecipe = Annotated[
    str | None, typer.Option(metavar="NAME", help=f"{_RECIPES} By default {DEFAULT}; an exported file has its own.")
]

Labels = Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="The class names, one per line.")]

PixelInputs = Annotated[
    str | None, typer.Option(metavar="NAME", help=f"How pixels are encoded, if not as usual: {', '.join(ENCODINGS)}.")
]

Side = Annotated[int | None, typer.Option(min=1, help="Height and width of the images, instead of the usual size.")]

Crop = Annotated[
    float | None, typer.Option(min=0.01, max=1.0, help="The share of the shorter side that the center crop keeps.")
]

TaskName = Annotated[
    Literal["classification", "segmentation"] | None,
    typer.Option(metavar="TASK", help="classification or segmentation (a label per pixel), if the model does not say."),
]


def read_providers(providers: str | None) -> tuple[str, ...]:
    """Return the names that are separated by commas."""
    return tuple(name.strip() for name in (providers or "").split(",") if name.strip())


def read_names(path: Path | None) -> tuple[str, ...]:
    """Return the class names in a file, one per line; none without a file."""
    if path is None:
        return ()
    try:
        lines = path.read_text(encoding="utf-8-sig").rstrip().splitlines()
    except ValueError as error:
        raise InputError(f"--labels: expected a text file, one name per line; received {path}: {error}.") from error
    return tuple(line.strip() for line in lines)


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
