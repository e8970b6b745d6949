"""What `describe` returns: an adapted model as an object and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from .adaptation import Adaptation
from .inputs import ENCODINGS
from .outputs import OutputLayout
from .recipe import Recipe
from .selection import LayerInfo
from .version import __version__


@dataclass(frozen=True)
class Description:
    """An adapted model. Print it for a table.

    Attributes:
        model: The name of the source model's class.
        backend: The framework.
        recipe: What is computed.
        rows: Number of rows that one image becomes; of a square image if that matters.
        max_rows: Largest number of rows that run at once; None if there is no limit.
        layers: The BatchNorm layers.
        adapted: Names of the layers that are adapted.
        skipped: Names of the layers that keep the source's statistics.
        scores: What the class scores are; None if there are none, or before the probe.
        table: All of it, as a text.
    """

    model: str
    backend: str
    recipe: Recipe
    rows: int
    max_rows: int | None
    layers: tuple[LayerInfo, ...]
    adapted: tuple[str, ...]
    skipped: tuple[str, ...]
    scores: str | None
    table: str = field(repr=False)

    def __str__(self) -> str:
        return self.table


def describe_adaptation(adaptation: Adaptation, backend: str) -> Description:
    """Return the description of an adapted model."""
    layout = next(reversed(adaptation.layouts.values()), None)
    return Description(
        adaptation.model_name,
        backend,
        adaptation.recipe,
        adaptation.plan_for(adaptation.kinds[0])[0].rows,
        adaptation.settings.max_rows,
        adaptation.layers,
        tuple(layer.name for layer in adaptation.layers if layer.adapted),
        tuple(layer.name for layer in adaptation.layers if not layer.adapted),
        None if layout is None or layout.scores is None else layout.scores.kind,
        _table(adaptation, layout, backend),
    )


def _table(adaptation: Adaptation, layout: OutputLayout | None, backend: str) -> str:
    recipe, settings, plans = adaptation.recipe, adaptation.settings, [plan for plan, _ in adaptation.plans.values()]
    bound = "" if settings.max_rows is None else f", at most {settings.max_rows} at once"
    drawn = f"{recipe.view_count}, drawn for every image" if recipe.resample else ""
    names = [name for name, encoding in ENCODINGS.items() if encoding == settings.inputs]
    facts = [
        ("model", f"{adaptation.model_name}, {backend} backend, sita-adapters {__version__}"),
        ("recipe", str(recipe)),
        ("rows", _each(f"{plan.rows} per image" for plan in plans) + bound),
        ("views", drawn or _each(", ".join(view.name for view in plan.views[1:]) for plan in plans)),
        ("output", _describe_output(layout)),
        *(("note", note) for note in (layout.notes if layout else ())),
        ("inputs", names[0] if names else str(settings.inputs or "not given (needed for color distortion only)")),
        ("layers", _describe_layers(adaptation.layers)),
    ]
    return "\n".join(f"{name:<8}{text}" for name, text in facts if text)


def _describe_output(layout: OutputLayout | None) -> str:
    if layout is None:
        return "unknown before the first call (or example=)"
    if layout.scores is None:
        return f"no class scores assumed. {layout.why_no_scores}"
    where = "" if len(layout.paths) == 1 else f" in {layout.paths[layout.scores.index]}"
    kind = layout.scores.kind.replace("_", " ")
    what = f"assumed to be class logits{where}" if kind == "logits" else f"class scores{where}: {kind}"
    return f"{what}, classes on axis {layout.scores.class_axis}"


def _each(texts: Iterable[str]) -> str:
    """Return one text if it is the same for all kinds of images."""
    first, *others = dict.fromkeys(texts)
    return first + "".join(f" (images that are not square: {other})" for other in others)


def _describe_layers(layers: Sequence[LayerInfo]) -> str:
    kinds = Counter(layer.type for layer in layers if layer.adapted)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    skipped = [layer.name for layer in layers if not layer.adapted]
    more = f" and {len(skipped) - 5} more" if len(skipped) > 5 else ""
    return f"{sum(kinds.values())} of {len(layers)} adapted ({counts})" + (
        f"; skipped: {', '.join(skipped[:5])}{more}" if skipped else ""
    )
