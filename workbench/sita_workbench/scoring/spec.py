"""A model as text. Any process on any machine can build the same model from it."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sita_adapters.errors import InputError, SitaError
from sita_adapters.recipe import DEFAULT, RECIPES, Recipe, Task

from ..models.weights import name_file

if TYPE_CHECKING:
    from ..predictor import Predictor


@dataclass(frozen=True)
class ModelSpec:
    """A model and its recipe as text. A worker receives this instead of a model.

    - `model`, `weights`, `inputs`, `size`, `trust`, `providers`: as in `sita_workbench.models.loading.load_model`.
      The model may be an exported file.
    - `recipe`: a name, a file, or JSON from `Recipe.to_json`. None stands for the default, or for the recipe of an
      exported file.
    - `crop`, `task`, `names` (of the classes): instead of the model's defaults.
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
    providers: tuple[str, ...] = ()

    def resolved(self) -> ModelSpec:
        """Return the same spec with absolute paths and the recipe's file read: workers start in other folders."""
        file, function = _split(self.model)
        weights, recipe = self.weights, self.recipe
        if weights not in (None, "pretrained", "random"):
            weights = str(Path(str(weights)).resolve())
        if recipe is None and (function or not file):
            recipe = DEFAULT
        opened = self.open_recipe()  # an unknown name is an error here, not in a worker
        if opened is not None and recipe not in RECIPES:
            recipe = opened.to_json()
        model = f"{Path(file).resolve()}{function}" if file else self.model
        return replace(self, model=model, weights=weights, recipe=recipe)

    def open_recipe(self, task: Task = "classification") -> Recipe | None:
        """Return the recipe, if one is given. In segmentation, a named recipe has other views."""
        from ..methods import open_recipe

        if self.recipe is None:
            return None
        is_json = self.recipe.lstrip().startswith("{")
        recipe = Recipe.from_json(self.recipe) if is_json else open_recipe(self.recipe, task)
        if recipe.share == "batch":
            raise InputError(
                "recipe: expected share='image'; received share='batch', which makes an answer depend on the other "
                "images in the batch. Try: another recipe."
            )
        return recipe

    def open_predictor(self, *, with_source: bool = True) -> Predictor:
        """Load the model."""
        from ..models.loading import load_model
        from ..predictor import open_predictor

        options: dict[str, Any] = {"inputs": self.inputs, "size": self.size, "exported": True, "trust": self.trust}
        loaded = load_model(self.model, self.weights, providers=list(self.providers) or None, **options)
        task, crop, names = self.task or loaded.task, self.crop or loaded.crop, self.names or loaded.names
        loaded = replace(loaded, task=task, crop=crop, names=names)
        return open_predictor(loaded, self.open_recipe(loaded.task), with_source=with_source)

    def check_names(self, classes: int) -> None:
        """Raise if there are names, but not one per class."""
        if self.names and len(self.names) != classes:
            raise SitaError(f"--labels: expected {classes} names, one per class; received {len(self.names)}.")

    def identity(self) -> dict[str, Any]:
        """Return what the answers depend on. A file counts by its content, not its path."""
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
    """Return the name and the digest of a file; return any other text unchanged."""
    return name_file(path) if path.is_file() else str(path)
