"""Recipe → Plan: which rows one image becomes, and how each row is normalized.

Every method is a Plan, and the code that runs a Plan knows no method.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from .errors import RecipeError
from .recipe import Prior, Recipe
from .shift import ByShift
from .views import IMAGE, SpatialKind, View, content_seed, make_views


@dataclass(frozen=True)
class Plan:
    """One image as R rows of a batch.

    Attributes:
        views: The views of the image; 0 is the image itself.
        view_of_row: Which view row r runs.
        weights: Row r's target statistics are Σ_q weights[r][q] · statistics of row q; each line sums to 1.
        priors: λ of row r: a number, or a rule.
        candidates: The rows whose outputs may answer.
        first, stop: The rows from `first` up to `stop` are blended; the others, λ = 1, keep the source's statistics.
        independent: Whether no row draws from another, as without views.
        references: Line r has a 1 at the last row that row r draws from; all rows that it draws from have the same.
        rules: (s, d_½, A_½) of every row if there are rules; s is 0 for a row with λ = 1.
        source: The position, among the candidates, of the one with λ = 1.
    """

    views: tuple[View, ...]
    view_of_row: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]
    priors: tuple[Prior, ...]
    candidates: tuple[int, ...]
    first: int = field(init=False)
    stop: int = field(init=False)
    independent: bool = field(init=False)
    references: tuple[tuple[float, ...], ...] = field(init=False)
    rules: tuple[tuple[float, float, float], ...] | None = field(init=False)
    source: int | None = field(init=False)

    def __post_init__(self) -> None:
        # Set now, not computed on demand: a compiler that traces a call meets plain numbers.
        independent = all(line[row] == 1.0 for row, line in enumerate(self.weights))
        blended = [row for row, prior in enumerate(self.priors) if prior != 1.0]
        if blended and not independent:
            blended = list(range(self.rows))
        rules = [_rule(prior) for prior in self.priors]
        candidate_priors = [self.priors[row] for row in self.candidates]
        values = {
            "first": blended[0] if blended else 0,
            "stop": blended[-1] + 1 if blended else 0,
            "independent": independent,
            "references": tuple(map(_last, self.weights)),
            "rules": tuple(rules) if any(rule[0] for rule in rules) else None,
            "source": candidate_priors.index(1.0) if 1.0 in candidate_priors else None,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def rows(self) -> int:
        """R, the number of rows an image becomes."""
        return len(self.view_of_row)

    @property
    def blends(self) -> bool:
        """Whether any row is normalized with other statistics than the source's."""
        return self.stop > 0

    @property
    def blended(self) -> range:
        """The rows for which statistics are measured and blended."""
        return range(self.first, self.stop)

    @property
    def candidate_priors(self) -> tuple[Prior, ...]:
        """λ of each candidate, or its rule."""
        return tuple(self.priors[row] for row in self.candidates)

    def moves_pixels(self, row: int) -> bool:
        """Whether this row runs a view that moves pixels."""
        return self.views[self.view_of_row[row]].moves_pixels


def _last(line: tuple[float, ...]) -> tuple[float, ...]:
    last = max(row for row, weight in enumerate(line) if weight)
    return tuple(float(row == last) for row in range(len(line)))


def _rule(prior: Prior) -> tuple[float, float, float]:
    if isinstance(prior, ByShift):
        return prior.strength, prior.half_shift, prior.half_area
    return 0.0, 1.0, 1.0


def make_plan(recipe: Recipe, kind: SpatialKind = "square") -> Plan:
    """Compile a recipe for images of this kind."""
    views = make_views(recipe.augment, recipe.view_count, recipe.seed, kind)
    rows = _shared_rows(recipe, len(views)) if recipe.shared_views else _grouped_rows(recipe, len(views))
    view_of_row, weights, priors, candidates = rows
    return Plan((IMAGE, *views), view_of_row, tuple(map(tuple, weights.tolist())), priors, candidates)


def redraw(plan: Plan, recipe: Recipe, kind: SpatialKind, image: np.ndarray) -> Plan:
    """Return the Plan of `resample`, with views drawn for this image (…, channels) from its content."""
    seed = content_seed(image, recipe.seed)
    return replace(plan, views=(IMAGE, *make_views(recipe.augment, recipe.view_count, seed, kind)))


def refuse_resampling(what: str) -> RecipeError:
    """Return the error for a graph of a model that draws views from an image's content."""
    return RecipeError(
        f"resample: {what} holds one set of views and cannot draw new ones for each image. "
        "Try: adapt without resample=True, or call the adapted model itself."
    )


