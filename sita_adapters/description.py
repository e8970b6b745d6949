"""What `describe` returns: an adapted model as an object and as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .adaptation import Adaptation
from .inputs import ENCODINGS, Inputs
from .outputs import OutputLayout
from .recipe import Recipe
from .recipes import IN_WORDS
from .selection import LayerInfo
from .version import __version__


@dataclass(frozen=True)
class Description:
    """An adapted model: its recipe, cost per image, layers, and what the latest probe established. Print it."""

    backend: str
    adaptation: Adaptation

    @property
    def recipe(self) -> Recipe:
        """What is computed."""
        return self.adaptation.recipe

    @property
    def layers(self) -> tuple[LayerInfo, ...]:
        """The BatchNorm layers of the model."""
        return self.adaptation.layers

    @property
    def layout(self) -> OutputLayout | None:
        """What the latest probe established; None before it."""
        return next(reversed(self.adaptation.layouts.values()), None)

    @property
    def adapted(self) -> tuple[str, ...]:
        """Names of the layers that are adapted."""
        return tuple(layer.name for layer in self.layers if layer.adapted)

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of the BatchNorm layers that keep the source's statistics."""
        return tuple(layer.name for layer in self.layers if not layer.adapted)

    @property
    def rows(self) -> int:
        """Number of rows that one image becomes; of a square image if that matters."""
        return self.adaptation.plan_for(self.adaptation.kinds[0])[0].rows

    @property
    def scores(self) -> str | None:
        """What the class scores were established to be; None if there are none, or before the probe."""
        return None if self.layout is None or self.layout.scores is None else self.layout.scores.kind

    def __str__(self) -> str:
        settings, plans = self.adaptation.settings, [plan for plan, _ in self.adaptation.plans.values()]
        bound = "" if settings.max_rows is None else f", at most {settings.max_rows} at once"
        facts = [
            ("model", f"{self.adaptation.model_name}, {self.backend} backend, sita-adapters {__version__}"),
            ("recipe", str(self.recipe)),
            ("", IN_WORDS.get(self.recipe.name, "")),
            ("rows", _each(f"{plan.rows} per image" for plan in plans) + bound),
        ]
        if len(plans[0].views) > 1:
            drawn = f"{self.recipe.view_count}, drawn for every image" if self.recipe.resample else ""
            facts.append(("views", drawn or _each(", ".join(view.name for view in plan.views[1:]) for plan in plans)))
        facts += [
            ("output", _describe_output(self.layout)),
            *((("note", note) for note in self.layout.notes) if self.layout else ()),
            ("inputs", _name_inputs(settings.inputs)),
            ("layers", _describe_layers(self.layers)),
        ]
        return "\n".join(f"{name:<8}{text}" for name, text in facts if text)


def _describe_output(layout: OutputLayout | None) -> str:
    if layout is None:
        return "unknown before the first call (or example=)"
    if layout.scores is None:
        return f"no class scores assumed. {layout.why_no_scores}"
    path, kind = layout.paths[layout.scores.index], layout.scores.kind.replace("_", " ")
    which = "" if len(layout.paths) == 1 else f" in {path}"
    if kind == "logits":
        return f"assumed to be class logits{which}, classes on axis {layout.scores.class_axis}"
    return f"class scores{which}: {kind}, classes on axis {layout.scores.class_axis}"


def _each(texts: Iterable[str]) -> str:
    """Return one text if it is the same for all kinds of images."""
    first, *others = dict.fromkeys(texts)
    return first + "".join(f" (images that are not square: {other})" for other in others)


def _name_inputs(inputs: Inputs | None) -> str:
    if inputs is None:
        return "not given (needed for color distortion only)"
    names = [name for name, encoding in ENCODINGS.items() if encoding == inputs]
    return names[0] if names else str(inputs)


def _describe_layers(layers: Sequence[LayerInfo]) -> str:
    kinds = Counter(layer.type for layer in layers if layer.adapted)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    skipped = [layer.name for layer in layers if not layer.adapted]
    more = f" and {len(skipped) - 5} more" if len(skipped) > 5 else ""
    return f"{sum(kinds.values())} of {len(layers)} adapted ({counts})" + (
        f"; skipped: {', '.join(skipped[:5])}{more}" if skipped else ""
    )
