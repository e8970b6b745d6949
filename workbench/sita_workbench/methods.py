"""What a benchmark compares: recipes and baselines, each made ready to answer images in numpy."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from sita_adapters.api import adapt, describe
from sita_adapters.backend import backend_of
from sita_adapters.errors import InputError, RecipeError, suggestion
from sita_adapters.observation import observe
from sita_adapters.plan import make_plan
from sita_adapters.recipe import RECIPES, Recipe, Task, read_recipe
from sita_adapters.views import is_random
from sita_adapters.voting import Scores, read_scores

if TYPE_CHECKING:
    from .models.loading import Subject

BASELINES = ("tent", "memo")
"""What the paper compares with that trains on each image. They need gradients, and so PyTorch."""

SOURCE = "source"

_BASELINE_ROWS = {"tent": 18, "memo": 30}
"""Roughly how many forward rows a baseline costs, for the time that is left; measured times are another thing."""


@dataclass(frozen=True)
class Point:
    """Where a method stands in a study: on which curve, at which x, and what to call it."""

    series: str
    x: float
    label: str


@dataclass(frozen=True)
class Method:
    """A recipe or a baseline under a name; `batch` images share a call where they share their statistics."""

    name: str
    recipe: Recipe | None
    layers: tuple[str, ...] | None = None
    batch: int | None = None
    point: Point | None = None
    baseline: str | None = None

    @property
    def is_random(self) -> bool:
        """Whether another seed may give another answer."""
        if self.recipe is None:
            return self.baseline == "memo"
        return self.recipe.view_count > 0 and is_random(self.recipe.augment)

    @property
    def rows(self) -> int | None:
        """How many rows a square image costs."""
        return None if self.recipe is None else make_plan(self.recipe).rows

    @property
    def weight(self) -> int:
        """What an image costs, roughly, in rows."""
        return self.rows or _BASELINE_ROWS[self.baseline or "tent"]

    def __str__(self) -> str:
        if self.recipe is None:
            return f"{self.baseline}: reset for every image"
        only = "" if self.layers is None else f"; layers {', '.join(self.layers)}"
        together = "" if self.batch is None else f"; {self.batch} images at a time"
        return f"{self.recipe}{only}{together}"


@dataclass(frozen=True, eq=False)
class Said:
    """What a method said of N images: p (N, classes, …), and λ of the most certain candidate (N, …)."""

    probabilities: np.ndarray
    priors: np.ndarray | None


@dataclass(frozen=True, eq=False)
class Ready:
    """A method on a model: what answers, and what it is given at once."""

    method: Method
    model: Any
    run: Callable[[np.ndarray], np.ndarray]
    """From images as the framework takes them to scores, classes at axis 1."""
    arrange: Callable[[np.ndarray], np.ndarray]
    scores: Scores
    watches: bool
    """Whether several candidates decide, so that there is a chosen prior."""

    def answer(self, images: np.ndarray) -> Said:
        """Return what it says of encoded images (N, h, w, channels), as many at once as memory bears."""
        arranged = self.arrange(images)
        at_once = self.method.batch or max(1, _row_budget(images) // self.method.weight)
        batches = [arranged[start : start + at_once] for start in range(0, len(arranged), at_once)]
        if not self.watches:
            return Said(_probabilities(np.concatenate([self.run(batch) for batch in batches]), self.scores), None)
        with observe(self.model) as seen:
            raw = np.concatenate([self.run(batch) for batch in batches])
        return Said(_probabilities(raw, self.scores), seen.priors)


def _row_budget(images: np.ndarray) -> int:
    """Return how many rows to run at once: 64 at 224², more of smaller ones."""
    return int(min(512, max(8, 64 * 224**2 / (images.shape[1] * images.shape[2]))))


def _probabilities(raw: np.ndarray, scores: Scores) -> np.ndarray:
    values = raw.astype(np.float64)
    if scores == "probabilities":
        return values
    exponentials = np.exp(values - values.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))


def prepare(method: Method, subject: Subject, seed: int = 0) -> Ready:
    """Put a method on a model."""
    runner = backend_of(subject.model).runner()

    def run(model: Any, batch: np.ndarray) -> np.ndarray:
        return np.moveaxis(runner.run(model, batch), runner.class_axis, 1)

    def arrange(images: np.ndarray) -> np.ndarray:
        return runner.arrange(subject.spec, subject.model, images)

    if method.recipe is None or method.name == SOURCE:
        model = subject.model if method.recipe is not None else _baseline(method, subject, seed)
        scores = read_scores(subject.scores, backend_of(subject.model).scores_of(subject.model))
        return Ready(method, model, lambda batch: run(model, batch), arrange, scores, watches=False)
    recipe = replace(method.recipe, seed=seed) if method.is_random else method.recipe
    adapted = adapt(subject.model, recipe, task=subject.task, inputs=subject.inputs, scores=subject.scores,
                    layers=None if method.layers is None else list(method.layers))  # fmt: skip
    several = recipe.candidate_count > 1
    return Ready(method, adapted, lambda batch: run(adapted, batch), arrange, describe(adapted).scores, several)


def _baseline(method: Method, subject: Subject, seed: int) -> Any:
    from .baselines import Memo, Tent

    return Memo(subject.model, seed=seed) if method.baseline == "memo" else Tent(subject.model)


def check_baselines(methods: Sequence[Method], subject: Subject) -> None:
    """Raise before anything runs where a baseline cannot."""
    wanted = [method.name for method in methods if method.recipe is None]
    if not wanted:
        return
    if backend_of(subject.model).runner().label != "torch":
        raise InputError(
            f"{', '.join(wanted)}: these train on every image, which is implemented for PyTorch; {subject.spec} is a "
            f"Keras model. Remedy: leave them out of --recipes ({', '.join(RECIPES)})."
        )
    if subject.task == "segmentation" and "memo" in wanted:
        raise InputError(
            "memo: its augmentations move pixels, so that answers for every pixel cannot be averaged. "
            "Remedy: leave it out of --recipes."
        )


def read_methods(text: str, task: Task) -> list[Method]:
    """Read `--recipes`: names with commas between, each with changes in brackets, as in `ops,augbn[priors=0.9]`.

    `source` always comes first: everything is held against it.
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
        return Method(name, None, baseline=name)
    if name not in RECIPES:
        known = (*RECIPES, *BASELINES)
        raise RecipeError(
            f"recipes: expected {', '.join(known)}; received {name!r}.{suggestion(name, known)} "
            "A field is changed in brackets: augbn[priors=0.9]."
        )
    changes = dict(_read_change(part, entry) for part in _split(rest.removesuffix("]")))
    return Method(entry, read_recipe(name, changes, task))


def _read_change(part: str, entry: str) -> tuple[str, Any]:
    field, equals, value = part.partition("=")
    if not equals:
        raise RecipeError(f"recipes: expected field=value in the brackets of {entry!r}; received {part!r}.")
    try:
        return field.strip(), ast.literal_eval(value.strip())
    except (ValueError, SyntaxError):  # a word, such as mean
        return field.strip(), value.strip()
