"""Recipe → Plan: what rows one image becomes, and how each row is normalised.

Every method is a Plan, and the code that runs a Plan knows no method.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .recipe import Recipe
from .views import IMAGE, Frame, View, make_views


@dataclass(frozen=True)
class Plan:
    """One image as R rows of a batch. Row r runs views[view_of_row[r]] under the prior priors[r].

    Its target statistics are Σ_q weights[r, q] · statistics of row q (each line of `weights` sums to 1), and the
    outputs of the rows `answers` are the candidates for the prediction.
    """

    views: tuple[View, ...]
    view_of_row: tuple[int, ...]
    weights: tuple[tuple[float, ...], ...]
    priors: tuple[float, ...]
    answers: tuple[int, ...]

    @property
    def rows(self) -> int:
        """How many rows an image costs."""
        return len(self.view_of_row)

    @property
    def blends(self) -> bool:
        """Whether any row departs from the source's statistics."""
        return any(prior != 1.0 for prior in self.priors)


def make_plan(recipe: Recipe, frame: Frame = "square") -> Plan:
    """Compile a recipe for inputs of this frame."""
    views = make_views(recipe.augment, recipe.view_count, recipe.seed, frame)
    rows = _shared_rows(recipe, len(views)) if recipe.shared_views else _grouped_rows(recipe, len(views))
    view_of_row, weights, priors, answers = rows
    return Plan((IMAGE, *views), view_of_row, tuple(map(tuple, weights.tolist())), priors, answers)


_Rows = tuple[tuple[int, ...], np.ndarray, tuple[float, ...], tuple[int, ...]]


def _grouped_rows(recipe: Recipe, n: int) -> _Rows:
    """Every prior has a group of its own: the image's row (weight ½) and its views' (1/2n each).

    λ = 1 needs no statistics, so its views are left out unless they are candidates themselves.
    """
    view_of_row: list[int] = []
    priors: list[float] = []
    answers: list[int] = []
    groups: list[int] = []
    for prior in recipe.lambdas:
        with_views = prior != 1.0 or recipe.candidates == "views"
        size = 1 + n if with_views else 1
        first = len(view_of_row)
        answers.extend(range(first, first + size) if recipe.candidates == "views" else [first])
        view_of_row.extend(range(size))
        priors.extend([prior] * size)
        groups.append(size)
    weights = np.zeros((len(priors), len(priors)))
    first = 0
    for size in groups:
        weights[first : first + size, first : first + size] = _image_and_views(size - 1)
        first += size
    return tuple(view_of_row), weights, tuple(priors), tuple(answers)


def _shared_rows(recipe: Recipe, n: int) -> _Rows:
    """Rows 0 … P−1 run the image under each prior, rows P … P+n−1 the views under the lowest.

    Row p weighs itself ½ and each view 1/2n; the views take the row of the lowest prior as their image.
    """
    lambdas, count = recipe.lambdas, len(recipe.lambdas)
    lowest = min(range(count), key=lambdas.__getitem__)
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
