"""compare(): run the same images through several models, each in its own framework, and compare the answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .api import adapt
from .backend import adaptation_of, backend_of, run_batches
from .errors import InputError, OutputError, RecipeError
from .recipe import Recipe, RecipeName
from .voting import probabilities


@dataclass(frozen=True, eq=False)
class ComparedModel:
    """One model's answers for N images, and how close they are to the first model's.

    Attributes:
        name: The model's name.
        framework: The framework that runs it.
        recipe: The recipe that it was adapted with.
        labels: (N,), or (N, h, w) if the model predicts a label for every pixel.
        probabilities: The class probabilities, with the classes on the last axis.
        entropies: In nats, with the shape of `labels`.
        same_labels: The share of labels that agree with the first model's.
        largest_difference: The largest difference between its probabilities and the first model's.
    """

    name: str
    framework: str
    recipe: Recipe
    labels: np.ndarray
    probabilities: np.ndarray
    entropies: np.ndarray
    same_labels: float
    largest_difference: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """Every model's answers. Print it to see a table."""

    models: tuple[ComparedModel, ...]

    def __getitem__(self, name: str) -> ComparedModel:
        return {answers.name: answers for answers in self.models}[name]

    def __str__(self) -> str:
        rows = [("model", "framework", "recipe", "entropy", "same label", "largest Δp")]
        for each in self.models:
            close = f"{100 * each.same_labels:.1f} %", f"{each.largest_difference:.1e}"
            rows.append((each.name, each.framework, each.recipe.name, f"{each.entropies.mean():.3f}", *close))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
        heading = f"{len(self.models[0].labels)} images; labels and probabilities against {self.models[0].name!r}"
        return "\n".join([heading, "", lines[0], "  ".join("─" * width for width in widths), *lines[1:]])


def compare(
    models: Mapping[str, Any],
    images: np.ndarray | Mapping[str, np.ndarray],
    recipe: RecipeName | Recipe | None = None,
    *,
    batch_size: int = 8,
    **changes: Any,
) -> Comparison:
    """Run the same images through every model, each in its own framework, and compare the answers.

    Args:
        models: A dict of models by name, plain or adapted.
        images: A numpy array (N, h, w, channels), encoded as the models expect, with the channels last in every
            framework; or a dict with one array per model name.
        recipe: The recipe to adapt the models with. They must then be plain. None: run all models unchanged.
        batch_size: Number of images per call. It limits memory and does not change the answers.
        **changes: Other arguments of `adapt`.

    Returns:
        A `Comparison`. Print it to see a table.

    Raises:
        SitaError: The models and images do not match, or a model cannot be adapted.

    Example:
        >>> print(sita.compare({"torch": torch_model, "keras": keras_model}, images, "auto"))
    """
    if not isinstance(models, Mapping) or not models:
        raise InputError(f"models: expected a dict of models by name; received {type(models).__name__}.")
    arrays = images if isinstance(images, Mapping) else dict.fromkeys(models, images)
    if set(arrays) != set(models) or len({len(array) for array in arrays.values()}) > 1:
        raise InputError(f"images: expected one array, or the same number of images for each of {', '.join(models)}.")
    found: list[ComparedModel] = []
    for name, model in models.items():
        plain = backend_of(model).adaptation_of(model) is None
        if not plain and (recipe is not None or changes):
            raise RecipeError(f"recipe: {name!r} is already adapted. Try: no recipe, or sita.unwrap(adapted).")
        if recipe is None and (given := {*changes} & {*Recipe.__dataclass_fields__}):
            raise RecipeError(f"{min(given)}: there is no recipe to change. Try: compare(models, images, 'ops', …).")
        adapted = adapt(model, recipe or "source", **changes) if plain else model
        found.append(_compared(name, adapted, arrays[name], batch_size, found[0].probabilities if found else None))
    return Comparison(tuple(found))


def _compared(name: str, adapted: Any, images: Any, batch_size: int, first: np.ndarray | None) -> ComparedModel:
    """Return an adapted model's answers, and how close they are to the first model's probabilities."""
    if not isinstance(images, np.ndarray) or images.ndim != 4 or not images.size or images.dtype.kind not in "fiu":
        shape = getattr(images, "shape", type(images).__name__)
        raise InputError(f"images: expected a numpy array of numbers (N, h, w, channels); received {shape}.")
    batches, (scores, *_) = zip(*run_batches(adapted, images, batch_size, channels_last=True), strict=True)
    if scores.kind.startswith("sigmoid"):
        raise OutputError(f"Expected one label per image or pixel; {name!r} has sigmoid scores, one per label.")
    raw = np.concatenate(batches).astype(np.float64)
    p = np.moveaxis(probabilities(raw, scores.kind, scores.class_axis), scores.class_axis, -1)
    q = p if first is None else first
    if p.shape != q.shape:
        raise OutputError(f"Expected models with the same classes; {name!r}: {p.shape[1:]}, the first: {q.shape[1:]}.")
    labels, entropies = p.argmax(-1), -np.sum(p * np.log(p, out=np.zeros_like(p), where=p > 0), axis=-1)
    same, gap = float((labels == q.argmax(-1)).mean()), float(np.abs(p - q).max())
    framework, recipe = backend_of(adapted).label, adaptation_of(adapted).recipe
    return ComparedModel(name, framework, recipe, labels, p, entropies, same, gap)
