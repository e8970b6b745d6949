"""calibrate(): choose the recipe for a model from clean images of the user's own, without labels."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
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
"""From this share on of images that the source predicts like their mirror image, a mirror image may answer, too."""

ROW_VALUE = 1.0
"""How many points one more row must gain."""

_BATCH = 16


@dataclass(frozen=True, eq=False)
class _Tried:
    """A recipe, its rows, and the percentage of its predictions that are the wanted ones.

    `right` is the same of every corrupted image, (N,).
    """

    recipe: Recipe
    rows: int
    clean: float
    right: np.ndarray

    @property
    def corrupted(self) -> float:
        return float(self.right.mean())

    def advantage(self, other: _Tried) -> float:
        """Return how many points it is better than another beyond chance, its rows taken into account."""
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
    """Choose the recipe for a model, from clean images like those that it was trained on.

    The shift that each layer measures on clean images tells from which shift on it should adapt (`ByExcessShift`). That
    rule is tried in one row, beside the source model, and, if mirrored images mean the same to the model, on the
    image and its mirror image, and compared with `auto`: on the images, and on corrupted copies of them. A prediction
    counts as right if it is the source model's on the clean image. Another recipe than `auto` is chosen if it is better
    by more than one standard error; one more row must gain a point, one row less may lose one.

    Args:
        model: A plain model.
        images: 128 to 256 clean images (N, …), as the model takes them. With fewer, the choice is noisy.
        labels: (N, …). If given, they say which predictions are right.
        min_agreement: The share of predictions on the clean images that must stay the source model's. With labels,
            accuracy may fall by at most the rest.
        progress: Called with the share that is done.
        task, inputs, scores, output, class_axis, layers, max_rows: As for `adapt`.

    Returns:
        The recipe: 'auto-calibrated', or `auto` if that is as good; 'source', with a warning, if none may be used. Its
        `notes` say what was measured: cost and expected gain.

    Raises:
        SitaError: The images or labels are not usable.

    Example:
        >>> recipe = sita.calibrate(model, clean_images)
        >>> print(recipe.notes)
        >>> adapted = sita.adapt(model, recipe)
    """
    settings: dict[str, Any] = {
        "task": task,
        "inputs": inputs,
        "scores": scores,
        "output": output,
        "class_axis": class_axis,
        "layers": layers,
        "max_rows": max_rows,
    }
    if not isinstance(min_agreement, int | float) or min_agreement is True or not 0 < min_agreement <= 1:
        raise InputError(f"min_agreement: expected a share above 0, at most 1; received {min_agreement!r}.")
    pixels, truth = _check_images(model, images, labels)
    measuring = adapt(model, Recipe(priors=ByShift(strength=1e-9), n_views=0), **settings)
    with observe(measuring) as seen:
        source = _predict(measuring, pixels)
    wanted = source if truth is None else truth
    if wanted.dtype.kind not in "iub" or wanted.shape != source.shape:
        raise InputError(f"labels: expected integers, {source.shape}; received {wanted.dtype}, {wanted.shape}.")
    rule = ByExcessShift(_mean_by_name(seen.layers, seen.layer_shifts[:, 0].mean(axis=0)))
    channel = adaptation_of(measuring).channel_axis % pixels.ndim
    space = [axis for axis in range(1, pixels.ndim) if axis != channel]
    mirrored = np.flip(pixels, axis=space[-1]) if space and source.ndim == 1 else None
    same = mirrored is not None and (_predict(measuring, mirrored) == source).mean() >= MIRROR_AGREEMENT
    corrupted = list(_corrupt(pixels, space))
    recipes = [RECIPES["source"], *_recipes(rule, mirror=bool(same)), RECIPES[DEFAULT]]
    tried = []
    for place, recipe in enumerate(recipes):
        adapted = adapt(model, recipe, **settings)
        clean = _predict(adapted, pixels) == wanted
        right = [_by_image(_predict(adapted, some) == wanted[which]) for some, which in corrupted]
        tried.append(_Tried(recipe, make_plan(recipe).rows, 100 * float(clean.mean()), 100 * np.concatenate(right)))
        if progress is not None:
            progress((place + 1) / len(recipes))
    return _choose(tried, len(pixels), min_agreement)


def _check_images(model: Any, images: Any, labels: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Return images and labels as numpy arrays, after checking the images."""
    ops = backend_of(model).ops
    try:
        pixels, truth = (np.asarray(ops.to_numpy(each) if ops.is_array(each) else each) for each in (images, labels))
    except ValueError as error:
        raise InputError(f"images, labels: expected one size; received {error}. Try: resize the images.") from error
    finite = pixels.dtype.kind in "fiub" and bool(np.isfinite(pixels).all())
    if not finite or pixels.ndim < 2 or len(pixels) < 16:
        what = f"{pixels.shape}, {pixels.dtype}{'' if finite else ', with values that are no finite numbers'}"
        raise InputError(f"images: expected 16 or more, of finite numbers; received {what}.")
    return pixels, None if labels is None else truth


