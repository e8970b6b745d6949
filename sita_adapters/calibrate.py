"""calibrate(): choose a recipe for a model, from the user's own clean images without labels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .api import adapt
from .backend import adaptation_of, backend_of, run_batches
from .errors import InputError, SitaWarning
from .inputs import Inputs
from .observe import observe
from .outputs import Selector
from .plan import make_plan
from .recipe import DEFAULT, RECIPES, Recipe, Task
from .selection import Layers
from .shift import ByExcessShift, ByShift
from .voting import Scores

MIRROR_AGREEMENT = 0.85
"""Mirror images may answer if the source model predicts at least this share of them like the original images."""

ROW_VALUE = 1.0
"""How many points each additional row must gain."""

_BATCH = 16


@dataclass(frozen=True, eq=False)
class _Tried:
    """A recipe, its number of rows, and the percentage of its correct predictions on clean images.

    `right` is this percentage for every corrupted image, (N,).
    """

    recipe: Recipe
    rows: int
    clean: float
    right: np.ndarray

    @property
    def corrupted(self) -> float:
        return float(self.right.mean())

    def advantage(self, other: _Tried) -> float:
        """Return the lead over another recipe in points, minus one standard error and the cost of its extra rows."""
        difference = self.right - other.right
        chance = float(difference.std() / math.sqrt(len(difference)))
        return float(difference.mean()) - chance - ROW_VALUE * (self.rows - other.rows)


def calibrate(
    model: Any,
    images: Any,
    labels: Any = None,
    *,
    min_agreement: float = 0.9,
    progress: Callable[[float], None] | None = None,
    task: Task = "classification",
    inputs: Inputs | str | None = None,
    scores: Scores | None = None,
    output: Selector = None,
    class_axis: int | None = None,
    layers: Layers = None,
    max_rows: int | None = None,
) -> Recipe:
    """Choose a recipe for a model, from clean images like those that it was trained on.

    Each layer measures its shift on the clean images, and then adapts only to larger shifts (`ByExcessShift`). This
    rule is tried in one row, in two rows mixed with the source model, and averaged over the image and its mirror image
    if the source model predicts the same label for most mirror images. These recipes are compared with `auto`, on the
    images and on corrupted copies of them. A prediction counts as correct if it matches the source model's prediction
    on the clean image. A recipe replaces `auto` if it is better by more than one standard error. Each additional row
    must gain one more point, and a recipe with one row fewer may lose one point.

    Args:
        model: A plain model.
        images: At least 128 clean images (N, …), encoded as the model expects. With fewer, the choice is noisy.
        labels: The true labels, (N, …), if you have them. They replace the source model's predictions.
        min_agreement: The share of the source model's predictions on the clean images that must stay the same. With
            labels, accuracy may fall by at most 1 − min_agreement.
        progress: A function that is called with the fraction completed, from 0 to 1.
        task, inputs, scores, output, class_axis, layers, max_rows: As for `adapt`.

    Returns:
        The recipe 'auto-calibrated', or `auto` if that is as good. If no recipe meets the conditions, it is 'source',
        with a warning. The recipe's `notes` contain the measured cost and expected gain.

    Raises:
        SitaError: The images or labels are not usable, or the model cannot be adapted.

    Example:
        >>> recipe = sita.calibrate(model, clean_images)
        >>> print(recipe.notes)
        >>> adapted = sita.adapt(model, recipe)
    """
    settings: dict[str, Any] = {"task": task, "inputs": inputs, "scores": scores, "output": output}
    settings |= {"class_axis": class_axis, "layers": layers, "max_rows": max_rows}
    if not isinstance(min_agreement, int | float) or min_agreement is True or not 0 < min_agreement <= 1:
        raise InputError(f"min_agreement: expected a share above 0, at most 1; received {min_agreement!r}.")
    pixels, truth = _check_images(model, images, labels)
    measuring = adapt(model, Recipe(priors=ByShift(strength=1e-9), n_views=0), **settings)
    with observe(measuring) as seen:
        source = _predict(measuring, pixels)
    wanted = source if truth is None else truth
    if wanted.dtype.kind not in "iub" or wanted.shape != source.shape:
        raise InputError(f"labels: expected integers, {source.shape}; received {wanted.dtype}, {wanted.shape}.")
    # A layer may run several times in a call.
    measured = list(zip(seen.layers, seen.layer_shifts[:, 0].mean(axis=0), strict=True))
    rule = ByExcessShift({name: float(np.mean([d for each, d in measured if each == name])) for name in seen.layers})
    channel = adaptation_of(measuring).channel_axis % pixels.ndim
    space = [axis for axis in range(1, pixels.ndim) if axis != channel]
    recipes = _recipes(rule, mirror=_keeps_mirrored(measuring, pixels, source, space))
    tried, corrupted = [], list(_corrupt(pixels, space))
    for place, recipe in enumerate(recipes):
        adapted = adapt(model, recipe, **settings)
        clean = 100 * float((_predict(adapted, pixels) == wanted).mean())
        right = [(_predict(adapted, some) == wanted[which]).reshape(len(which), -1) for some, which in corrupted]
        by_image = 100 * np.concatenate([each.mean(axis=1) for each in right])
        tried.append(_Tried(recipe, make_plan(recipe).rows, clean, by_image))
        if progress is not None:
            progress((place + 1) / len(recipes))
    return _choose(tried, len(pixels), min_agreement)


def _keeps_mirrored(measuring: Any, pixels: np.ndarray, source: np.ndarray, space: list[int]) -> bool:
    """Whether the source model predicts the same label for most mirror images. Label maps are not compared."""
    if not space or source.ndim > 1:
        return False
    return bool((_predict(measuring, np.flip(pixels, axis=space[-1])) == source).mean() >= MIRROR_AGREEMENT)


def _check_images(model: Any, images: Any, labels: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Return images and labels as numpy arrays, after checking the images."""
    ops = backend_of(model).ops
    try:
        pixels, truth = (np.asarray(ops.to_numpy(each) if ops.is_array(each) else each) for each in (images, labels))
    except ValueError as error:
        raise InputError(f"images, labels: expected one size; received {error}. Try: resize the images.") from error
    finite = pixels.dtype.kind in "fiub" and bool(np.isfinite(pixels).all())
    if not finite or pixels.ndim < 2 or len(pixels) < 16:
        what = f"{pixels.shape}, {pixels.dtype}{'' if finite else ', with values that are not finite numbers'}"
        raise InputError(f"images: expected 16 or more, of finite numbers; received {what}.")
    return pixels, None if labels is None else truth


