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
    """One model's answers for N images.

    `labels` and `entropies` (in nats) are (N,), or (N, h, w) if it answers for every pixel; `probabilities` have the
    classes last. `priors` is λ of the most confident candidate; None for a plain model. `near_ties` tells where
    rounding could change a vote. `seconds` is the mean time per image.
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


@dataclass(frozen=True)
class Agreement:
    """How close a model is to the first one.

    `same_labels` is a share; `largest_difference` that of a probability, without the share of `near_ties`, where
    rounding could change the vote of one of the two.
    """

    name: str
    same_labels: float
    largest_difference: float
    near_ties: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """Every model's answers, and the agreement of all but the first with the first. Print it for a table."""

    models: tuple[Answers, ...]
    agreements: tuple[Agreement, ...]

    def __getitem__(self, name: str) -> Answers:
        return {answers.name: answers for answers in self.models}[name]

    def __str__(self) -> str:
        headings = ("model", "framework", "recipe", "entropy", "prior", "ms per image", "same label", "largest Δp")
        rows: list[tuple[str, ...]] = [headings]
        for answers, agreement in zip(self.models, (None, *self.agreements), strict=True):
            ties = f" ({100 * agreement.near_ties:.2g} % near ties)" if agreement and agreement.near_ties else ""
            rows.append(
                (
                    answers.name,
                    answers.framework,
                    "none" if answers.recipe is None else answers.recipe.name,
                    f"{answers.entropies.mean():.3f}",
                    "" if answers.priors is None else f"{answers.priors.mean():.2f}",
                    f"{1e3 * answers.seconds:.1f}",
                    "" if agreement is None else f"{100 * agreement.same_labels:.1f} %{ties}",
                    "" if agreement is None else f"{agreement.largest_difference:.1e}",
                )
            )
        heading = f"{len(self.models[0].labels)} images; labels and probabilities against {self.models[0].name!r}"
        return "\n".join([heading, "", *_table(rows)])


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
    found = [_answer(name, model, arrays[name], recipe, batch_size, changes) for name, model in models.items()]
    shapes = {answers.name: answers.probabilities.shape[1:] for answers in found}
    if len(set(shapes.values())) > 1:
        raise OutputError(f"Expected models with the same classes; received {shapes}.")
    return Comparison(tuple(found), tuple(_agree(found[0], other) for other in found[1:]))


def _answer(  # noqa: PLR0917
    name: str, model: Any, images: Any, recipe: Recipe | str | None, batch_size: int, changes: Mapping[str, Any]
) -> Answers:
    if not isinstance(images, np.ndarray) or images.ndim != 4 or not images.size or images.dtype.kind not in "fiu":
        shape = getattr(images, "shape", type(images).__name__)
        raise InputError(f"images: expected a numpy array of numbers (N, h, w, channels); received {shape}.")
    plain = backend_of(model).adaptation_of(model) is None
    if not plain and (recipe is not None or changes):
        raise RecipeError(
            f"recipe: {name!r} is adapted already, by {adaptation_of(model).recipe.name!r}. Try: leave the recipe out, "
            "or give plain models (sita.unwrap(adapted))."
        )
    if recipe is None and (fields := [name for name in changes if name in Recipe.__dataclass_fields__]):
        raise RecipeError(f"{fields[0]}: there is no recipe to change. Try: compare(models, images, 'ops', …).")
    adapted = adapt(model, recipe or "source", **changes) if plain else model
    batches = batches_of(images, batch_size)
    for batch in {len(batch): batch for batch in batches}.values():  # probe and compile before the clock starts
        run_scores(adapted, batch, channels_last=True)
    start = time.perf_counter()
    outputs = [run_scores(adapted, batch, channels_last=True) for batch in batches]
    seconds = (time.perf_counter() - start) / len(images)
    scores = outputs[0][1].require_scores()
    if scores.kind.startswith("sigmoid"):
        raise OutputError(f"Expected one label per image or pixel; {name!r} has labels with a sigmoid each.")
    with observe(adapted) as observation:
        for batch in batches:
            run_scores(adapted, batch, channels_last=True)
    raw = np.concatenate([values for values, _ in outputs]).astype(np.float64)
    p = np.moveaxis(probabilities(raw, scores.kind, scores.class_axis), scores.class_axis, -1)
    entropies = -np.sum(p * np.log(p, out=np.zeros_like(p), where=p > 0), axis=-1)
    used = None if plain and recipe is None else adaptation_of(adapted).recipe
    votes = used is not None and used.combine == "vote" and used.candidate_count > 1
    ties = near_ties(observation.entropies, observation.kept, observation.labels) if votes else entropies < 0
    priors = None if used is None else np.broadcast_to(observation.priors, entropies.shape)
    return Answers(name, backend_of(model).label, used, p.argmax(-1), p, entropies, priors, ties, seconds)


def _agree(first: Answers, other: Answers) -> Agreement:
    ties = first.near_ties | other.near_ties
    gaps = np.abs(first.probabilities - other.probabilities).max(axis=-1)
    largest = float(gaps.max() if ties.all() else gaps[~ties].max())
    return Agreement(other.name, float((first.labels == other.labels).mean()), largest, float(ties.mean()))


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("─" * width for width in widths), *lines[1:]]
