"""calibrate(): choose how far to adapt, from ordinary images on which the answers should stay what they are."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .api import adapt
from .backend import backend_of, read_adaptation, run_scores
from .errors import InputError, RecipeError, SitaWarning
from .recipe import DEFAULT, RECIPES, Prior, Recipe, Task, read_recipe
from .shift import ByShift

STRENGTHS = (1.0, 0.75, 0.5, 0.375, 0.25, 0.1875, 0.125, 0.0625)
"""What is tried, from the boldest to the most cautious: the strength of a rule; of a number, twice 1 − λ."""

FEWEST_IMAGES = 16

Progress = Callable[[int, int], None]
"""Called with how many of how many batches are done."""


@dataclass(frozen=True)
class Point:
    """A recipe that was tried: the share of answers that stayed, and of right ones where there are labels."""

    recipe: Recipe
    agreement: float
    accuracy: float | None


@dataclass(frozen=True)
class Calibration:
    """What was tried, from the boldest to the first that is cautious enough, and what was chosen."""

    recipe: Recipe
    points: tuple[Point, ...]
    source_accuracy: float | None


def calibrate(
    model: Any,
    images: Any,
    labels: Any = None,
    *,
    keep: float = 0.98,
    recipe: Recipe | str = DEFAULT,
    task: Task = "classification",
    batch_size: int = 16,
    progress: Progress | None = None,
    **changes: Any,
) -> Recipe:
    """Return the boldest recipe that leaves the answers on ordinary images what they are.

    - `images`: 32 to 256 of them (N, …), encoded and with their axes as the model takes them, like those it was trained
      for. Labels are not needed.
    - `labels`: (N, …), where there are any: then the share of right answers may fall by no more than 1 − keep, whatever
      becomes of the others.
    - `keep`: the share of answers that must stay the source model's.
    - `recipe`: what is calibrated, a recipe with a rule or one number for its prior. The number is chosen, the rest
      stays. `changes` are fields of it, and settings of `adapt`.
    - `progress`: called with the numbers of batches done, and of all there may be.

    The same images give the same recipe. Where nothing keeps the answers, the recipe `source` is returned, with a
    warning. A recipe can be stored: `Recipe.to_json`.

    >>> recipe = sita.calibrate(model, ordinary_images)
    >>> adapted = sita.adapt(model, recipe)
    """
    found = run_calibration(
        model, images, labels, keep=keep, recipe=recipe, task=task, batch_size=batch_size, progress=progress, **changes
    )
    if found.recipe is RECIPES["source"]:
        least = found.points[-1]
        warnings.warn(
            f"No strength keeps {keep:.1%} of the answers on these images: the most cautious one, {least.recipe}, "
            f"keeps {least.agreement:.1%}. The recipe 'source' is returned, which adapts nothing. Remedy: a lower "
            "keep=, or images like those that the model was trained on.",
            SitaWarning,
            stacklevel=2,
        )
    return found.recipe


def run_calibration(
    model: Any,
    images: Any,
    labels: Any = None,
    *,
    keep: float = 0.98,
    recipe: Recipe | str = DEFAULT,
    task: Task = "classification",
    batch_size: int = 16,
    progress: Progress | None = None,
    **changes: Any,
) -> Calibration:
    """Return what `calibrate` tries, and chooses."""
    fields = {name: value for name, value in changes.items() if name in Recipe.__dataclass_fields__}
    settings = {name: value for name, value in changes.items() if name not in fields}
    chosen = read_recipe(recipe, fields, task)
    tried = [_with_strength(chosen, strength) for strength in STRENGTHS]
    arrays = _read_images(images)
    truth = None if labels is None else _read_labels(labels, len(arrays))
    if not isinstance(keep, int | float) or isinstance(keep, bool) or not 0 < keep <= 1:
        raise InputError(f"keep: expected a share above 0 and up to 1; received {keep!r}.")
    batches = [arrays[start : start + batch_size] for start in range(0, len(arrays), batch_size)]
    steps = _Steps(progress, len(batches) * (1 + len(tried)))
    source = _answers(adapt(model, "source", task=task, **settings), batches, steps)
    if truth is not None and truth.shape != source.shape:
        raise InputError(f"labels: expected shape {source.shape}, as the model's answers; received {truth.shape}.")
    right = None if truth is None else float((source == truth).mean())
    points: list[Point] = []
    for each in tried:
        answers = _answers(adapt(model, each, task=task, **settings), batches, steps)
        accuracy = None if truth is None else float((answers == truth).mean())
        points.append(Point(each, float((answers == source).mean()), accuracy))
        kept = points[-1].agreement >= keep if right is None or accuracy is None else accuracy >= right - (1 - keep)
        if kept:
            steps.finish()
            return Calibration(each, tuple(points), right)
    return Calibration(RECIPES["source"], tuple(points), right)


def _with_strength(recipe: Recipe, strength: float) -> Recipe:
    """Return a recipe whose boldest rule has this strength, or whose number is 1 − strength / 2."""
    if recipe.rules:
        most = max(rule.strength for rule in recipe.rules)
        priors: Sequence[Prior] = [
            replace(prior, strength=prior.strength * strength / most) if isinstance(prior, ByShift) else prior
            for prior in recipe.lambdas
        ]
        return replace(recipe, priors=priors)
    if len(recipe.lambdas) != 1 or recipe.lambdas[0] == 1.0:
        raise RecipeError(
            f"recipe: {recipe.name!r} has no number to calibrate. Expected a rule or one number below 1 for its prior: "
            "'auto', 'augbn' or 'bn'."
        )
    return replace(recipe, priors=1 - strength / 2)


def _read_images(images: Any) -> np.ndarray:
    try:
        values = images.detach().cpu().numpy() if hasattr(images, "detach") else np.asarray(images)
    except (TypeError, ValueError) as error:
        raise InputError(
            "images: expected one array of images (N, …) of one size; received a mixture that has no shape. Remedy: "
            "resize them to what the model takes."
        ) from error
    if values.dtype == object or values.ndim < 3:
        raise InputError(
            f"images: expected one array of images (N, …) of one size; received shape {values.shape} of {values.dtype}."
        )
    if len(values) < FEWEST_IMAGES:
        raise InputError(
            f"images: expected at least {FEWEST_IMAGES}, better 32 to 256; received {len(values)}, of which a share "
            "says little."
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        bad = int((~np.isfinite(values).reshape(len(values), -1).all(axis=1)).sum())
        raise InputError(f"images: expected finite numbers; received NaN or infinity in {bad} of {len(values)} images.")
    return values


def _read_labels(labels: Any, count: int) -> np.ndarray:
    values = labels.detach().cpu().numpy() if hasattr(labels, "detach") else np.asarray(labels)
    if values.dtype.kind not in "iub" or len(values) != count:
        raise InputError(
            f"labels: expected a whole number for each of the {count} images; received shape {values.shape} of "
            f"{values.dtype}."
        )
    return values


@dataclass
class _Steps:
    """Counts batches for whoever wants to know."""

    progress: Progress | None
    total: int
    done: int = 0

    def advance(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done, self.total)

    def finish(self) -> None:
        if self.progress is not None and self.done < self.total:
            self.progress(self.total, self.total)


def _answers(adapted: Any, batches: Sequence[np.ndarray], steps: _Steps) -> np.ndarray:
    """Return the labels (N, …); of sigmoids, whether each is true."""
    return np.concatenate(list(_each_answer(adapted, batches, steps)))


def _each_answer(adapted: Any, batches: Sequence[np.ndarray], steps: _Steps) -> Iterator[np.ndarray]:
    scores, class_axis = read_adaptation(adapted).scores, backend_of(adapted).ops.class_axis
    for batch in batches:
        values = run_scores(adapted, batch)
        if scores.startswith("sigmoid"):
            yield values > (0.5 if scores == "sigmoid_probabilities" else 0.0)
        else:
            yield values.argmax(axis=class_axis)
        steps.advance()
