"""What a benchmark compares: recipes and baselines, each prepared to predict images in numpy."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import special

import sita_adapters as sita
from sita_adapters.errors import RecipeError, suggestion
from sita_adapters.plan import make_plan
from sita_adapters.recipe import RECIPES, Recipe, Task, resolve_recipe

if TYPE_CHECKING:
    from .models.loaded import LoadedModel

SOURCE = "source"

BASELINES = {"tent": 18, "memo": 30}
"""The paper's comparisons that train on each image, and roughly their cost in rows, to estimate the remaining time."""


class StudyPoint(NamedTuple):
    """A method's position in a study: its curve, its x, and its label."""

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
    def rows(self) -> int | None:
        """How many rows a square image costs."""
        return None if self.recipe is None else make_plan(self.recipe).rows

    @property
    def cost(self) -> int:
        """Roughly what an image costs, in rows."""
        return self.rows or BASELINES[self.name]

    @property
    def priors(self) -> tuple[float, ...]:
        """The values of λ that its choices are counted by; none if it has no choice."""
        if self.recipe is None or (len(self.recipe.prior_values) == 1 and self.recipe.rule is None):
            return ()
        if self.recipe.rule is not None:
            return tuple(step / 20 for step in range(21))
        return tuple(sorted(prior for prior in self.recipe.prior_values if isinstance(prior, float)))

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

    def __getitem__(self, which: Any) -> Prediction:
        """Return the prediction for some of the images or pixels."""
        return Prediction(self.probabilities[which], None if self.priors is None else self.priors[which])

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
        if not self.method.priors:
            return Prediction(np.concatenate([self.loaded.predict(self.model, batch) for batch in batches]))
        with sita.observe(self.model) as observation:
            p = np.concatenate([self.loaded.predict(self.model, batch) for batch in batches])
        return Prediction(p, observation.priors)


def images_per_call(rows: int, height: int, width: int) -> int:
    """Return how many images of this size and number of rows to run at once: 64 rows at 224², more of smaller ones."""
    return max(1, int(min(512, max(8, 64 * 224**2 / (height * width)))) // rows)


def prepare(method: Method, loaded: LoadedModel) -> PreparedMethod:
    """Apply a method to a model."""
    if method.recipe is None:
        from .baselines import Memo, Tent

        model = Memo(loaded.model) if method.name == "memo" else Tent(loaded.model)
        return PreparedMethod(loaded, method, model)
    if method.name == SOURCE:
        return PreparedMethod(loaded, method, loaded.model)
    return PreparedMethod(loaded, method, loaded.adapt(method.recipe, list(method.layers or ())))


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

    A name may change fields in brackets: `augbn[priors=0.9]`. In a text, commas separate the names. `source` always
    comes first, because everything is compared with it.
    """
    entries = _split(recipes) if isinstance(recipes, str) else list(recipes)
    methods: dict[str, Method] = {}
    for entry in [SOURCE, *entries]:
        method = Method(entry.name, entry) if isinstance(entry, Recipe) else _read_method(entry, task)
        if method.recipe is not None and method.recipe.share == "batch":
            raise RecipeError(
                f"recipes: {method.name!r} lets the images of a batch share their statistics, and its scores would "
                "depend on the batches. Expected share='image'. Try: --study batch."
            )
        if methods.setdefault(method.name, method) != method:
            raise RecipeError(f"recipes: two different recipes are named {method.name!r}. Try: rename one of them.")
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
    if name.endswith(".json") and not bracket:
        return Method(Path(name).stem, open_recipe(name, task))
    if name in BASELINES and not bracket:
        return Method(name, None)
    if name not in RECIPES:
        known = (*RECIPES, *BASELINES)
        raise RecipeError(
            f"recipes: expected {', '.join(known)}; received {entry!r}.{suggestion(name, known)} "
            "A recipe's field is changed in brackets: augbn[priors=0.9]."
        )
    changes = {}
    for part in _split(rest.removesuffix("]")):
        field, equals, value = part.partition("=")
        if not equals:
            raise RecipeError(f"recipes: expected field=value in the brackets of {entry!r}; received {part!r}.")
        try:
            changes[field.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError):  # a word, such as mean
            changes[field.strip()] = value.strip()
    return Method(entry, resolve_recipe(name, changes, task))