def _predict(adapted: Any, images: np.ndarray) -> np.ndarray:
    """Return the predicted labels (N, …); of sigmoids, whether each is true."""
    found = []
    for values, scores in run_batches(adapted, images, batch_size=_BATCH):
        threshold = 0.5 if scores.kind == "sigmoid_probabilities" else 0.0
        found.append(values > threshold if scores.kind.startswith("sigmoid") else values.argmax(scores.class_axis))
    return np.concatenate(found)


def _by_image(right: np.ndarray) -> np.ndarray:
    """Return the share of right predictions of every image: of its labels, or of its pixels."""
    return np.asarray(right.reshape(len(right), -1).mean(axis=1))


def _mean_by_name(names: Sequence[str], shifts: np.ndarray) -> dict[str, float]:
    """Return the mean shift of every layer, which may run several times in a call."""
    return {name: float(np.mean([d for each, d in zip(names, shifts, strict=True) if each == name])) for name in names}


def _recipes(rule: ByExcessShift, *, mirror: bool) -> Iterator[Recipe]:
    alone = Recipe(name=f"{DEFAULT}-calibrated", priors=rule, n_views=0)
    yield alone
    yield replace(alone, priors=(1.0, rule), combine="mix")
    if mirror:
        yield replace(alone, n_views=1, augment="hflip", candidates="views", combine="mean")


def _corrupt(images: np.ndarray, space: list[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield corrupted copies of some of the images, and which: noise, blur, contrast and light, weaker and stronger.

    Strengths are relative to the spread of all pixels, so that they fit any encoding.
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
    """Return the best recipe that changes few predictions on clean images, with notes on what was measured."""
    source, *others, default = tried
    kept = [each for each in (default, *others) if source.clean - each.clean <= 100 * (1 - min_agreement) + 1e-9]
    best = max(kept, key=lambda each: 0.0 if each is kept[0] else each.advantage(kept[0]), default=source)
    if best.corrupted <= source.corrupted:
        best = source
        warnings.warn(
            f"No recipe keeps {min_agreement:.0%} of the predictions on these images and gains on corrupted copies of "
            "them. The recipe 'source' was chosen, which adapts nothing. Try: a lower min_agreement=, or images like "
            "those that the model was trained on.",
            SitaWarning,
            stacklevel=3,
        )
    lines = [f"{'rows':>4}  {'clean':>7}  {'corrupted':>9}  recipe", *map(_line, tried)]
    gain = f"{best.corrupted - source.corrupted:+.1f} points on corrupted images"
    change = f"{best.clean - source.clean:+.1f} on clean ones"
    rows = f"{best.rows} {'row' if best.rows == 1 else 'rows'} per image"
    notes = f"Expected from {count} clean images: {gain}, {change}, for {rows}.\n" + "\n".join(lines)
    return replace(best.recipe, notes=notes)


def _line(each: _Tried) -> str:
    return f"{each.rows:>4}  {each.clean:>6.1f}%  {each.corrupted:>8.1f}%  {each.recipe}"