def _predict(adapted: Any, images: np.ndarray) -> np.ndarray:
    """Return the predicted labels (N, …); for sigmoid scores, whether each label is true."""
    found = []
    for values, scores in run_batches(adapted, images, batch_size=_BATCH):
        threshold = 0.5 if scores.kind == "sigmoid_probabilities" else 0.0
        found.append(values > threshold if scores.kind.startswith("sigmoid") else values.argmax(scores.class_axis))
    return np.concatenate(found)


def _recipes(rule: ByExcessShift, *, mirror: bool) -> list[Recipe]:
    """Return the recipes to try: `source` first, the default last."""
    single_row = Recipe(name=f"{DEFAULT}-calibrated", priors=rule, n_views=0)
    found = [RECIPES["source"], single_row, replace(single_row, priors=(1.0, rule), combine="mix")]
    if mirror:
        found.append(replace(single_row, n_views=1, augment="hflip", candidates="views", combine="mean"))
    return [*found, RECIPES[DEFAULT]]


def _corrupt(images: np.ndarray, space: list[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield corrupted copies of some images, and their indices: noise, blur, contrast and light, at two strengths.

    Strengths are relative to the spread of all pixels, so they fit any encoding.
    """
    random = np.random.default_rng(0)
    x = images.astype(np.float32)
    low, high, spread = x.min(), x.max(), float(x.std())
    everything = tuple(range(1, x.ndim))

    def contrast(some: np.ndarray, factor: float) -> np.ndarray:
        mean = some.mean(axis=everything, keepdims=True)
        return np.asarray(mean + factor * (some - mean))

    kinds: list[Callable[[np.ndarray, float], np.ndarray]] = [
        lambda some, strength: some + strength * spread * random.standard_normal(some.shape, np.float32),
        lambda some, strength: contrast(some, 1 / (1 + 5 * strength)),
        lambda some, strength: some + 2 * strength * spread,
        lambda some, strength: contrast(some, 1 / (1 + 2 * strength)) + strength * spread,
    ]
    if space:
        kinds.append(lambda some, strength: _blur(some, space, strength))
    for number, (kind, strength) in enumerate((kind, strength) for strength in (0.3, 0.8) for kind in kinds):
        which = np.arange(number % 3, len(x), 3)  # a third of the images
        yield np.clip(kind(x[which], strength), low, high).astype(images.dtype), which


def _blur(x: np.ndarray, space: list[int], strength: float) -> np.ndarray:
    """Average over a window of up to a tenth of each side."""
    for axis in space[-2:]:
        side = x.shape[axis]
        reach = max(1, round(0.05 * strength * side))
        padded = np.pad(x, [(reach, reach) if each == axis else (0, 0) for each in range(x.ndim)], mode="edge")
        shifted = [np.take(padded, range(start, start + side), axis=axis) for start in range(2 * reach + 1)]
        x = np.mean(shifted, axis=0)
    return x


def _choose(tried: list[_Tried], count: int, min_agreement: float) -> Recipe:
    """Return the best recipe that keeps enough predictions on clean images, with notes on the measurements."""
    source, *others, default = tried
    kept = [each for each in (default, *others) if source.clean - each.clean <= 100 * (1 - min_agreement) + 1e-9]
    best = max(kept, key=lambda each: 0.0 if each is kept[0] else each.advantage(kept[0]), default=source)
    if best.corrupted <= source.corrupted:
        best = source
        warnings.warn(
            f"No recipe keeps {min_agreement:.0%} of the predictions on these images and gains on corrupted copies. "
            "The recipe 'source', which does not adapt, was chosen. Try: a lower min_agreement=, or images like those "
            "in training.",
            SitaWarning,
            stacklevel=3,
        )
    lines = [f"{'rows':>4}  {'clean':>7}  {'corrupted':>9}  recipe"]
    lines += [f"{each.rows:>4}  {each.clean:>6.1f}%  {each.corrupted:>8.1f}%  {each.recipe}" for each in tried]
    gain = f"{best.corrupted - source.corrupted:+.1f} points on corrupted images"
    change = f"{best.clean - source.clean:+.1f} on clean ones"
    rows = f"{best.rows} {'row' if best.rows == 1 else 'rows'} per image"
    what = "Below: % of predictions that match the source model's on the clean image (or the labels, if given)."
    notes = f"Expected from {count} clean images: {gain}, {change}, for {rows}. {what}\n" + "\n".join(lines)
    return replace(best.recipe, notes=notes)
