"""The recipes by name, and how `adapt` resolves its `recipe`, `task` and changed fields to one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from .errors import RecipeError, suggestion
from .recipe import Recipe, expect_one_of
from .shift import ByShift

Task: TypeAlias = Literal["classification", "segmentation"]

DEFAULT = "auto"

_RECIPES = (
    Recipe(name="source", priors=1.0, n_views=0),
    Recipe(name="auto", priors=(1.0, ByShift(strength=1.0)), n_views=0, combine="mix"),
    Recipe(name="shift", priors=ByShift(), n_views=0),
    Recipe(name="ensemble", priors=1.0, candidates="views", combine="mean"),
    Recipe(name="ptn", priors=0.0, n_views=0),
    Recipe(name="bn", priors=16 / 17, n_views=0),
    Recipe(name="augbn", priors=ByShift()),
    Recipe(name="ops"),
    Recipe(name="ops_shared", shared_views=True),
)
RECIPES: Mapping[str, Recipe] = MappingProxyType({recipe.name: recipe for recipe in _RECIPES})
"""The recipes by name. `ops` is the paper's, and so is `augbn` with a number for `priors`; `auto`, `shift` are ours."""

IN_WORDS: Mapping[str, str] = {
    "source": "runs the source model as it is",
    "auto": "runs each image as the source model and adapted to it, and mixes the two outputs by the measured shift",
    "shift": "runs each image once, adapted more the further it is from the source's statistics",
    "ensemble": "averages the source model's probabilities over the image and its views",
    "ptn": "normalizes each image with its own statistics only",
    "bn": "blends 1 part of each image's statistics into 16 of the source's",
    "augbn": "blends the statistics of each image and its views into the source's",
    "ops": "runs each image under 8 blends with the source's statistics, and lets the most confident vote",
    "ops_shared": "runs each image under 8 blends, with one set of views for all, and lets the most confident vote",
}
"""What each recipe does, in one line."""

_SETTINGS = ("task", "inputs", "scores", "output", "class_axis", "layers", "max_rows", "example")
"""The arguments of `adapt` that are not fields of a recipe."""


def resolve_recipe(recipe: Recipe | str, changes: Mapping[str, Any], task: Task = "classification") -> Recipe:
    """Return the recipe that a caller named or gave, with these fields changed.

    The task decides the views of a named recipe unless they are given; a Recipe has its own.
    """
    expect_one_of("task", task, ("classification", "segmentation"))
    chosen = RECIPES.get(recipe) if isinstance(recipe, str) else recipe
    if not isinstance(chosen, Recipe):
        received = f"{recipe!r}.{suggestion(recipe, RECIPES)}" if isinstance(recipe, str) else type(recipe).__name__
        raise RecipeError(f"recipe: expected one of {', '.join(RECIPES)} or a Recipe; received {received}")
    allowed = [field.name for field in fields(Recipe)]
    for name in changes:
        if name not in allowed:
            raise RecipeError(
                f"{name}: not a field of a recipe ({', '.join(allowed)}) nor an argument of adapt "
                f"({', '.join(_SETTINGS)}).{suggestion(name, [*allowed, *_SETTINGS])}"
            )
    for_task = _segmentation_changes(chosen, changes, isinstance(recipe, str)) if task == "segmentation" else changes
    changed = replace(chosen, **for_task)
    if "augment" in changes and changed.view_count == 0:
        raise RecipeError(
            f"augment: {chosen.name!r} uses no views, and augment={changes['augment']!r} would do nothing. "
            "Try: 'augbn', or give n_views= as well."
        )
    return changed


def _segmentation_changes(chosen: Recipe, changes: Mapping[str, Any], named: bool) -> dict[str, Any]:
    """Return the changes with what "paper" means if every pixel gets a label, and with the views of a named recipe.

    Chosen on validation images of CamVid: one mirrored view was better than the paper's blur and rotation, above all
    under noise, and as good as two or three.
    """
    changes, own = dict(changes), {"augment": ("hflip", "vflip", "rot180"), "n_views": 1}
    if changes.get("augment") == "paper":
        changes["augment"], own = "paper_segmentation", {"n_views": 1}
    elif "augment" in changes:
        own = {}
    elif chosen.candidates == "views":
        own = {"augment": "blur", "n_views": 2}  # the views of an ensemble must keep the pixels in place
    elif chosen.shared_views and not {"priors", "combine", "top_k"} & set(changes):
        own["top_k"] = 3  # as it was measured here
    return {**own, **changes} if named and chosen.view_count else changes
