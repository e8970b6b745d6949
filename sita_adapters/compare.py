"""compare(): the same images through several models, each in its own framework, side by side."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .api import adapt
from .backend import adaptation_of, backend_of, batches_of, run_scores
from .errors import InputError, OutputError, RecipeError
from .observe import observe
from .recipe import Recipe
from .voting import near_ties, probabilities


@dataclass(frozen=True, eq=False)
class Answers:
    """One model's answers for N images, and how close they are to the first model's.

    `labels` and `entropies` (in nats) are (N,), or (N, h, w) if it answers for every pixel; `probabilities` have the
    classes last. `priors` is λ of the most confident candidate; None for a plain model. `near_ties` tells where
    rounding could change a vote; `seconds` is the mean time per image. `same_labels` is the share of labels that the
    first model gives as well, and `largest_difference` that of a probability, near ties aside.
    """

    name: str
    framework: str
    recipe: Recipe | None
    labels: np.ndarray
    probabilities: np.ndarray
    entropies: np.ndarray
    priors: np.ndarray | None
    near_ties: np.ndarray
    seconds: float
    same_labels: float
    largest_difference: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """Every model's answers. Print it for a table."""

    models: tuple[Answers, ...]

    def __getitem__(self, name: str) -> Answers:
        return {answers.name: answers for answers in self.models}[name]

    def __str__(self) -> str:
        rows = [("model", "framework", "recipe", "entropy", "prior", "ms per image", "same label", "largest Δp")]
        for each in self.models:
            ties = f" ({100 * each.near_ties.mean():.2g} % near ties)" if each.near_ties.any() else ""
            recipe, prior = each.recipe and each.recipe.name, "" if each.priors is None else f"{each.priors.mean():.2f}"
            numbers = f"{each.entropies.mean():.3f}", prior, f"{1e3 * each.seconds:.1f}"
            close = f"{100 * each.same_labels:.1f} %{ties}", f"{each.largest_difference:.1e}"
            rows.append((each.name, each.framework, recipe or "none", *numbers, *close))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        heading = f"{len(self.models[0].labels)} images; labels and probabilities against {self.models[0].name!r}"
        return "\n".join([heading, "", lines[0], "  ".join("─" * width for width in widths), *lines[1:]])


def compare(
    models: Mapping[str, Any],
    images: np.ndarray | Mapping[str, np.ndarray],
    recipe: Recipe | str | None = None,
    *,
    batch_size: int = 8,
    **changes: Any,
) -> Comparison:
    """Run the same images through every model, each in its own framework, and compare the answers.

    Args:
        models: Models by name. An adapted model runs as it is; so does a plain one, unless a recipe is given.
        images: A numpy array (N, h, w, channels), channels last in every framework, encoded as the models take them;
            or one array per model name.
        recipe: Adapts all the models, which then must be plain.
        batch_size: Number of images per call. It changes memory and time, not the adapted answers.
        **changes: Fields of the recipe and arguments of `adapt`.

    Returns:
        A `Comparison`. Print it for a table.

    Raises:
        SitaError: Models and images do not fit each other, or an adapted model was given a recipe.

    Example:
        >>> print(sita.compare({"torch": torch_model, "keras": keras_model}, images, "auto"))
    """
    if not isinstance(models, Mapping) or not models:
        raise InputError(f"models: expected a dict of models by name; received {type(models).__name__}.")
    arrays = images if isinstance(images, Mapping) else dict.fromkeys(models, images)
    if set(arrays) != set(models) or len({len(array) for array in arrays.values()}) > 1:
        raise InputError(f"images: expected one array, or equally many images for each of {', '.join(models)}.")
    found: list[Answers] = []
    for name, model in models.items():
        found.append(_answer(name, _adapted(name, model, recipe, changes), arrays[name], batch_size, found[:1]))
    return Comparison(tuple(found))


def _adapted(name: str, model: Any, recipe: Recipe | str | None, changes: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return the model that runs, and whether it is as it was given, and plain."""
    plain = backend_of(model).adaptation_of(model) is None
    if not plain and (recipe is not None or changes):
        raise RecipeError(
            f"recipe: {name!r} is adapted already, by {adaptation_of(model).recipe.name!r}. Try: leave the recipe out, "
            "or give plain models (sita.unwrap(adapted))."
        )
    if recipe is None and (fields := [name for name in changes if name in Recipe.__dataclass_fields__]):
        raise RecipeError(f"{fields[0]}: there is no recipe to change. Try: compare(models, images, 'ops', …).")
    return adapt(model, recipe or "source", **changes) if plain else model, plain and recipe is None


def _answer(name: str, model: tuple[Any, bool], images: Any, batch_size: int, first: list[Answers]) -> Answers:
    if not isinstance(images, np.ndarray) or images.ndim != 4 or not images.size or images.dtype.kind not in "fiu":
        shape = getattr(images, "shape", type(images).__name__)
        raise InputError(f"images: expected a numpy array of numbers (N, h, w, channels); received {shape}.")
    adapted, plain = model
    batches = batches_of(images, batch_size)
    for batch in {len(batch): batch for batch in batches}.values():  # probe and compile before the clock starts
        run_scores(adapted, batch, channels_last=True)
    start = time.perf_counter()
    outputs = [run_scores(adapted, batch, channels_last=True) for batch in batches]
    seconds = (time.perf_counter() - start) / len(images)
    scores = outputs[0][1].require_scores()
    if scores.kind.startswith("sigmoid"):
        raise OutputError(f"Expected one label per image or pixel; {name!r} has labels with a sigmoid each.")
    raw = np.concatenate([values for values, _ in outputs]).astype(np.float64)
    p = np.moveaxis(probabilities(raw, scores.kind, scores.class_axis), scores.class_axis, -1)
    labels, entropies = p.argmax(-1), -np.sum(p * np.log(p, out=np.zeros_like(p), where=p > 0), axis=-1)
    recipe = None if plain else adaptation_of(adapted).recipe
    priors, ties = None, np.zeros(entropies.shape, bool)
    if recipe is not None:
        with observe(adapted) as observation:
            for batch in batches:
                run_scores(adapted, batch, channels_last=True)
        priors = observation.priors
        if recipe.combine == "vote" and recipe.candidate_count > 1:
            ties = near_ties(observation.entropies, observation.kept, observation.labels)
    other = first[0] if first else None
    if other is not None and other.probabilities.shape != p.shape:
        shapes = [f"{each!r}: {array.shape[1:]}" for each, array in ((other.name, other.probabilities), (name, p))]
        raise OutputError(f"Expected models with the same classes; received {' and '.join(shapes)}.")
    same, gaps = 1.0, np.zeros(1)
    if other is not None:
        same, ties = float((labels == other.labels).mean()), ties | other.near_ties
        gaps = np.abs(p - other.probabilities).max(axis=-1)
        gaps = gaps if ties.all() else gaps[~ties]
    framework = backend_of(adapted).label
    return Answers(name, framework, recipe, labels, p, entropies, priors, ties, seconds, same, float(gaps.max()))
