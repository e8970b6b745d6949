"""What `describe` returns: an adapted model as an object and as a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from .inputs import ENCODINGS
from .outputs import OutputLayout
from .recipe import RECIPES, Recipe
from .selection import LayerInfo
from .state import Adaptation
from .version import __version__

IN_WORDS = {
    "source": "runs the source model without adaptation",
    "auto": "runs each image with and without adaptation, and mixes class scores by confidence",
    "restore": "runs each image without adaptation, a median-filtered and a sharpened copy with it, and mixes them",
    "shift": "runs each image once, and adapts more if it is further from the source's statistics",
    "ensemble": "averages the source model's probabilities over the image and its views",
    "ptn": "normalizes each image only with its own statistics",
    "bn": "blends 1 part of each image's statistics into 16 of the source's",
    "augbn": "blends the statistics of each image and its views into the source's",
    "ops": "runs each image with 8 priors, and lets the most confident vote",
    "ops_shared": "runs each image with 8 priors that share one set of views, and lets the most confident vote",
}
"""What each recipe does, in one line."""


@dataclass(frozen=True)
class Description:
    """A description of an adapted model. Print it to see a table.

    Attributes:
        model: The class name of the source model.
        backend: The framework that runs it.
        recipe: The recipe.
        rows: The number of rows per image. With views, it can depend on the shape; this is for square images.
        layers: All BatchNorm layers.
        adapted: The names of the adapted layers.
        skipped: The names of the layers that keep the source's statistics.
        scores: The kind of class scores; None if there are none, or before the probe.
        table: The text that `print` shows.
    """

    model: str
    backend: str
    recipe: Recipe
    rows: int
    layers: tuple[LayerInfo, ...]
    adapted: tuple[str, ...]
    skipped: tuple[str, ...]
    scores: str | None
    table: str = field(repr=False)

    def __str__(self) -> str:
        return self.table


def describe_adaptation(adaptation: Adaptation, backend: str) -> Description:
    """Return the description of an adapted model."""
    recipe, settings, plans = adaptation.recipe, adaptation.settings, list(adaptation.plans.values())
    adapted = tuple(layer.name for layer in adaptation.layers if layer.adapted)
    skipped = tuple(layer.name for layer in adaptation.layers if not layer.adapted)
    probe = adaptation.latest_probe if adaptation.probes else None
    drawn = f"{recipe.view_count}, drawn for every image" if recipe.resample else ""
    names = [name for name, encoding in ENCODINGS.items() if encoding == settings.inputs]
    facts = [
        ("model", f"{adaptation.model_name}, {backend} backend, sita-adapters {__version__}"),
        ("recipe", f"{recipe.name}: {IN_WORDS[recipe.name]}" if RECIPES.get(recipe.name) == recipe else str(recipe)),
        ("rows", _each(f"{plan.rows} per image" for plan in plans)),
        ("", "" if settings.max_rows is None else f"at most {settings.max_rows} at once"),
        ("views", drawn or _each(", ".join(view.name for view in plan.views[1:]) for plan in plans)),
        ("output", describe_output(probe.layout, recipe) if probe else "unknown before the first call"),
        *(("note", note) for note in (probe.notes if probe else ())),
        ("inputs", names[0] if names else str(settings.inputs or "")),
        ("layers", f"{len(adapted)} of {len(adaptation.layers)} adapted"),
        ("skipped", ", ".join(skipped[:5]) + (", …" if len(skipped) > 5 else "")),
    ]
    table = "\n".join(f"{name:<8}{text}" for name, text in facts if text)
    scores = None if probe is None or probe.layout.scores is None else probe.layout.scores.kind
    name, layers, rows = adaptation.model_name, adaptation.layers, plans[0].rows
    return Description(name, backend, recipe, rows, layers, adapted, skipped, scores, table)


def describe_output(layout: OutputLayout, recipe: Recipe) -> str:
    """Return what was found in an output, and what follows for a mix, in one line."""
    scores, mixes = layout.scores, recipe.combine == "mix"
    if scores is None:
        return f"no class scores. {layout.selection_note if mixes else layout.why_no_scores}"
    where = "" if len(layout.paths) == 1 else f" in {layout.paths[scores.index]}"
    kind = scores.kind.replace("_", " ")
    what = f"assumed to be class logits{where}" if kind == "logits" else f"class scores{where}: {kind}"
    heads = [
        path
        for i, path in enumerate(layout.paths)
        if i != scores.index and mixes and layout.mixed[i : i + 1] != (None,)
    ]
    beside = f"; averages {', '.join(heads)}, too" if heads else ""
    if mixes and not layout.mixed:
        beside = "; beside other outputs, so one row supplies all outputs of an image"
    return f"{what}, classes on axis {scores.class_axis}{beside}"


def _each(texts: Iterable[str]) -> str:
    """Return the text for square images, and the texts for other images if they differ."""
    first, *others = dict.fromkeys(texts)
    return first + "".join(f" (images that are not square: {other})" for other in others)
