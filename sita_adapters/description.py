"""What `describe` returns: an adapted model as an object and as a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .inputs import ENCODINGS, Inputs
from .plan import make_plan
from .recipe import Recipe
from .selection import LayerInfo
from .version import __version__
from .views import SpatialKind
from .voting import Scores


@dataclass(frozen=True)
class Description:
    """An adapted model: its framework, recipe, cost per image, and which layers take part."""

    model: str
    backend: str
    recipe: Recipe
    inputs: Inputs | None
    scores: Scores
    layers: tuple[LayerInfo, ...]
    max_rows: int | None = None
    """How many rows run at once, at most."""
    kinds: tuple[SpatialKind, ...] = ("square", "rectangle")
    """What the model's inputs can be; `rows` counts those of the first."""

    @property
    def adapted(self) -> tuple[str, ...]:
        """The names of the layers that are adapted."""
        return tuple(layer.name for layer in self.layers if layer.adapted)

    @property
    def left_alone(self) -> tuple[str, ...]:
        """The names of the BatchNorm layers that keep the source's statistics."""
        return tuple(layer.name for layer in self.layers if not layer.adapted)

    @property
    def rows(self) -> int:
        """How many rows of a batch one image becomes, a square one where that matters."""
        return make_plan(self.recipe, self.kinds[0]).rows

    def _bound(self) -> str:
        return "" if self.max_rows is None else f", at most {self.max_rows} at once"

    def __str__(self) -> str:
        plans = [make_plan(self.recipe, kind) for kind in self.kinds]
        facts = [
            ("model", f"{self.model}, {self.backend} backend, sita-adapters {__version__}"),
            ("recipe", str(self.recipe)),
            ("rows", _each(f"{plan.rows} per image" for plan in plans) + self._bound()),
        ]
        if self.recipe.resample:
            facts.append(("views", f"{self.recipe.view_count}, drawn for every image"))
        elif len(plans[0].views) > 1:
            facts.append(("views", _each(", ".join(view.name for view in plan.views[1:]) for plan in plans)))
        facts += [
            ("scores", self.scores),
            ("inputs", _name_inputs(self.inputs)),
            ("layers", f"{len(self.adapted)} of {len(self.layers)} BatchNorm layers adapted"),
        ]
        lines = [f"{name:<8}{text}" for name, text in facts]
        return "\n".join([*lines, "", *_table(_grouped(self.layers))])


def _each(texts: Iterable[str]) -> str:
    """Say it once where it is the same for all kinds."""
    first, *others = dict.fromkeys(texts)
    return first + "".join(f" (where images are not square: {other})" for other in others)


def _name_inputs(inputs: Inputs | None) -> str:
    if inputs is None:
        return "not given (needed for colour distortion only)"
    names = [name for name, encoding in ENCODINGS.items() if encoding == inputs]
    return names[0] if names else str(inputs)


def _grouped(layers: Iterable[LayerInfo]) -> Iterable[tuple[str, str, str, str, str]]:
    """One line for neighbours of the same block, type and treatment; a reader of 121 layers wants the blocks."""
    groups: dict[tuple[str, str, bool], list[LayerInfo]] = {}
    for layer in layers:
        block = ".".join(layer.name.split(".")[:-1][:2]) or layer.name
        groups.setdefault((block, layer.type, layer.adapted), []).append(layer)
    for (block, kind, adapted), members in groups.items():
        name = members[0].name if len(members) == 1 else f"{block}.*"
        channels = sorted({member.channels for member in members})
        width = str(channels[0]) if len(channels) == 1 else f"{channels[0]}–{channels[-1]}"
        yield name, str(len(members)), kind, width, "yes" if adapted else "left alone"


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    body = [("layer", "count", "type", "channels", "adapted"), *rows]
    widths = [max(len(row[column]) for row in body) for column in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in body]
    rule = "  ".join("─" * width for width in widths)
    return [lines[0].rstrip(), rule, *(line.rstrip() for line in lines[1:])]
