"""The options by which commands are told of a model, the same in all of them."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from sita_adapters.inputs import ENCODINGS
from sita_adapters.recipe import RECIPES

ModelSpec = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="timm:NAME, torchvision:NAME, torchvision:segmentation.NAME, keras:NAME, cifar10-resnet20 (or 32, 44, 56, "
        "110), or file.py:function: a function of yours that returns the model, or the model and a dict with any of "
        "inputs, size, crop, task, scores.",
        show_default=False,
    ),
]

Weights = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="A file (.safetensors, .pt, .pth, .npz, .weights.h5, .keras), pretrained (a download), or random. A "
        "function of yours brings its own.",
        show_default=False,
    ),
]

RecipeName = Annotated[str, typer.Option(metavar="NAME", help=f"One of {', '.join(RECIPES)}.")]

PixelInputs = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help=f"How pixels are encoded, where the model is not known for it: {', '.join(ENCODINGS)}.",
        show_default=False,
    ),
]

Side = Annotated[
    int | None,
    typer.Option(min=1, help="Height and width of its images, instead of its usual.", show_default=False),
]

TaskName = Annotated[
    Literal["classification", "segmentation"] | None,
    typer.Option(
        metavar="TASK",
        help="classification or segmentation (a label a pixel), where the model does not say.",
        show_default=False,
    ),
]
