"""calibrate(): choose how strongly to adapt, from clean images whose predictions should stay unchanged."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .api import adapt
from .backend import batches_of, run_scores
from .errors import InputError, RecipeError, SitaWarning
from .recipe import DEFAULT, RECIPES, Recipe, Task, resolve_recipe

STRENGTHS = (1.0, 0.75, 0.5, 0.375, 0.25, 0.1875, 0.125, 0.0625)
"""The strengths that are tried, from the strongest to the most cautious: of a rule; of a number, twice 1 − λ."""

FEWEST_IMAGES = 16

Progress = Callable[[int, int], None]
"""Called with the number of batches done, and of all batches."""


@dataclass(frozen=True)
class Point:
    """A recipe that was tried: the share of unchanged predictions, and of right ones if there are labels."""

    recipe: Recipe
    agreement: float
    accuracy: float | None


@dataclass(frozen=True)
class Calibration:
    """The recipe that was chosen, and what was tried, from the strongest to the first that is cautious enough."""

    recipe: Recipe
    points: tuple[Point, ...]
    source_accuracy: float | None


def calibrate(
    model: Any,
    images: Any,
    labels: Any = None,
    *,
    min_agreement: float = 0.98,
    recipe: Recipe | str = DEFAULT,
    task: Task = "classification",
    batch_size: int = 16,
    progress: Progress | None = None,
    **changes: Any,
) -> Calibration:
    """Find the strongest recipe that keeps the predictions on clean images.

    Args:
        model: A plain model.
        images: 32 to 256 clean images (N, …), as the model takes them, like those that it was trained on.
        labels: (N, …). If given, accuracy may fall by at most 1 − min_agreement, and predictions may change.
        min_agreement: The share of predictions that must stay the source model's.
        recipe: What is calibrated: a recipe with a rule, or with one number, for its prior.
        task: As in `adapt`.
        batch_size: Number of images per call.
        progress: Called with the number of batches done, and of all batches.
        **changes: Fields of the recipe and arguments of `adapt`.

    Returns:
        The calibration. Its recipe is 'source', with a warning, if none keeps the predictions. `Recipe.to_json` stores
        a recipe.

    Raises:
        SitaError: The images or labels are not usable, or the recipe has nothing to calibrate.

    Example:
        >>> adapted = sita.adapt(model, sita.calibrate(model, clean_images).recipe)
    """
    fields = {name: value for name, value in changes.items() if name in Recipe.__dataclass_fields__}
    settings = {name: value for name, value in changes.items() if name not in fields}
    tried = [_with_strength(resolve_recipe(recipe, fields, task), strength) for strength in STRENGTHS]
    arrays = _to_numpy("images", images, "fiub")
    if len(arrays) < FEWEST_IMAGES or not np.isfinite(arrays).all():
        raise InputError(
            f"images: expected at least {FEWEST_IMAGES}, better 32 to 256, of finite numbers; received {len(arrays)}"
            f"{'' if np.isfinite(arrays).all() else ' with NaN or infinity among their values'}."
        )
    truth = None if labels is None else _to_numpy("labels", labels, "iub", len(arrays))
    if not isinstance(min_agreement, int | float) or isinstance(min_agreement, bool) or not 0 < min_agreement <= 1:
        raise InputError(f"min_agreement: expected a share above 0, at most 1; received {min_agreement!r}.")
    batches = batches_of(arrays, batch_size)
    total = len(batches) * (1 + len(tried))
    report = progress or (lambda done, total: None)

    def predictions(chosen: Recipe | str, done: int) -> np.ndarray:
        adapted = adapt(model, chosen, task=task, **settings)
        found = []
        for number, batch in enumerate(batches, 1):
            found.append(_labels(adapted, batch))
            report(done + number, total)
        return np.concatenate(found)

    source = predictions("source", 0)
    if truth is not None and truth.shape != source.shape:
        raise InputError(f"labels: expected shape {source.shape}, like the predictions; received {truth.shape}.")
    right = None if truth is None else float((source == truth).mean())
    points: list[Point] = []
    for number, each in enumerate(tried, 1):
        found = predictions(each, len(batches) * number)
        accuracy = None if truth is None else float((found == truth).mean())
        points.append(Point(each, float((found == source).mean()), accuracy))
        loss = 1 - points[-1].agreement if right is None or accuracy is None else right - accuracy
        if loss <= 1 - min_agreement + 1e-9:
            report(total, total)
            return Calibration(each, tuple(points), right)
    warnings.warn(
        f"No strength keeps {min_agreement:.1%} of the predictions on these images: the most cautious, "
        f"{points[-1].recipe}, keeps {points[-1].agreement:.1%}. The recipe 'source' was chosen, which adapts nothing. "
        "Try: a lower min_agreement=, or images like those that the model was trained on.",
        SitaWarning,
        stacklevel=2,
    )
    return Calibration(RECIPES["source"], tuple(points), right)


def _with_strength(recipe: Recipe, strength: float) -> Recipe:
    """Return a recipe whose rule has this strength, or whose number is 1 − strength / 2."""
    if recipe.rule is not None:
        rule = replace(recipe.rule, strength=strength)
        return replace(recipe, priors=[rule if prior == recipe.rule else prior for prior in recipe.prior_values])
    if len(recipe.prior_values) != 1 or recipe.has_source:
        raise RecipeError(
            f"recipe: {recipe.name!r} has no number to calibrate. Expected a rule, or one number below 1, for its "
            "prior. Try: 'auto', 'augbn' or 'bn'."
        )
    return replace(recipe, priors=1 - strength / 2)


def _to_numpy(name: str, values: Any, kinds: str, count: int | None = None) -> np.ndarray:
    """Return an array of these kinds of numbers, with an entry for each of `count` images."""
    try:
        array = np.asarray(values.detach().cpu().numpy() if hasattr(values, "detach") else values)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name}: expected an array that numpy can hold; received {type(values).__name__}: {error}. "
            "Try: resize the images to one size, and convert bfloat16 to float32."
        ) from error
    if array.dtype.kind not in kinds or array.ndim == 0 or (count is not None and len(array) != count):
        raise InputError(
            f"{name}: expected {'numbers' if 'f' in kinds else 'integers'}, one entry for each image; received shape "
            f"{array.shape}, {array.dtype}."
        )
    return array


def _labels(adapted: Any, batch: np.ndarray) -> np.ndarray:
    """Return the predicted labels (N, …); of sigmoids, whether each is true."""
    values, layout = run_scores(adapted, batch)
    scores = layout.require_scores()
    if scores.kind.startswith("sigmoid"):
        return np.asarray(values > (0.5 if scores.kind == "sigmoid_probabilities" else 0.0))
    return np.asarray(values.argmax(axis=scores.class_axis))
