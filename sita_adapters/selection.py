"""`layers=`: which of a model's BatchNorm layers are adapted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from .errors import RecipeError, suggestion

Layers: TypeAlias = "str | Sequence[str] | Callable[[str, Any], bool] | None"
"""A name, a glob ("layer1.*"), a parent's name ("layer1"), several of these, or a predicate on (name, layer)."""


@dataclass(frozen=True)
class LayerInfo:
    """One BatchNorm layer of the model."""

    name: str
    type: str
    channels: int
    adapted: bool


def select(found: Mapping[str, Any], layers: Layers) -> set[str]:
    """Return the names of the layers, of those found, that `layers` picks; None picks all."""
    if layers is None:
        return set(found)
    if callable(layers):
        chosen = {name for name, layer in found.items() if layers(name, layer)}
        if not chosen:
            raise RecipeError(
                f"layers: the predicate picked none of the {len(found)} BatchNorm layers ({_sample(found)})."
            )
        return chosen
    patterns = [layers] if isinstance(layers, str) or not isinstance(layers, Iterable) else list(layers)
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise RecipeError(
            f"layers: expected a name, a glob such as 'layer1.*', several of these, or a predicate on "
            f"(name, layer); received {layers!r}."
        )
    chosen = set()
    for pattern in patterns:
        matching = {name for name in found if _matches(name, pattern)}
        if not matching:
            raise RecipeError(
                f"layers: {pattern!r} matches none of the {len(found)} BatchNorm layers ({_sample(found)})."
                f"{suggestion(pattern, found)}"
            )
        chosen |= matching
    return chosen


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or name.startswith((f"{pattern}.", f"{pattern}/"))


def _sample(found: Mapping[str, Any]) -> str:
    names = list(found)
    return ", ".join(names if len(names) <= 6 else [*names[:3], "…", *names[-2:]])
