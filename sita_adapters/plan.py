"""Recipe → Plan: which rows one image becomes, and how each row is normalized.

Every method compiles to a Plan. The engine runs Plans and has no method-specific code.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from .errors import RecipeError, expect_integer
from .recipe import Prior, Recipe
from .shift import Rule
from .views import IMAGE, SpatialKind, View, make_views

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Plan:
    """One image as R rows of a batch. Rows with λ = 1, which keep the source's statistics, come first."""

    views: tuple[View, ...]  # 0 is the image itself
    view_of_row: tuple[int, ...]  # which view row r runs
    weights: Matrix  # row r's target statistics are Σ_q weights[r][q] · statistics of row q; each line sums to 1
    priors: tuple[Prior, ...]  # λ of row r: a number, or a rule
    candidates: tuple[int, ...]  # the rows whose outputs may answer
    kind: SpatialKind = "square"  # of the images
    parts: tuple[Plan, ...] = ()  # run in sequence in place of this Plan if it has more rows than may run at once

    # Computed now, not on demand, so a compiler that traces a call sees plain numbers.
    rows: int = field(init=False)  # R, the number of rows an image becomes
    has_views: bool = field(init=False)  # whether any row runs a view of the image
    blends: bool = field(init=False)  # whether any row is normalized with other statistics than the source's
    first_blended: int = field(init=False)  # the first row with λ < 1; blended rows use only each other's statistics
    independent: bool = field(init=False)  # whether each row uses its own statistics only, as without views
    blended_weights: Matrix = field(init=False)  # `weights` of the blended rows
    references: Matrix = field(init=False)  # of the blended rows: a 1 at the last row whose statistics each uses
    prior_runs: tuple[tuple[Prior, int, int], ...] = field(init=False)  # of the blended rows: prior, first row, end
    has_rule: bool = field(init=False)  # whether a rule sets λ of any row
    source_candidate: int | None = field(init=False)  # the position, among the candidates, of the one with λ = 1

    def __post_init__(self) -> None:
        first = sum(prior == 1.0 for prior in self.priors)
        weights = tuple(line[first:] for line in self.weights[first:])
        last = [max(row for row, weight in enumerate(line) if weight) for line in weights]
        vars(self).update(
            rows=len(self.view_of_row),
            has_views=any(self.view_of_row),
            blends=first < len(self.view_of_row),
            first_blended=first,
            independent=all(line[row] == 1.0 for row, line in enumerate(weights)),
            blended_weights=weights,
            references=tuple(tuple(float(row == each) for row in range(len(weights))) for each in last),
            prior_runs=_runs(self.priors[first:]),
            has_rule=any(isinstance(prior, Rule) for prior in self.priors),
            source_candidate=next((i for i, row in enumerate(self.candidates) if row < first), None),
        )

    @property
    def blended_priors(self) -> tuple[tuple[Prior], ...]:
        """λ of the blended rows, as a column."""
        return tuple((prior,) for prior in self.priors[self.first_blended :])

    def moves_pixels(self, row: int) -> bool:
        """Whether this row runs a view that moves pixels."""
        return self.views[self.view_of_row[row]].moves_pixels


def _runs(priors: tuple[Prior, ...]) -> tuple[tuple[Prior, int, int], ...]:
    """Return (prior, first row, end) for each run of neighboring rows with the same prior."""
    ends = [row for row in range(1, len(priors) + 1) if row == len(priors) or priors[row] != priors[row - 1]]
    return tuple((priors[end - 1], start, end) for start, end in zip([0, *ends], ends, strict=False))


