"""`sita corruptions`: what the corruptions do to an image."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sita_adapters.errors import SitaError

from .options import check_picture, require

if TYPE_CHECKING:
    import numpy as np

_SIDE = 224
"""Larger images are resized to this shorter side, for which the strengths are made."""


def corruptions(
    *,
    image: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Your own image; by default a photograph of a flower.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Where to put the sheet: a .png, .pdf or .svg file.", dir_okay=False)
    ] = Path("sita-corruptions.png"),
    severity: Annotated[
        int | None, typer.Option(min=1, max=5, help="Show this one, larger; by default all five.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Draws what is random in them.")] = 0,
    list_: Annotated[
        bool, typer.Option("--list", help="Print the kinds and their strengths, and draw nothing.")
    ] = False,
) -> None:
    """See what the corruptions of the benchmark do to an image.

    Draws one sheet of an image under the 15 corruptions of ImageNet-C and
    CIFAR-10-C (noise, blur, weather, digital) and the 4 that are meant for
    choosing settings (holdout), at severity 1 to 5. `sita predict --corrupt`
    applies the same ones.

    Examples:
      sita corruptions
      sita corruptions --image cat.jpg --severity 5 --out cat.png
      sita corruptions --list
    """
    require("scipy", "PIL", "matplotlib", "sklearn")
    console = Console(highlight=False)
    if list_:
        console.print(_make_list())
        return
    from ..corruptions import sheet as corruption_sheet

    check_picture(out, corruption_sheet.FORMATS)
    pixels, remark = _load(image)
    shown = "at severity 1 to 5" if severity is None else f"at severity {severity}"
    try:
        with Console(stderr=True).status(f"Drawing {len(_kinds())} kinds of corruption {shown} …"):
            corruption_sheet.make_sheet(pixels, out, severity, seed)
    except OSError as error:
        raise SitaError(f"The sheet could not be written: {error}") from error
    console.print(Text(f"{remark}, under {len(_kinds())} kinds of corruption {shown}, seed {seed}."), soft_wrap=True)
    console.print(Text(f"Sheet: {out}"), soft_wrap=True)


def _kinds() -> tuple[str, ...]:
    from ..corruptions import CORRUPTIONS

    return tuple(CORRUPTIONS)


def _load(path: Path | None) -> tuple[np.ndarray, str]:
    """Return the image in bytes (h, w, 3), and its description."""
    import numpy as np
    from PIL import Image

    from ..data.images import read_rgb

    if path is None:
        from sklearn.datasets import load_sample_image

        image, remark = Image.fromarray(load_sample_image("flower.jpg")), "A photograph from scikit-learn"
    else:
        image, remark = read_rgb(path), str(path)
    scale = _SIDE / min(image.size)
    if scale < 1:
        width, height = (max(1, round(scale * side)) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BICUBIC)
        remark += f", scaled to {width} × {height}"
    return np.asarray(image), remark


def _make_list() -> Table:
    from ..corruptions import CORRUPTIONS, HOLDOUT, KINDS

    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption="The strengths are ImageNet-C's. An image with a side of up to 64 pixels gets CIFAR-10-C's. Means of "
        "results are over all but the holdout kinds.",
        caption_justify="left",
    )
    table.add_column("kind", no_wrap=True)
    table.add_column("family", no_wrap=True)
    table.add_column("strength at severity 1 | 2 | 3 | 4 | 5")
    for kind in (*KINDS, *HOLDOUT):
        corruption = CORRUPTIONS[kind]
        family = f"{corruption.family}{', holdout' if corruption.holdout else ''}"
        strengths = " | ".join(" ".join(f"{value:.3g}" for value in strength) for strength in corruption.imagenet)
        table.add_row(kind, family, strengths, end_section=kind == KINDS[-1])
    return table
