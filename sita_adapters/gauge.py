"""The gauge of shift, as arrays: what an exported file puts out beside its scores, so that it can be watched.

Computed from the same vote as `observe` records, by operations that every exporter can follow: λ leaves a model as one
of its outputs, since a graph has no values that anybody could record while it is made.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from .errors import ExportError
from .observe import LayerPriors
from .ops import Array, Ops
from .plan import Plan
from .shift import ByShift
from .voting import Scores, Verdict

NAMES = ("prior", "entropy", "source")
"""What the outputs are called in a file."""

SCORES = "scores"
"""What the answer is called in a file, where the model itself has no name for it."""

_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Gauge:
    """How far each of N images is from what the source model knows, at every place that gets a label: (N, …).

    - `prior`: λ of the most certain candidate; where a rule sets it, the mean over the layers (`Seen.priors`).
    - `entropy`: that candidate's, in nats: the lowest of all.
    - `source`: the scores of the candidate with λ = 1, which is the source model; None where there is none.
    """

    prior: Array
    entropy: Array
    source: Array | None

    def outputs(self) -> dict[str, Array]:
        """Return what there is, by name."""
        return {name: array for name in NAMES if (array := getattr(self, name)) is not None}


def read_gauge(
    candidates: Array,
    verdict: Verdict,
    plan: Plan,
    layer_priors: LayerPriors | None,
    *,
    class_axis: int,
    scores: Scores,
    ops: Ops,
) -> Gauge:
    """Return the gauge of a vote on the scores (B, P, …) of the candidates.

    The lowest entropy is found by comparing each with the best so far, rather than by argmin, which not every exporter
    follows; among equals the first counts, as it does for `observe`.
    """
    xp = ops.xp
    entropies = verdict.entropies if scores.startswith("sigmoid") else xp.squeeze(verdict.entropies, axis=class_axis)
    priors = [plan.priors[row] for row in plan.candidate_rows]
    column = (-1, *[1] * (len(entropies.shape) - 2))
    means = None if layer_priors is None else xp.mean(layer_priors.values, axis=2)

    def prior_of(candidate: int) -> Array:
        nothing = xp.zeros_like(entropies[:, candidate])
        prior = priors[candidate]
        if means is None or not isinstance(prior, ByShift):
            return nothing + prior
        return nothing + ops.cast(xp.reshape(means[:, candidate], column), nothing)

    chosen, lowest = prior_of(0), entropies[:, 0]
    for candidate in range(1, len(priors)):
        better = entropies[:, candidate] < lowest
        chosen = xp.where(better, prior_of(candidate), chosen)
        lowest = xp.where(better, entropies[:, candidate], lowest)
    return Gauge(chosen, lowest, candidates[:, priors.index(1.0)] if 1.0 in priors else None)


def name_outputs(own: list[tuple[str, Array]], gauge: Gauge) -> dict[str, Array]:
    """Return a model's own outputs, given with their paths, and the gauge's by name."""
    names = output_names([path for path, _ in own])
    if taken := sorted({*names} & {*NAMES}):
        raise ExportError(
            f"diagnostics: expected a model without outputs called {', '.join(NAMES)}; received one with "
            f"{', '.join(taken)}. Try: adapt a module that names them differently, or export without diagnostics."
        )
    return {name: array for name, (_, array) in zip(names, own, strict=True)} | gauge.outputs()


def output_names(paths: Sequence[str]) -> list[str]:
    """Return what outputs are called in a file: an only one `scores`, the others as their paths where these are names.

    One in a list has a number for a path, which not every format takes for a name.
    """
    if len(paths) == 1:
        return [SCORES]
    return [path if _NAME.fullmatch(path) else f"output_{place}" for place, path in enumerate(paths)]
