"""What is scored with what: small values that any process, on any machine, makes the same model from."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sita_adapters.errors import InputError
from sita_adapters.recipe import DEFAULT, Recipe, Task, resolve_recipe

from ..models.weights import name_file

NAMED_WEIGHTS = ("pretrained", "random")


@dataclass(frozen=True)
class ModelSpec:
    """A model and its recipe, as text: what a worker is given instead of a model, so that it can be started again.

    - `model`, `weights`, `inputs`, `size`, `trust`, `providers`: as `sita_workbench.models.loading.load_model` takes
      them; the model may be an exported file.
    - `recipe`: a name; or a recipe as `Recipe.to_json` writes it; None: the default, or an exported file's own.
    - `crop`, `task`: instead of the model's own.
    - `names`: the classes' names, instead of the model's own.
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
        """Return the same with whole paths, and the recipe's file read: other processes start in other folders."""
        file, colon, function = _file_of(self.model)
        model = f"{Path(file).resolve()}{colon}{function}" if file else self.model
        named = self.weights is None or self.weights in NAMED_WEIGHTS
        weights = self.weights if named else str(Path(str(self.weights)).resolve())
        exported = bool(file) and not colon
        recipe = self.recipe or (None if exported else DEFAULT)
        recipe = None if recipe is None else _read_recipe_text(recipe)
        return replace(self, model=model, weights=weights, recipe=recipe)

    def open_recipe(self, task: Task) -> Recipe | None:
        """Return the recipe, where one is given. A name means other views where every pixel gets a label."""
        if self.recipe is None:
            return None
        recipe = Recipe.from_json(self.recipe) if _is_json(self.recipe) else resolve_recipe(self.recipe, {}, task)
        if recipe.share == "batch":
            raise InputError(
                "recipe: with share='batch' an answer depends on the images beside it, which shards cut at random. "
                "Expected share='image'."
            )
        return recipe

    def identity(self) -> dict[str, Any]:
        """Return what answers depend on. Files count by their content, wherever they are."""
        file, colon, function = _file_of(self.model)
        named = self.weights is None or self.weights in NAMED_WEIGHTS
        return {
            "model": f"{_name(Path(file))}{colon}{function}" if file else self.model,
            "weights": self.weights if named else _name(Path(str(self.weights))),
            "recipe": self.recipe,
            "inputs": self.inputs,
            "size": self.size,
            "crop": self.crop,
            "task": self.task,
            "labels": hashlib.sha256("\n".join(self.names).encode()).hexdigest()[:12] if self.names else None,
        }


@dataclass(frozen=True)
class Job:
    """All that a worker needs to score any shard: the model, the output folder, what paths are relative to, and what
    score.json says.
    """

    spec: ModelSpec
    folder: str
    base: str
    run: str = ""
    keras_backend: str | None = None

    def to_json(self) -> str:
        """Return the job as one line of text."""
        return json.dumps(asdict(self), ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the job that `to_json` wrote."""
        values = json.loads(text)
        spec = values.pop("spec")
        providers = None if spec["providers"] is None else tuple(spec["providers"])
        return cls(ModelSpec(**{**spec, "names": tuple(spec["names"]), "providers": providers}), **values)


def make_job(spec: ModelSpec, folder: Path, run: str) -> Job:
    """Return the job of scoring from this folder on, with the Keras backend that this process would take."""
    return Job(spec, str(folder.resolve()), os.getcwd(), run, os.environ.get("KERAS_BACKEND"))


def _file_of(model: str) -> tuple[str, str, str]:
    """Split a model's text into its file, a colon and its function; the file is empty for a model of a library."""
    file, colon, function = model.rpartition(":")
    if file.endswith(".py"):
        return file, colon, function
    exported = Path(model).is_file() or Path(model, "saved_model.pb").is_file()
    return (model, "", "") if exported else ("", "", "")


def _name(path: Path) -> str:
    if path.is_dir():  # a SavedModel
        return path.name
    try:
        return name_file(path)
    except OSError as error:
        raise InputError(f"Expected a file; {path} cannot be read: {error.strerror}.") from error


def _is_json(recipe: str) -> bool:
    return recipe.lstrip().startswith("{")


def _read_recipe_text(recipe: str) -> str:
    from ..methods import open_recipe

    if _is_json(recipe):
        return Recipe.from_json(recipe).to_json()
    opened = open_recipe(recipe, "classification")  # so that a name that does not exist is found out now
    return opened.to_json() if recipe.endswith(".json") else recipe
