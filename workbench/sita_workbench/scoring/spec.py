"""A model as text, from which any process on any machine builds the same model."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sita_adapters.errors import InputError
from sita_adapters.recipe import DEFAULT, RECIPES, Recipe, Task

from ..models.weights import name_file


@dataclass(frozen=True)
class ModelSpec:
    """A model and its recipe, as text: what a worker receives instead of a model.

    - `model`, `weights`, `inputs`, `size`, `trust`, `providers`: as in `sita_workbench.models.loading.load_model`;
      the model may be an exported file.
    - `recipe`: a name, a file, or JSON from `Recipe.to_json`; None: the default, or the recipe of an exported file.
    - `crop`, `task`, `names` (of the classes): instead of the model's own.
    """

    model: str
    weights: str | None = None
    recipe: str | None = None
    inputs: str | None = None
    size: int | None = None
    crop: float | None = None
    task: Task | None = None
    names: tuple[str, ...] = ()
    trust: bool = False
    providers: tuple[str, ...] | None = None

    def resolved(self) -> ModelSpec:
        """Return the same spec with absolute paths and the recipe's file read: workers start in other folders."""
        file, function = _split(self.model)
        weights, recipe = self.weights, self.recipe
        if weights not in (None, "pretrained", "random"):
            weights = str(Path(str(weights)).resolve())
        if recipe is None and (function or not file):
            recipe = DEFAULT
        if recipe is not None:
            opened = _open_recipe(recipe, "classification")  # an unknown name is an error here, not in a worker
            recipe = recipe if recipe in RECIPES else opened.to_json()
        model = f"{Path(file).resolve()}{function}" if file else self.model
        return replace(self, model=model, weights=weights, recipe=recipe)

    def open_recipe(self, task: Task) -> Recipe | None:
        """Return the recipe, if one is given. A name stands for other views in segmentation."""
        if self.recipe is None:
            return None
        recipe = _open_recipe(self.recipe, task)
        if recipe.share == "batch":
            raise InputError(
                "recipe: with share='batch' an answer depends on the other images of its batch, which the cut into "
                "shards decides. Expected share='image'."
            )
        return recipe

    def identity(self) -> dict[str, Any]:
        """Return what answers depend on. Files count by their content, wherever they are."""
        file, function = _split(self.model)
        about = asdict(self)
        del about["trust"], about["providers"]
        return {
            **about,
            "model": f"{_name(Path(file))}{function}" if file else self.model,
            "weights": self.weights and _name(Path(self.weights)),
            "names": hashlib.sha256("\n".join(self.names).encode()).hexdigest()[:12],
        }


def _split(model: str) -> tuple[str, str]:
    """Return a model's file and `:function`: an exported file has no function, and a library's model has no file."""
    file, colon, function = model.rpartition(":")
    if file.endswith(".py"):
        return file, colon + function
    return (model if Path(model).is_file() else ""), ""


def _name(path: Path) -> str:
    """Return the name and the digest of a file; any other text as it is."""
    return name_file(path) if path.is_file() else str(path)


def _open_recipe(text: str, task: Task) -> Recipe:
    from ..methods import open_recipe

    return Recipe.from_json(text) if text.lstrip().startswith("{") else open_recipe(text, task)
