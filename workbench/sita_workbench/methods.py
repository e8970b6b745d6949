"""What a benchmark compares: recipes and baselines, each prepared to predict images in numpy."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from sita_adapters.errors import RecipeError, suggestion
from sita_adapters.plan import make_plan
from sita_adapters.recipe import RECIPES, Recipe, Task, resolve_recipe

from .baselines import BASELINES

if TYPE_CHECKING:
    from .models.loaded import LoadedModel

SOURCE = "source"


@dataclass(frozen=True)
class Method:
    """A recipe, or a baseline (`recipe` None), under a name."""

    name: str
    recipe: Recipe | None

    @property
    def rows(self) -> int | None:
        """How many rows a square image costs."""
        return None if self.recipe is None else make_plan(self.recipe).rows

    @property
    def cost(self) -> int:
        """Roughly what an image costs, in rows."""
        return self.rows or BASELINES[self.name].cost

    def __str__(self) -> str:
        return f"{self.name}: reset for every image" if self.recipe is None else str(self.recipe)

    def prepare(self, loaded: LoadedModel) -> Any:
        """Return the model to run: adapted, the source model, or a baseline around it."""
        if self.recipe is None:
            return BASELINES[self.name].prepare(loaded)
        return loaded.model if self.name == SOURCE else loaded.adapt(self.recipe)

    def predict(self, loaded: LoadedModel, prepared: Any, images: np.ndarray) -> Prediction:
        """Return the prepared model's predictions for encoded images (N, h, w, channels)."""
        step = images_per_call(self.cost, *images.shape[1:3])
        parts = [loaded.predict(prepared, images[start : start + step]) for start in range(0, len(images), step)]
        return Prediction(np.concatenate(parts))


@dataclass(frozen=True, eq=False)
class Prediction:
    """A model's prediction for N images: p (N, …, classes), and λ of the most confident candidate (N, …)."""

    probabilities: np.ndarray
    priors: np.ndarray | None = None

    @cached_property
    def labels(self) -> np.ndarray:
        """The likeliest class, (N, …)."""
        return np.asarray(self.probabilities.argmax(axis=-1))

    @cached_property
    def confidences(self) -> np.ndarray:
        """The probability of the likeliest class, (N, …)."""
        return np.asarray(self.probabilities.max(axis=-1))

    @cached_property
    def entropies(self) -> np.ndarray:
        """−Σ p log p in nats, (N, …)."""
        return np.asarray(special.entr(self.probabilities).sum(axis=-1))


def images_per_call(rows: int, height: int, width: int) -> int:
    """Return how many images of this size and number of rows to run at once: 64 rows at 224², more of smaller ones."""
    return max(1, int(min(512, max(8, 64 * 224**2 / (height * width)))) // rows)


def open_recipe(text: str, task: Task) -> Recipe:
    """Return the recipe of this name, or that of a file that `sita calibrate` or `Recipe.to_json` wrote."""
    path = Path(text)
    if path.suffix != ".json":
        return resolve_recipe(text, {}, task)
    try:
        return Recipe.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe: expected a name or a file; {text} cannot be read: {error}.") from error


def make_methods(recipes: str | Sequence[str | Recipe], task: Task) -> list[Method]:
    """Return the methods of `recipes`: names, `sita calibrate`'s files, and recipes; or text as `--recipes` takes it.

    A name may change fields in brackets: `augbn[priors=0.9]`. `source` always comes first, because everything is
    compared with it.
    """
    if isinstance(recipes, str):  # split at the commas outside brackets
        recipes = [entry.strip() for entry in re.split(r",(?![^\[]*\])", recipes) if entry.strip()]
    methods: dict[str, Method] = {}
    for entry in [SOURCE, *recipes]:
        method = Method(entry.name, entry) if isinstance(entry, Recipe) else _read_method(entry, task)
        if method.recipe is not None and method.recipe.share == "batch":
            raise RecipeError(
                f"recipes: {method.name!r} lets the images of a batch share their statistics, so its scores would "
                "depend on the batches. Try: share='image'."
            )
        if methods.setdefault(method.name, method) != method:
            raise RecipeError(f"recipes: two different recipes are named {method.name!r}. Try: rename one of them.")
    return list(methods.values())


def _read_method(entry: str, task: Task) -> Method:
    name, bracket, fields = entry.partition("[")
    if name.endswith(".json") and not bracket:
        return Method(Path(name).stem, open_recipe(name, task))
    if name in BASELINES and not bracket:
        return Method(name, None)
    if name not in RECIPES:
        known = (*RECIPES, *BASELINES)
        raise RecipeError(
            f"recipes: expected {', '.join(known)}; received {entry!r}.{suggestion(name, known)} "
            "To change a recipe's fields, use brackets: augbn[priors=0.9]."
        )
    return Method(entry, resolve_recipe(name, _read_fields(entry, fields) if bracket else {}, task))


def _read_fields(entry: str, fields: str) -> dict[str, Any]:
    """Return the fields of "combine=mean,top_k=5]". A word without quotes is text."""
    try:
        call = ast.parse(f"_({fields.removesuffix(']')})", mode="eval").body
        if not fields.endswith("]") or not isinstance(call, ast.Call) or call.args:
            raise ValueError(fields)
        values = {keyword.arg: keyword.value for keyword in call.keywords}
        return {
            str(field): value.id if isinstance(value, ast.Name) else ast.literal_eval(value)
            for field, value in values.items()
        }
    except (ValueError, SyntaxError):
        raise RecipeError(f"recipes: expected name[field=value,…]; received {entry!r}.") from None
