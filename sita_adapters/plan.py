"""Recipe → Plan: what rows one image becomes, and how each row is normalised.

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
    """One image as R rows of a batch. Row r runs views[view_of_row[r]] under the prior priors[r].

    Its target statistics are Σ_q weights[r, q] · statistics of row q (each line of `weights` sums to 1), and the
    outputs of `candidate_rows` are the candidates for the prediction.
    """

    views: tuple[View, ...]
    view_of_row: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]
    priors: tuple[Prior, ...]
    candidate_rows: tuple[int, ...]
    uniform: bool = field(init=False)
    """Whether all rows are normalised with the same statistics."""
    origins: tuple[int, ...] = field(init=False)
    """For every row the last that it draws from. All that it draws from have the same one, and are near it."""

    alone: bool = field(init=False)
    """Whether no row draws from another, as without views."""
    rules: tuple[tuple[float, float, float], ...] | None = field(init=False)
    """(s, d_½, A_½) of every row, where there are rules; of a row with λ = 1, s is 0."""
    departing: Plan = field(init=False, repr=False, compare=False)
    """The rows that statistics are blended for: all, or without views those from the first to the last with λ ≠ 1."""
    first: int = field(init=False)
    """The row that `departing` begins with."""
    lone: bool = field(init=False)
    """Whether one row departs, by a rule, and draws from no other."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", _rules(self.priors))
        last = (max(row for row, weight in enumerate(line) if weight) for line in self.weights)
        object.__setattr__(self, "origins", tuple(last))
        object.__setattr__(self, "alone", all(line[row] == 1.0 for row, line in enumerate(self.weights)))
        object.__setattr__(self, "uniform", len(set(zip(self.weights, self.priors, strict=True))) == 1)
        first, departing = self._find_departing()
        object.__setattr__(self, "first", first)
        object.__setattr__(self, "departing", departing)
        object.__setattr__(self, "lone", self.alone and departing.rows == 1 and departing.rules is not None)

    def _find_departing(self) -> tuple[int, Plan]:
        rows = [row for row, prior in enumerate(self.priors) if prior != 1.0]
        if not self.alone or not rows or rows[-1] - rows[0] + 1 == self.rows:
            return 0, self
        return rows[0], _restrict(self, list(range(rows[0], rows[-1] + 1)), [])

    @property
    def rows(self) -> int:
        """How many rows an image becomes."""
        return len(self.view_of_row)

    def moves_pixels(self, row: int) -> bool:
        """Whether this row runs a view in which pixels changed places."""
        return self.views[self.view_of_row[row]].moves_pixels

    @property
    def blends(self) -> bool:
        """Whether any row departs from the source's statistics."""
        return any(prior != 1.0 for prior in self.priors)


def _rules(priors: tuple[Prior, ...]) -> tuple[tuple[float, float, float], ...] | None:
    if not any(isinstance(prior, ByShift) for prior in priors):
        return None
    return tuple(
        (prior.strength, prior.half_shift, prior.half_area) if isinstance(prior, ByShift) else (0.0, 1.0, 1.0)
        for prior in priors
    )


def make_plan(recipe: Recipe, kind: SpatialKind = "square") -> Plan:
    """Compile a recipe for inputs of this kind."""
    views = make_views(recipe.augment, recipe.view_count, recipe.seed, kind)
    rows = _shared_rows(recipe, len(views)) if recipe.shared_views else _grouped_rows(recipe, len(views))
    view_of_row, weights, priors, candidates = rows
    return Plan((IMAGE, *views), view_of_row, tuple(map(tuple, weights.tolist())), priors, candidates)


def redraw(plan: Plan, recipe: Recipe, kind: SpatialKind, image: np.ndarray) -> Plan:
    """Return the Plan of `resample`: views drawn for this image (…, channels), by what is in it."""
    seed = content_seed(image, recipe.seed)
    return replace(plan, views=(IMAGE, *make_views(recipe.augment, recipe.view_count, seed, kind)))


def refuse_resampling(what: str) -> RecipeError:
    """Return the error for a graph of a model that draws views by what is in an image."""
    return RecipeError(
        f"resample: {what} holds one set of views, and cannot draw others by what is in an image. "
        "Remedy: adapt without resample=True, or call the adapted model itself."
    )


def read_max_rows(max_rows: Any) -> int | None:
    """Return how many rows may run at once, after checking that it is a number of rows."""
    if max_rows is None:
        return None
    if isinstance(max_rows, bool) or not hasattr(max_rows, "__index__") or operator.index(max_rows) < 1:
        raise RecipeError(f"max_rows: expected a whole number of at least 1, or None; received {max_rows!r}.")
    return operator.index(max_rows)


def split(plan: Plan, max_rows: int | None) -> tuple[Plan, ...]:
    """Return Plans of at most so many rows, which together have all the candidates, in order.

    A row travels with every row that its statistics draw from, so that every output stays the same. Rows that several
    parts draw from (shared views) are run in each of them.
    """
    if max_rows is None or plan.rows <= max_rows:
        return (plan,)
    needed = [_needed(plan, candidate) for candidate in plan.candidate_rows]
    least = max(map(len, needed))
    if least > max_rows:
        raise RecipeError(
            f"max_rows: expected at least {least}, which is what one prior's statistics draw from (the image and its "
            f"views); received {max_rows}. Remedy: a larger max_rows, or fewer views (n_views=)."
        )
    parts: list[tuple[set[int], list[int]]] = []
    for candidate, rows in zip(plan.candidate_rows, needed, strict=True):
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
        if plan.priors[row] == 1.0:  # whatever its statistics were, it would not use them
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
        whole = abs(sum(line) - 1.0) < 1e-9  # that of λ = 1 may have lost rows, which it does not use
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

    λ = 1 needs no statistics, so its views are left out unless they are candidates themselves.
    """
    view_of_row: list[int] = []
    priors: list[Prior] = []
    candidates: list[int] = []
    groups: list[int] = []
    for prior in recipe.lambdas:
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
    lambdas, count = recipe.lambdas, len(recipe.lambdas)
    lowest = min(range(count), key=lambda place: cast("float", lambdas[place]))
    weights = np.zeros((count + n, count + n))
    line = _image_and_views(n)
    for row in range(count + n):
        weights[row, row if row < count else lowest] = line[0]
        weights[row, count:] = line[1:]
    view_of_row = (*[0] * count, *range(1, n + 1))
    return view_of_row, weights, (*lambdas, *[lambdas[lowest]] * n), tuple(range(count))


def _image_and_views(n: int) -> np.ndarray:
    """(½, 1/2n, …, 1/2n), or (1,) where there are no views."""
    return np.array([0.5] + [0.5 / n] * n) if n else np.ones(1)
