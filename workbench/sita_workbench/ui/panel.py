"""The results of the page as HTML: a summary, both answers, and how the adapted model reached its own."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.ticker import MaxNLocator
from PIL import Image

from sita_adapters.description import IN_WORDS
from sita_adapters.recipe import RECIPES

from ..label_maps import palette
from .look import Look

_LEFT, _RIGHT, _TOP, _BASE = 30.0, 282.0, 8.0, 132.0
"""Where a chart's lines are, in its own pixels."""


def show_look(look: Look, names: Sequence[str], label: int | None) -> str:
    """Return the page's right side. `label` is the image's true label, if that is known."""
    count, recipe = look.adapted.probabilities.shape[-1], look.recipe
    highest = max(float(values.max()) for values in look.shifts.values())
    charts = {"shifts": _make_chart(look.shifts, MaxNLocator(2).tick_values(0, max(highest, 1e-6)), look.layers)}
    if look.priors is not None:
        charts["priors"] = _make_chart({"adapted": look.priors}, (0, 0.5, 1), look.layers)
    return _TEMPLATE.render(
        look=look,
        names=names if len(names) == count else [f"class {index}" for index in range(count)],
        label=label,
        charts=charts,
        best=min(look.candidates, key=lambda each: each.entropy),
        in_words=IN_WORDS[recipe.name] if RECIPES.get(recipe.name) == recipe else recipe,
    )


def show_error(message: str) -> str:
    """Return the page's right side with an error message only."""
    return _ENVIRONMENT.from_string('<div class="sita"><p class="verdict error">{{ it }}</p></div>').render(it=message)


def _make_chart(lines: Mapping[str, np.ndarray], grid: Sequence[float], layers: Sequence[str]) -> dict[str, Any]:
    """Return the positions of lines, grid and marks: values from 0 to the last grid value, over the layers."""
    across = np.linspace(_LEFT, _RIGHT, len(layers))
    marks = np.unique(np.linspace(0, len(layers) - 1, min(len(layers), 10)).round().astype(int))

    def height(value: float) -> float:
        return _BASE - (_BASE - _TOP) * value / grid[-1]

    return {
        "grid": [(height(value), f"{value:.3g}") for value in grid],
        "marks": [(across[index], index + 1) for index in marks],
        "lines": {
            style: [(x, height(y), f"{name}: {y:.2f}") for x, y, name in zip(across, values, layers, strict=True)]
            for style, values in lines.items()
        },
    }


def _encode_png(pixels: np.ndarray) -> str:
    """Return a picture in bytes (h, w, 3) in base64."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def _color(labels: np.ndarray) -> np.ndarray:
    return np.asarray(palette()[labels % 256])


def _mark_changes(adapted: np.ndarray, source: np.ndarray) -> np.ndarray:
    """Return the adapted labels on gray, only for pixels that differ from the source model's."""
    return np.where((adapted != source)[..., None], _color(adapted), np.uint8(225)).astype(np.uint8)


def _legend(maps: Sequence[np.ndarray], names: Sequence[str]) -> list[tuple[np.ndarray, str, str]]:
    """Return the color, the name and the shares of pixels in each map, for the twelve most common labels."""
    shares = np.stack([np.bincount(each.ravel(), minlength=len(names)) / each.size for each in maps])
    common = [index for index in np.argsort(-shares.max(axis=0), kind="stable") if shares[:, index].max() > 0]
    return [
        (_color(index), names[index], " → ".join(f"{100 * share:.0f}" for share in shares[:, index]))
        for index in common[:12]
    ]


_ENVIRONMENT = Environment(
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    undefined=StrictUndefined,
    loader=FileSystemLoader(Path(__file__).parent),
)
_ENVIRONMENT.filters |= {"png": _encode_png, "color": _color, "changes": _mark_changes, "legend": _legend}
_TEMPLATE = _ENVIRONMENT.get_template("panel.html")
