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
"""The side of an example image if a model takes any size."""

_RECIPES = f"One of {', '.join(RECIPES)}, or a file from sita calibrate."

ModelSpec = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="timm:NAME, torchvision:NAME, torchvision:segmentation.NAME, keras:NAME, cifar10-resnet20 (or 32, 44, 56, "
        "110), camvid-roadnet, digits (the demo's network; digits:keras in "
        "Keras), or file.py:function. The function takes no arguments and returns your model, or (model, dict). The "
        "dict may have the keys inputs, size, crop, task and scores.",
    ),
]

AnyModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model (timm:NAME, keras:NAME, file.py:function, …; sita inspect --help lists all), or an .onnx file "
        "from sita export.",
    ),
]

Weights = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="A file (.safetensors, .pt, .weights.h5, …), pretrained (downloads weights), or random."
    ),
]

Trust = Annotated[
    bool, typer.Option("--trust", help="Also open files that can execute code: pickles and Lambda layers.")
]

Providers = Annotated[
    str | None,
    typer.Option(
        metavar="NAME,…", help="For an .onnx file: onnxruntime's execution providers in order of preference (CUDA,CPU)."
    ),
]

RecipeName = Annotated[str, typer.Option(metavar="NAME", help=_RECIPES)]

OptionalRecipe = Annotated[
    str | None,
    typer.Option(metavar="NAME", help=f"{_RECIPES} The default is {DEFAULT}. An .onnx file contains its recipe."),
]

Labels = Annotated[
    Path | None, typer.Option(exists=True, dir_okay=False, help="A text file with the class names, one per line.")
]

PixelInputs = Annotated[
    str | None,
    typer.Option(metavar="NAME", help=f"The pixel encoding, if not the model's default: {', '.join(ENCODINGS)}."),
]

Side = Annotated[
    int | None, typer.Option(min=1, help="The height and width of the images, if not the model's default.")
]

Crop = Annotated[
    float | None, typer.Option(min=0.01, max=1.0, help="The share of the shorter side that the center crop keeps.")
]

TaskName = Annotated[
    Literal["classification", "segmentation"] | None,
    typer.Option(
        metavar="TASK", help="classification or segmentation (a label per pixel), if the model does not define it."
    ),
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
    """Raise before the work starts if the picture could not be written."""
    if path.suffix.lower() not in formats:
        raise typer.BadParameter(
            f"expected a name that ends in {', '.join(formats)}; received {str(path)!r}.", param_hint="'--out'"
        )
    if not path.resolve().parent.is_dir():
        raise typer.BadParameter(f"the folder {str(path.parent)!r} does not exist.", param_hint="'--out'")