def make_plan(recipe: Recipe, kind: SpatialKind = "square", max_rows: int | None = None) -> Plan:
    """Compile a recipe for images of this kind, of which at most `max_rows` rows may run at once.

    Each prior gets one row for the image and one for each of the n views. In the target statistics, the image has
    weight ½ and each view 1/2n. λ = 1 needs no statistics, so it gets views only if views are candidates. With
    `shared_views`, all priors use the views of the lowest prior. In a mix of views, the source runs the image, every
    other prior the views, and every row has its own statistics.
    """
    views = make_views(recipe.augment, recipe.view_count, recipe.seed, kind)
    lowest = min(cast("tuple[float, ...]", recipe.prior_values)) if recipe.shared_views else None
    view_of_row: list[int] = []
    priors: list[Prior] = []
    groups: dict[Prior, list[int]] = {}  # the rows of each prior, the image's first
    for prior in sorted(recipe.prior_values, key=lambda prior: (prior != 1.0, prior == lowest)):
        with_views = prior != 1.0 or recipe.has_candidate_views(prior)
        if lowest is not None:
            with_views = prior == lowest
        runs = range(1 if recipe.mixes_views and prior != 1.0 else 0, 1 + len(views) if with_views else 1)
        groups[prior] = list(range(len(priors), len(priors) + len(runs)))
        view_of_row += runs
        priors += [prior] * len(runs)
    weights = np.eye(len(priors))
    for prior, (image, *own) in groups.items():
        drawn_from = own if lowest is None else groups[lowest][1:]
        if prior != 1.0 and drawn_from and not recipe.mixes_views:
            weights[[image, *own]] = 0.0
            weights[[image, *own], image] = 0.5
            weights[np.ix_([image, *own], drawn_from)] = 0.5 / len(views)
    answering = {prior: None if recipe.has_candidate_views(prior) else 1 for prior in recipe.prior_values}
    candidates = tuple(row for prior in recipe.prior_values for row in groups[prior][: answering[prior]])
    lines = tuple(map(tuple, weights.tolist()))
    plan = Plan((IMAGE, *views), tuple(view_of_row), lines, tuple(priors), candidates, kind)
    return replace(plan, parts=_split(plan, max_rows))


def resolve_max_rows(max_rows: Any, recipe: Recipe) -> int | None:
    """Return the largest number of rows that run at once, after checking it."""
    if max_rows is not None and recipe.share == "batch":
        raise RecipeError(
            "max_rows: with share='batch', the images of a call share their statistics and must run at once; received "
            f"max_rows={max_rows}. Try: smaller batches."
        )
    return None if max_rows is None else expect_integer("max_rows", max_rows, 1, RecipeError)


def _split(plan: Plan, max_rows: int | None) -> tuple[Plan, ...]:
    """Return a Plan for each candidate, in order, if the whole Plan has more than `max_rows` rows; else none.

    Each part contains the candidate and every row that its statistics depend on, directly or indirectly, so the outputs
    are the same. Shared views run once in each part.
    """
    if max_rows is None or plan.rows <= max_rows:
        return ()
    drawn_from = np.linalg.matrix_power(np.asarray(plan.weights) > 0, plan.rows)
    needed = [np.flatnonzero(drawn_from[candidate]).tolist() for candidate in plan.candidates]
    least = max(map(len, needed))
    if least > max_rows:
        raise RecipeError(
            f"max_rows: expected at least {least}, the number of rows that one prior needs (the image and its "
            f"views); received {max_rows}. Try: a larger max_rows, or fewer views (n_views=)."
        )
    return tuple(_restrict(plan, rows, [candidate]) for rows, candidate in zip(needed, plan.candidates, strict=True))


def split_source(plan: Plan) -> tuple[Plan, ...]:
    """Return a Plan for the rows with λ = 1 and one for the blended rows, in the order of their candidates.

    In an exported graph, the source's rows then have constant statistics, which a runtime fuses into convolutions.
    """
    first = plan.first_blended
    answering = [row < first for row in plan.candidates]
    if not plan.blends or len(set(answering)) == 1 or answering != sorted(answering, reverse=answering[0]):
        return (plan,)
    parts = {True: range(first), False: range(first, plan.rows)}
    return tuple(
        _restrict(plan, list(parts[source]), [row for row in plan.candidates if (row < first) is source])
        for source in dict.fromkeys(answering)
    )


def _restrict(plan: Plan, rows: list[int], candidates: list[int]) -> Plan:
    """Return the Plan with only these rows and candidates."""
    return Plan(
        plan.views,
        tuple(plan.view_of_row[row] for row in rows),
        tuple(tuple(plan.weights[row][other] for other in rows) for row in rows),
        tuple(plan.priors[row] for row in rows),
        tuple(map(rows.index, candidates)),
        plan.kind,
    )
