"""`layers=`: select which BatchNorm layers of a model are adapted."""

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


def match_layers(found: Mapping[str, Any], layers: Layers) -> set[str]:
    """Return the names of the found layers that `layers` selects; None selects all."""
    if layers is None:
        return set(found)
    if callable(layers):
        picked = {"the predicate": {name for name, layer in found.items() if layers(name, layer)}}
    else:
        patterns = [layers] if isinstance(layers, str) or not isinstance(layers, Iterable) else list(layers)
        if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
            raise RecipeError(f"layers: expected a name, a glob, several of these or a predicate; received {layers!r}.")
        picked = {}
        for pattern in patterns:
            inside = f"{pattern}.", f"{pattern}/"
            picked[pattern] = {name for name in found if fnmatchcase(name, pattern) or name.startswith(inside)}
    for what, names in picked.items():
        if not names:
            some = ", ".join(list(found)[:6]) + (", …" if len(found) > 6 else "")
            raise RecipeError(
                f"layers: {what!r} matches none of the {len(found)} BatchNorm layers ({some}).{suggestion(what, found)}"
            )
    return set().union(*picked.values())


def leave_out(names: Iterable[str], layers: Iterable[LayerInfo]) -> str:
    """Return the argument of `adapt` that leaves these of the adapted layers out, if there are others."""
    names = list(names)
    if {info.name for info in layers if info.adapted} <= {*names}:
        return "another model, because this one has no other BatchNorm layers"
    return f"layers=lambda name, layer: name not in {names!r}"
