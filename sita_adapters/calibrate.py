"""calibrate(): choose how strongly to adapt, from clean images whose predictions should stay unchanged."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .api import adapt
from .backend import backend_of, run_batches
from .errors import InputError, RecipeError, SitaWarning
from .recipe import DEFAULT, RECIPES, Recipe, resolve_recipe

STRENGTHS = (1.0, 0.75, 0.5, 0.375, 0.25, 0.1875, 0.125, 0.0625)
"""The strengths of a rule that are tried, from the strongest to the most cautious."""


@dataclass(frozen=True)
class Calibration:
    """The recipe that was chosen, and those that were tried, the source first, then from the strongest on.

    Each has the share of its predictions that are the source model's, or, if there are labels, that are right.
    """

    recipe: Recipe
    tried: tuple[tuple[Recipe, float], ...]


def calibrate(
    model: Any,
    images: Any,
    labels: Any = None,
    *,
    min_agreement: float = 0.98,
    recipe: Recipe | str = DEFAULT,
    **changes: Any,
) -> Calibration:
    """Find the strongest recipe that keeps the predictions on clean images.

    Args:
        model: A plain model.
        images: 32 to 256 clean images (N, …), as the model takes them, like those that it was trained on.
        labels: (N, …). If given, accuracy may fall by at most 1 − min_agreement, and predictions may change.
        min_agreement: The share of predictions that must stay the source model's.
        recipe: What is calibrated: a recipe whose prior is a rule.
        **changes: Fields of the recipe and arguments of `adapt`.

    Returns:
        The calibration. Its recipe is 'source', with a warning, if none keeps the predictions.

    Raises:
        SitaError: The images or labels are not usable, or the recipe has nothing to calibrate.

    Example:
        >>> adapted = sita.adapt(model, sita.calibrate(model, clean_images).recipe)
    """
    fields = {name: value for name, value in changes.items() if name in Recipe.__dataclass_fields__}
    settings = {name: value for name, value in changes.items() if name not in fields}
    chosen = resolve_recipe(recipe, fields, settings.get("task", "classification"))
    rule = chosen.rule
    if rule is None:
        raise RecipeError(f"recipe: expected a rule for its prior; {chosen.name!r} has none. Try: 'auto' or 'shift'.")
    if not isinstance(min_agreement, int | float) or min_agreement is True or not 0 < min_agreement <= 1:
        raise InputError(f"min_agreement: expected a share above 0, at most 1; received {min_agreement!r}.")
    ops = backend_of(model).ops
    try:
        pixels, truth = (np.asarray(ops.to_numpy(each) if ops.is_array(each) else each) for each in (images, labels))
    except ValueError as error:
        raise InputError(f"images, labels: expected one size; received {error}. Try: resize the images.") from error
    finite = pixels.dtype.kind in "fiub" and bool(np.isfinite(pixels).all())
    if not finite or pixels.ndim < 2 or len(pixels) < 16:
        what = f"{pixels.shape}, {pixels.dtype}{'' if finite else ', with values that are no finite numbers'}"
        raise InputError(f"images: expected 16 or more, of finite numbers; received {what}.")
    source = _predict(adapt(model, "source", **settings), pixels)
    wanted = source if labels is None else truth
    if wanted.dtype.kind not in "iub" or wanted.shape != source.shape:
        raise InputError(f"labels: expected integers, {source.shape}; received {wanted.dtype}, {wanted.shape}.")
    tried = [(RECIPES["source"], float((source == wanted).mean()))]
    for strength in STRENGTHS:
        new = replace(rule, strength=strength)
        each = replace(chosen, priors=[new if prior == rule else prior for prior in chosen.prior_values])
        share = float((_predict(adapt(model, each, **settings), pixels) == wanted).mean())
        tried.append((each, share))
        if tried[0][1] - share <= 1 - min_agreement + 1e-9:
            return Calibration(each, tuple(tried))
    warnings.warn(
        f"No strength keeps {min_agreement:.1%} of the predictions on these images. The recipe 'source' was chosen, "
        "which adapts nothing. Try: a lower min_agreement=, or images like those that the model was trained on.",
        SitaWarning,
        stacklevel=2,
    )
    return Calibration(RECIPES["source"], tuple(tried))


def _predict(adapted: Any, images: np.ndarray) -> np.ndarray:
    """Return the predicted labels (N, …); of sigmoids, whether each is true."""
    found = []
    for values, scores in run_batches(adapted, images, batch_size=16):
        threshold = 0.5 if scores.kind == "sigmoid_probabilities" else 0.0
        found.append(values > threshold if scores.kind.startswith("sigmoid") else values.argmax(scores.class_axis))
    return np.concatenate(found)