def resolve_max_rows(max_rows: Any, recipe: Recipe) -> int | None:
    """Return the largest number of rows that run at once, after checking it."""
    if max_rows is None:
        return None
    if isinstance(max_rows, bool) or not hasattr(max_rows, "__index__") or operator.index(max_rows) < 1:
        raise RecipeError(f"max_rows: expected an integer of at least 1, or None; received {max_rows!r}.")
    if recipe.share == "batch":
        raise RecipeError(
            "max_rows: with share='batch' the images of a call share their statistics and must run at once; received "
            f"max_rows={max_rows}. Try: smaller batches."
        )
    return operator.index(max_rows)


def split(plan: Plan, max_rows: int | None) -> tuple[Plan, ...]:
    """Return Plans of at most `max_rows` rows that together have all the candidates, in order.

    A row travels with every row that its statistics draw from, so no output changes. Rows that several parts draw from
    (shared views) run in each of them.
    """
    if max_rows is None or plan.rows <= max_rows:
        return (plan,)
    needed = [_needed(plan, candidate) for candidate in plan.candidates]
    least = max(map(len, needed))
    if least > max_rows:
        raise RecipeError(
            f"max_rows: expected at least {least}, the rows that one prior's statistics draw from (the image and its "
            f"views); received {max_rows}. Try: a larger max_rows, or fewer views (n_views=)."
        )
    parts: list[tuple[set[int], list[int]]] = []
    for candidate, rows in zip(plan.candidates, needed, strict=True):
        if parts and len(parts[-1][0] | rows) <= max_rows:
            parts[-1][0].update(rows)
            parts[-1][1].append(candidate)
        else:
            parts.append((set(rows), [candidate]))
    return tuple(_restrict(plan, sorted(rows), candidates) for rows, candidates in parts)


def _needed(plan: Plan, row: int) -> set[int]:
    """Return the rows that have to run for this one: those that it draws from, those that they draw from, …"""
    needed, waiting = {row}, [row]
    while waiting:
        row = waiting.pop()
        if plan.priors[row] == 1.0:  # it uses no statistics
            continue
        drawn_from = {other for other, weight in enumerate(plan.weights[row]) if weight} - needed
        needed |= drawn_from
        waiting.extend(drawn_from)
    return needed


def _restrict(plan: Plan, rows: list[int], candidates: list[int]) -> Plan:
    """Return the Plan of these rows alone."""
    weights = []
    for place, row in enumerate(rows):
        line = tuple(plan.weights[row][other] for other in rows)
        whole = abs(sum(line) - 1.0) < 1e-9  # a row with λ = 1 may have lost rows, which it does not use
        weights.append(line if whole else tuple(float(other == place) for other in range(len(rows))))
    return Plan(
        plan.views,
        tuple(plan.view_of_row[row] for row in rows),
        tuple(weights),
        tuple(plan.priors[row] for row in rows),
        tuple(rows.index(candidate) for candidate in candidates),
    )


_Rows = tuple[tuple[int, ...], np.ndarray, tuple[Prior, ...], tuple[int, ...]]


def _grouped_rows(recipe: Recipe, n: int) -> _Rows:
    """Every prior has a group of its own: the image's row (weight ½) and its views' (1/2n each).

    λ = 1 needs no statistics: its views are left out unless they are candidates themselves.
    """
    view_of_row: list[int] = []
    priors: list[Prior] = []
    candidates: list[int] = []
    groups: list[int] = []
    for prior in recipe.prior_values:
        with_views = prior != 1.0 or recipe.candidates == "views"
        size = 1 + n if with_views else 1
        first = len(view_of_row)
        candidates.extend(range(first, first + size) if recipe.candidates == "views" else [first])
        view_of_row.extend(range(size))
        priors.extend([prior] * size)
        groups.append(size)
    weights = np.zeros((len(priors), len(priors)))
    first = 0
    for size in groups:
        weights[first : first + size, first : first + size] = _image_and_views(size - 1)
        first += size
    return tuple(view_of_row), weights, tuple(priors), tuple(candidates)


def _shared_rows(recipe: Recipe, n: int) -> _Rows:
    """Rows 0 … P−1 run the image under each prior, rows P … P+n−1 the views under the lowest.

    Row p weighs itself ½ and each view 1/2n; the views take the row of the lowest prior as their image.
    """
    priors, count = recipe.prior_values, len(recipe.prior_values)
    lowest = min(range(count), key=lambda place: cast("float", priors[place]))
    weights = np.zeros((count + n, count + n))
    line = _image_and_views(n)
    for row in range(count + n):
        weights[row, row if row < count else lowest] = line[0]
        weights[row, count:] = line[1:]
    view_of_row = (*[0] * count, *range(1, n + 1))
    return view_of_row, weights, (*priors, *[priors[lowest]] * n), tuple(range(count))


def _image_and_views(n: int) -> np.ndarray:
    """(½, 1/2n, …, 1/2n), or (1,) without views."""
    return np.array([0.5] + [0.5 / n] * n) if n else np.ones(1)
