"""What a benchmark compares: recipes and baselines, each prepared to predict images in numpy."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

import sita_adapters as sita
from sita_adapters.errors import InputError, RecipeError, suggestion
from sita_adapters.plan import make_plan
from sita_adapters.recipe import RECIPES, Recipe, Task, resolve_recipe
from sita_adapters.views import is_random

if TYPE_CHECKING:
    from .models.loaded import LoadedModel

SOURCE = "source"

BASELINES = {"tent": 18, "memo": 30}
"""The paper's comparisons that train on each image, which needs PyTorch; and roughly how many forward rows they cost.

The rows only serve to estimate the time that is left.
"""


@dataclass(frozen=True)
class StudyPoint:
    """A method's place in a study: its curve, its x, and its label."""

    series: str
    x: float
    label: str


@dataclass(frozen=True)
class Method:
    """A recipe or a baseline (`recipe` None) under a name; `batch` images share a call where they share statistics."""

    name: str
    recipe: Recipe | None
    layers: tuple[str, ...] | None = None
    batch: int | None = None
    point: StudyPoint | None = None

    @property
    def is_random(self) -> bool:
        """Whether another seed may give another answer."""
        if self.recipe is None:
            return self.name == "memo"
        return self.recipe.view_count > 0 and is_random(self.recipe.augment)

    @property
    def rows(self) -> int | None:
        """How many rows a square image costs."""
        return None if self.recipe is None else make_plan(self.recipe).rows

    @property
    def cost(self) -> int:
        """Roughly what an image costs, in rows."""
        return self.rows or BASELINES[self.name]

    def __str__(self) -> str:
        if self.recipe is None:
            return f"{self.name}: reset for every image"
        layers = "" if self.layers is None else f"; layers {', '.join(self.layers)}"
        together = "" if self.batch is None else f"; {self.batch} images at a time"
        return f"{self.recipe}{layers}{together}"


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


@dataclass(frozen=True, eq=False)
class PreparedMethod:
    """A method on a model."""

    loaded: LoadedModel
    method: Method
    model: Any

    def run(self, images: np.ndarray) -> np.ndarray:
        """Return the scores (N, …, classes) of encoded images (N, h, w, channels), in one call."""
        return self.loaded.run(self.model, images)

    def predict(self, images: np.ndarray) -> Prediction:
        """Return the predictions for encoded images (N, h, w, channels), as many per call as memory allows."""
        at_once = self.method.batch or images_per_call(self.method.cost, *images.shape[1:3])
        batches = [images[start : start + at_once] for start in range(0, len(images), at_once)]
        recipe = self.method.recipe
        if recipe is None or (recipe.candidate_count == 1 and recipe.rule is None):
            return Prediction(np.concatenate([self.loaded.predict(self.model, batch) for batch in batches]))
        with sita.observe(self.model) as observation:
            p = np.concatenate([self.loaded.predict(self.model, batch) for batch in batches])
        return Prediction(p, observation.priors)


def images_per_call(rows: int, height: int, width: int) -> int:
    """Return how many images of this size, of so many rows each, to run at once: 64 rows at 224², more of smaller."""
    return max(1, int(min(512, max(8, 64 * 224**2 / (height * width)))) // rows)


def prepare(method: Method, loaded: LoadedModel, seed: int = 0) -> PreparedMethod:
    """Put a method on a model."""
    if method.recipe is None:
        from .baselines import Memo, Tent

        model: Any = Memo(loaded.model, seed=seed) if method.name == "memo" else Tent(loaded.model)
    elif method.name == SOURCE:
        model = loaded.model
    else:
        recipe = replace(method.recipe, seed=seed) if method.is_random else method.recipe
        model = loaded.adapt(recipe, layers=None if method.layers is None else list(method.layers))
    return PreparedMethod(loaded, method, model)


def check_baselines(methods: Sequence[Method], loaded: LoadedModel) -> None:
    """Raise, before anything runs, where a baseline cannot run."""
    names = [method.name for method in methods if method.recipe is None]
    if names and loaded.framework != "torch":
        raise InputError(
            f"{', '.join(names)}: these train on every image, which is implemented for PyTorch; {loaded.spec} is a "
            f"Keras model. Try: leave them out of --recipes ({', '.join(RECIPES)})."
        )
    if loaded.task == "segmentation" and "memo" in names:
        raise InputError(
            "memo: its augmentations move pixels, so predictions per pixel cannot be averaged. "
            "Try: leave it out of --recipes."
        )


def open_recipe(text: str, task: Task) -> Recipe:
    """Return the recipe of this name, or that of a file that `sita calibrate` or `Recipe.to_json` wrote."""
    path = Path(text)
    if path.suffix != ".json":
        return resolve_recipe(text, {}, task)
    try:
        return Recipe.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"recipe: expected a name or a file; {text} cannot be read: {error}.") from error


def read_methods(text: str, task: Task) -> list[Method]:
    """Read `--recipes`: names separated by commas, each with changes in brackets, as in `ops,augbn[priors=0.9]`.

    `source` always comes first, because everything is compared with it.
    """
    methods: dict[str, Method] = {}
    for entry in [SOURCE, *_split(text)]:
        methods.setdefault(entry, _read_method(entry, task))
    return list(methods.values())


def _split(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    entries, depth = [""], 0
    for letter in text:
        depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            entries.append("")
        else:
            entries[-1] += letter
    return [entry.strip() for entry in entries if entry.strip()]


def _read_method(entry: str, task: Task) -> Method:
    name, bracket, rest = entry.partition("[")
    if bracket and not rest.endswith("]"):
        raise RecipeError(f"recipes: expected name[field=value,…]; received {entry!r}, whose bracket does not close.")
    if name in BASELINES:
        if bracket:
            raise RecipeError(f"recipes: {name!r} has no fields to change; received {entry!r}.")
        return Method(name, None)
    if name.endswith(".json") and not bracket:
        return Method(Path(name).stem, open_recipe(name, task))
    if name not in RECIPES:
        known = (*RECIPES, *BASELINES)
        raise RecipeError(
            f"recipes: expected {', '.join(known)}; received {name!r}.{suggestion(name, known)} "
            "A field is changed in brackets: augbn[priors=0.9]."
        )
    changes = dict(_read_change(part, entry) for part in _split(rest.removesuffix("]")))
    return Method(entry, resolve_recipe(name, changes, task))


def _read_change(part: str, entry: str) -> tuple[str, Any]:
    field, equals, value = part.partition("=")
    if not equals:
        raise RecipeError(f"recipes: expected field=value in the brackets of {entry!r}; received {part!r}.")
    try:
        return field.strip(), ast.literal_eval(value.strip())
    except (ValueError, SyntaxError):  # a word, such as mean
        return field.strip(), value.strip()
