"""compare(): the same images through several models, each in its own framework, side by side."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .api import adapt
from .backend import backend_of, run_scores
from .errors import (
    InputError,
    OutputError,
    RecipeError,
    SitaError,
)
from .observe import Seen, observe
from .recipe import Recipe
from .voting import Scores, probabilities, read_scores


@dataclass(frozen=True, eq=False)
class Answers:
    """What one model said of N images.

    `labels` is (N,) and `probabilities` (N, classes); of a model that answers for every place (N, h, w) and
    (N, h, w, classes). `entropies` and `priors` are as `labels`: how uncertain the probabilities are, in nats, and λ of
    the most certain candidate, which for a plain model is None. `near_ties` tells where rounding could have decided the
    vote otherwise; None where there is none. `seconds` is the mean time for one image.
    """

    name: str
    framework: str
    recipe: Recipe | None
    labels: np.ndarray
    probabilities: np.ndarray
    entropies: np.ndarray
    priors: np.ndarray | None
    near_ties: np.ndarray | None
    seconds: float


@dataclass(frozen=True)
class Agreement:
    """How near a model comes to the first: the share of equal labels, and the largest difference of a probability.

    `near_ties` is the share of answers where rounding could have decided the vote of one of the two otherwise. They do
    not count for the largest difference, unless all are such.
    """

    name: str
    against: str
    same_labels: float
    largest_difference: float
    near_ties: float


@dataclass(frozen=True, eq=False)
class Comparison:
    """What every model answered, and how far each agrees with the first. Print it for a table."""

    models: tuple[Answers, ...]
    agreements: tuple[Agreement, ...]
    """One for every model but the first."""
    batch_size: int

    def __getitem__(self, name: str) -> Answers:
        return {answers.name: answers for answers in self.models}[name]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON holds it: arrays as lists, a recipe as its text, what is not finite as None."""
        return _plain(self)  # type: ignore[no-any-return]

    def to_json(self, indent: int | None = None) -> str:
        """Return `to_dict` as text."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        count, first = len(self.models[0].labels), self.models[0].name
        heading = f"{count} {'image' if count == 1 else 'images'}, {min(count, self.batch_size)} at a time"
        if self.agreements:
            heading += f"; labels and probabilities (Δp) against {first!r}"
        by_name = {agreement.name: agreement for agreement in self.agreements}
        rows = [(*_cells(answers), *_agreement_cells(by_name.get(answers.name))) for answers in self.models]
        return "\n".join([heading, "", *_table(rows)])


def compare(
    models: Mapping[str, Any],
    images: np.ndarray | Mapping[str, np.ndarray],
    recipe: Recipe | str | None = None,
    *,
    batch_size: int = 8,
    scores: str | None = None,
    **changes: Any,
) -> Comparison:
    """Run the same images through every model, each in its own framework, and compare the answers.

    - `models`: by name. An adapted model runs as it is; so does a plain one, unless a recipe is given.
    - `images`: a numpy array (N, h, w, channels), channels last whatever the framework, and encoded as the models take
      them; where these differ, one array for every model's name.
    - `recipe`: adapts all the models, which then must be plain. `changes` are fields of it and settings of `adapt`.
    - `batch_size`: how many images a call gets. Adapted answers do not depend on it; memory and time do.
    - `scores`: whether plain models put out "logits" or "probabilities"; None: as `adapt` reads them.

    Every size of a batch runs once before time is taken, since frameworks compile then. On Keras, a model that chooses
    among priors runs once more, uncompiled, to say which it chose.

    >>> print(sita.compare({"torch": torch_model, "keras": keras_model}, images, "ops"))
    """
    _check_models(models)
    size = _read_batch_size(batch_size)
    arrays = _read_images(images, list(models))
    runs = [_prepare(name, model, recipe, scores, changes) for name, model in models.items()]
    arranged = [backend_of(run.model).arrange(run.name, run.model, arrays[run.name]) for run in runs]
    answers = tuple(_answer(run, images, size) for run, images in zip(runs, arranged, strict=True))
    first = answers[0]
    for other in answers[1:]:
        if other.probabilities.shape != first.probabilities.shape:
            raise OutputError(
                f"Expected models with the same classes and places; {first.name!r} answers with "
                f"{first.probabilities.shape[1:]} probabilities per image and {other.name!r} with "
                f"{other.probabilities.shape[1:]}."
            )
    return Comparison(answers, tuple(_agree(first, other) for other in answers[1:]), size)


def _check_models(models: Any) -> None:
    if not isinstance(models, Mapping) or not models or not all(isinstance(name, str) for name in models):
        received = list(models) if isinstance(models, Mapping) else type(models).__name__
        raise InputError(f"models: expected one model or more by name, as {{'torch': model, …}}; received {received}.")


def _read_batch_size(batch_size: Any) -> int:
    if isinstance(batch_size, bool) or not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise InputError(f"batch_size: expected a whole number of at least 1; received {batch_size!r}.")
    return int(batch_size)


def _read_images(images: Any, names: list[str]) -> dict[str, np.ndarray]:
    """Return an array for every model, all of as many images."""
    if not isinstance(images, Mapping):
        images = dict.fromkeys(names, images)
    if set(images) != set(names):
        raise InputError(
            f"images: expected one array, or one for each of {', '.join(names)}; received some for "
            f"{', '.join(map(str, images))}."
        )
    for array in images.values():
        _check_array(array)
    if len({len(array) for array in images.values()}) > 1:
        counts = ", ".join(f"{name}: {len(images[name])}" for name in names)
        raise InputError(f"images: expected the same number of images for every model; received {counts}.")
    return dict(images)


def _check_array(array: Any) -> None:
    if not isinstance(array, np.ndarray):
        raise InputError(
            f"images: expected a numpy array (N, h, w, channels); received {type(array).__name__}. Remedy of a torch "
            "tensor (N, channels, h, w): images.permute(0, 2, 3, 1).cpu().numpy()."
        )
    if array.ndim != 4 or 0 in array.shape:
        remedy = " Remedy of a single image: images[None]." if array.ndim == 3 else ""
        raise InputError(f"images: expected an array (N, h, w, channels); received shape {array.shape}.{remedy}")
    if array.dtype.kind not in "fiu":
        raise InputError(f"images: expected numbers; received an array of {array.dtype}.")


@dataclass(frozen=True)
class _Run:
    """A model that is ready to run: the recipe that it is adapted by, and what its scores are."""

    name: str
    model: Any
    recipe: Recipe | None
    scores: Scores


def _prepare(
    name: str, model: Any, recipe: Recipe | str | None, scores: str | None, changes: Mapping[str, Any]
) -> _Run:
    """Adapt the model where there is a recipe for it."""
    adaptation = backend_of(model).adaptation_of(model)
    if adaptation is not None:
        if recipe is not None or changes or scores is not None:
            raise RecipeError(
                f"recipe: {name!r} is adapted already, by {adaptation.recipe.name!r}, and would not run by what was "
                "given. Remedy: leave recipe= and its changes out, or give plain models (sita.unwrap(adapted))."
            )
        return _Run(name, model, adaptation.recipe, adaptation.scores)
    if recipe is not None:
        return _prepare(name, adapt(model, recipe, scores=scores, **changes), None, None, {})
    if changes:
        raise RecipeError(
            f"{next(iter(changes))}: there is no recipe to change. Remedy: compare(models, images, 'ops')."
        )
    return _Run(name, model, None, read_scores(scores, backend_of(model).scores_of(model)))


def _answer(run: _Run, images: np.ndarray, batch_size: int) -> Answers:
    name, backend, recipe = run.name, backend_of(run.model), run.recipe
    batches = [images[start : start + batch_size] for start in range(0, len(images), batch_size)]
    try:
        for batch in {len(batch): batch for batch in batches}.values():
            run_scores(run.model, batch)
        start = time.perf_counter()
        outputs = [run_scores(run.model, batch) for batch in batches]
        seconds = (time.perf_counter() - start) / len(images)
        seen = None if recipe is None else _observed(run.model, recipe, batches)
    except SitaError:
        raise
    except Exception as error:
        raise InputError(f"{name!r} failed on images that it received as {images.shape}: {error}") from error
    class_axis = backend.ops.class_axis
    raw = np.concatenate(outputs).astype(np.float64)
    if run.scores.startswith("sigmoid"):
        raise OutputError(
            f"compare is for models of one label per image or place; {name!r} has labels with a sigmoid each."
        )
    if raw.ndim < 2 or len(raw) != len(images) or raw.shape[class_axis] < 2:
        raise OutputError(
            f"Expected {name!r} to return scores of two classes or more for each of {len(images)} images; "
            f"received shape {raw.shape}."
        )
    values = np.moveaxis(raw, class_axis, -1)
    p = probabilities(values, run.scores, -1)
    log_p = np.log(p, out=np.zeros_like(p), where=p > 0)
    entropies = -np.sum(p * log_p, axis=-1)
    if seen is None:
        priors = None if recipe is None else np.full(entropies.shape, recipe.lambdas[0])
    else:
        priors = np.broadcast_to(seen.priors, entropies.shape)
    ties = None if seen is None else seen.near_ties
    return Answers(name, backend.label, recipe, values.argmax(axis=-1), p, entropies, priors, ties, seconds)


def _observed(model: Any, recipe: Recipe, batches: Iterable[np.ndarray]) -> Seen | None:
    """Return the votes on all images; None where there is one candidate, and so no vote, with λ as it was given."""
    if recipe.candidate_count == 1 and not recipe.rules:
        return None
    with observe(model) as seen:
        for batch in batches:
            run_scores(model, batch)
    return seen


def _agree(first: Answers, other: Answers) -> Agreement:
    same = float((first.labels == other.labels).mean())
    ties = np.zeros(first.labels.shape, bool)
    for answers in (first, other):
        ties |= False if answers.near_ties is None else answers.near_ties
    gaps = np.abs(first.probabilities - other.probabilities).max(axis=-1)
    largest = float(gaps.max() if ties.all() else gaps[~ties].max())
    return Agreement(other.name, first.name, same, largest, float(ties.mean()))


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it."""
    if isinstance(value, np.ndarray):
        return np.where(np.isfinite(value), value.astype(object), None).tolist()  # type: ignore[call-overload]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    if isinstance(value, Answers | Agreement | Comparison):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return str(value) if isinstance(value, Recipe) else value


_HEADINGS = ("model", "framework", "recipe", "entropy", "prior", "ms per image", "same label", "largest Δp")


def _cells(answers: Answers) -> tuple[str, ...]:
    return (
        answers.name,
        answers.framework,
        "as it is" if answers.recipe is None else answers.recipe.name,
        f"{answers.entropies.mean():.3f}",
        "" if answers.priors is None else f"{answers.priors.mean():.2f}",
        f"{1e3 * answers.seconds:.1f}",
    )


def _agreement_cells(agreement: Agreement | None) -> tuple[str, str]:
    if agreement is None:
        return "", ""
    ties = f" ({100 * agreement.near_ties:.2g} % near ties)" if agreement.near_ties else ""
    return f"{100 * agreement.same_labels:.1f} %{ties}", f"{agreement.largest_difference:.1e}"


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    body = [_HEADINGS, *rows]
    widths = [max(len(row[column]) for row in body) for column in range(len(_HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in body]
    return [lines[0], "  ".join("─" * width for width in widths), *lines[1:]]
