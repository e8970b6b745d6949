"""`sita corruptions`: what the corruptions do to an image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from .options import check_picture, require

if TYPE_CHECKING:
    import numpy as np

_SIDE = 224
"""Larger images are resized to this shorter side, because the strengths are made for it."""


def corruptions(
    *,
    image: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="Your own image. By default, a photograph of a flower."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The file to write: a .png, .pdf or .svg file.", dir_okay=False)] = Path(
        "sita-corruptions.png"
    ),
    list_: Annotated[bool, typer.Option("--list", help="Print the names of the corruptions and exit.")] = False,
) -> None:
    """See what the corruptions of sita bench do to an image.

    It draws one sheet that shows an image under 19 corruptions at severity 1
    to 5. Of these, 15 come from ImageNet-C and CIFAR-10-C (noise, blur,
    weather, digital). Use the other 4 (holdout) to choose settings, so you
    can test on the 15. sita predict --corrupt applies the same corruptions.

    Examples:
      sita corruptions
      sita corruptions --image cat.jpg --out cat.png
      sita corruptions --list
    """
    require("scipy", "PIL", "matplotlib", "sklearn")
    from ..corruptions import FAMILIES, HOLDOUT, sheet

    console = Console(highlight=False)
    if list_:
        for family, kinds in (FAMILIES | {"holdout": HOLDOUT}).items():
            console.print(f"{family}: {', '.join(kinds)}")
        return
    check_picture(out, sheet.FORMATS)
    with Console(stderr=True).status("Drawing 19 kinds of corruption at severity 1 to 5 …"):
        sheet.make_sheet(_load(image), out)
    console.print(Text(f"Sheet: {out}"), soft_wrap=True)


def _load(path: Path | None) -> np.ndarray:
    """Return the image in bytes (h, w, 3)."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_sample_image

    from ..data.images import read_rgb

    image = read_rgb(path) if path else Image.fromarray(load_sample_image("flower.jpg"))
    scale = _SIDE / min(image.size)
    if scale < 1:
        width, height = (max(1, round(scale * side)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image)
