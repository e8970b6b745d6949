"""Diagnostics: arrays of what an adapted model measured and decided.

`observe` records them, and an exported file can return them. Only operations that every exporter supports are used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from .errors import OutputError
from .ops import Array, Ops
from .recipe import Prior
from .shift import area_weight, shift_of
from .voting import Vote, first_largest, largest_probability, select_lowest

if TYPE_CHECKING:
    from .combining import Candidates
    from .engine import Call, ForwardContext

NAMES = ("prior", "entropy", "source")
"""The names of the diagnostics in an exported file."""


class LayerMeasurement(NamedTuple):
    """What one call of a layer measured: E of the blended rows, (B, R, 1), and λ."""

    name: str
    positions: Any
    divergence: Array
    priors: Array


@dataclass(frozen=True)
class CandidateMeasurement:
    """What the L layer calls measured for one candidate of B images."""

    layers: tuple[str, ...]
    shifts: Array  # D (B,)
    layer_shifts: Array  # (B, L)
    layer_priors: Array | None  # (B, L), if a rule sets λ


def measure_candidates(context: ForwardContext) -> list[CandidateMeasurement | None]:
    """Return what a forward pass measured for each candidate; None for a candidate with λ = 1, which is not measured.

    D = Σ_l a_l · d_l / Σ_l a_l,   with a_l from `area_weight`; D is 0 if every layer has a single position
    """
    measurements, plan, ops = context.measurements, context.plan, context.ops
    if not measurements:
        return [None] * len(plan.candidates)
    names = tuple(each.name for each in measurements)
    shifts = shift_of(ops.concat([each.divergence for each in measurements], axis=-1))  # (B, R, L)
    areas = [area_weight(each.positions, measurements[0].positions) for each in measurements]
    known = all(isinstance(area, float) for area in areas)
    weights = ops.constant(areas, shifts) if known else ops.cast(ops.xp.stack(areas), shifts)
    total = ops.xp.sum(shifts * weights, axis=-1) / ((math.fsum(areas) if known else ops.xp.sum(weights)) + 1e-30)
    priors = None if not plan.has_rule else ops.concat([each.priors for each in measurements], axis=-1)
    found: list[CandidateMeasurement | None] = []
    for row in (candidate - plan.first_blended for candidate in plan.candidates):
        layer_priors = None if priors is None else priors[:, row]
        found.append(None if row < 0 else CandidateMeasurement(names, total[:, row], shifts[:, row], layer_priors))
    return found


@dataclass(frozen=True)
class Diagnostics:
    """What was measured and decided for N images with P candidates.

    `candidates` has λ of each candidate, or its rule. `layers` has the layer names of the layer calls. `arrays` has the
    arrays that `Observation` documents, by name, and the source model's scores.
    """

    candidates: tuple[Prior, ...]
    layers: tuple[str, ...]
    arrays: dict[str, Array]

    def outputs(self, ops: Ops) -> dict[str, Array]:
        """Return the diagnostics of an exported file by name, one value for every predicted label: (N, …).

        `prior` and `entropy` belong to the most confident candidate. `source` has the source model's scores, if it is a
        candidate.
        """
        if "entropies" not in self.arrays:
            raise OutputError(
                "diagnostics: expected class scores, which the probe did not find. Try: sita.adapt(model, output=…, "
                "scores=…), or export without diagnostics."
            )
        entropies, priors = self.arrays["entropies"], self.arrays["candidate_priors"]
        priors = ops.xp.reshape(priors, (-1, len(self.candidates), *[1] * (len(entropies.shape) - 2))) + 0 * entropies
        found = {"prior": priors, "entropy": entropies}
        every = range(len(self.candidates))
        found = {name: select_lowest(array, entropies, every, ops.xp) for name, array in found.items()}
        return found | {name: array for name, array in self.arrays.items() if name == "source"}


def diagnose_candidates(candidates: Candidates, vote: Vote | None, answer: Sequence[Array], call: Call) -> Diagnostics:
    """Return the diagnostics of a call, from its candidates and the arrays of its answer."""
    ops, xp, measured = call.ops, call.ops.xp, candidates.measured
    priors = tuple(call.plan.priors[row] for row in call.plan.candidates)
    some_array = next(array for array, axis in zip(answer, call.layout.axes, strict=True) if axis is not None)
    zeros = ops.precise(xp.zeros_like(xp.reshape(some_array, (ops.shape(some_array)[0], -1))[:, 0]))
    some = next((each for each in measured if each is not None), None)
    means = [  # λ of each candidate; if a rule sets it, the mean over the layers
        prior if each is None or each.layer_priors is None else ops.cast(xp.mean(each.layer_priors, axis=-1), zeros)
        for prior, each in zip(priors, measured, strict=True)
    ]
    found = {"candidate_priors": xp.stack([zeros + mean for mean in means], axis=1)}
    for name, of_source in (("shifts", math.nan), ("layer_shifts", math.nan), ("layer_priors", 1.0)):
        known = None if some is None else getattr(some, name)
        if known is not None:
            each = [xp.zeros_like(known) + of_source if one is None else getattr(one, name) for one in measured]
            found[name] = xp.stack(each, axis=1)
    if vote is not None:
        found |= _diagnose_scores(candidates, vote, answer, call)
    return Diagnostics(priors, () if some is None else some.layers, found)


def _diagnose_scores(candidates: Candidates, vote: Vote, answer: Sequence[Array], call: Call) -> dict[str, Array]:
    """Return the diagnostics of class scores: the candidates' entropies, votes, labels, confidences; the answers."""
    ops, xp, layout = call.ops, call.ops.xp, call.layout.require_scores()
    axis, sigmoid = layout.class_axis, layout.kind.startswith("sigmoid")
    scores, answered = candidates.arrays[layout.index], ops.precise(answer[layout.index])
    if sigmoid:
        found = {"answers": answered > (0.5 if layout.kind == "sigmoid_probabilities" else 0.0)}
    else:
        found = {"answers": xp.squeeze(first_largest(answered, axis, ops), axis=axis)}
    for name in ("entropies", "kept", "votes", "labels"):
        found[name] = getattr(vote, name) if sigmoid else xp.squeeze(getattr(vote, name), axis=axis)
    found["confidences"] = largest_probability(ops.precise(scores), layout.kind, axis, xp)
    if call.plan.source_candidate is not None:
        found["source"] = scores[:, call.plan.source_candidate]
    return found
