"""What an adapted model measured and decided, as arrays: `observe` records it, and an exported file can return it.

It uses operations that every exporter supports.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .errors import OutputError
from .ops import Array, Ops
from .outputs import ScoresLayout
from .plan import Plan
from .recipe import Prior
from .shift import HALF_AREA, ByShift, shift_of
from .voting import Vote

NAMES = ("prior", "entropy", "source")
"""The names of the diagnostics in an exported file."""


@dataclass(frozen=True)
class LayerMeasurement:
    """What one call of a layer measured: E of the blended rows, (B, R, 1), and λ."""

    name: str
    positions: Any
    divergence: Array
    priors: Any


@dataclass(frozen=True)
class Measured:
    """What the L layer calls measured for one candidate of B images.

    `shifts` is D (B,); `layer_shifts` and `layer_priors` are (B, L), the latter None unless a rule sets λ.
    """

    layers: tuple[str, ...]
    shifts: Array
    layer_shifts: Array
    layer_priors: Array | None


def measure_candidates(measurements: Sequence[LayerMeasurement] | None, plan: Plan, ops: Ops) -> list[Measured | None]:
    """Return what was measured for each candidate of a Plan; None for λ = 1, for which nothing is.

    D = Σ_l a_l · d_l / Σ_l a_l,   a_l = A_l / (A_l + A_½)
    """
    if not measurements:
        return [None] * len(plan.candidates)
    xp = ops.xp
    names = tuple(each.name for each in measurements)
    shifts = shift_of(ops.concat([each.divergence for each in measurements], axis=-1))  # (B, R, L)
    areas = [each.positions / (each.positions + HALF_AREA) for each in measurements]
    known = all(isinstance(area, float) for area in areas)
    weights = ops.precise_constant(areas, shifts) if known else xp.stack(areas)
    total = xp.sum(shifts * ops.cast(weights, shifts), axis=-1) / (math.fsum(areas) if known else xp.sum(weights))
    priors = None
    if plan.rules is not None:
        priors = ops.concat([each.priors for each in measurements], axis=-1)
    found: list[Measured | None] = []
    for row in plan.candidates:
        place = row - plan.first
        blended = row in plan.blended and plan.priors[row] != 1.0
        layer_priors = None if priors is None or not blended else priors[:, place]
        found.append(Measured(names, total[:, place], shifts[:, place], layer_priors) if blended else None)
    return found


@dataclass(frozen=True)
class Diagnostics:
    """What was measured and decided for N images with P candidates.

    Attributes:
        candidates: λ of each candidate, or its rule.
        measured: What the layers measured for each candidate.
        zeros: Zeros (N,).
        vote: The candidates' labels and entropies; None if the output has no class scores.
        scores: The candidates' scores, (N, P, …), and their layout.
        answer: The scores of the answer, (N, …).
    """

    candidates: tuple[Prior, ...]
    measured: list[Measured | None]
    zeros: Array
    vote: Vote | None = None
    scores: Array = None
    layout: ScoresLayout | None = None
    answer: Array = None

    def without_classes(self, array: Array, xp: Any) -> Array:
        """Return an array of the vote without its class axis, which has size 1 unless labels have sigmoids."""
        assert self.layout is not None
        return array if self.layout.kind.startswith("sigmoid") else xp.squeeze(array, axis=self.layout.class_axis)

    def candidate_priors(self, ops: Ops) -> Array:
        """Return λ (N, P), the mean over the layers where a rule sets it."""
        found = []
        for prior, measured in zip(self.candidates, self.measured, strict=True):
            rule = measured is not None and measured.layer_priors is not None
            value = ops.cast(ops.xp.mean(measured.layer_priors, axis=-1), self.zeros) if rule else prior  # type: ignore[union-attr]
            found.append(self.zeros + (1.0 if isinstance(value, ByShift) else value))
        return ops.xp.stack(found, axis=1)

    def outputs(self, ops: Ops) -> dict[str, Array]:
        """Return the diagnostics of an exported file by name, at every position that gets a label: (N, …).

        `prior`: λ of the most confident candidate. `entropy`: that candidate's, in nats. `source`: the scores of the
        source model, if λ = 1 is a candidate.
        """
        if self.vote is None:
            raise OutputError(
                "diagnostics: expected class scores, which the probe did not find. Try: sita.adapt(model, output=…, "
                "scores=…), or export without diagnostics."
            )
        xp = ops.xp
        entropies = self.without_classes(self.vote.entropies, xp)
        priors = self.candidate_priors(ops)
        column = (-1, *[1] * (len(entropies.shape) - 2))
        chosen, lowest = xp.reshape(priors[:, 0], column) + 0 * entropies[:, 0], entropies[:, 0]
        for place in range(1, len(self.candidates)):  # not argmin, which not every exporter supports
            better = entropies[:, place] < lowest
            chosen = xp.where(better, xp.reshape(priors[:, place], column), chosen)
            lowest = xp.where(better, entropies[:, place], lowest)
        found = {"prior": chosen, "entropy": lowest}
        if 1.0 in self.candidates:
            found["source"] = self.scores[:, self.candidates.index(1.0)]
        return found


class _ThreadObservers(threading.local):
    """The observers of this thread. A plain thread-local, which compilers can trace."""

    observers: tuple[Any, ...] = ()


class _GlobalObservers:
    """The observers of all threads. Replaced as a whole: readers need no lock."""

    observers: tuple[Any, ...] = ()


thread_observers, global_observers = _ThreadObservers(), _GlobalObservers()


def observers_of(adaptation: object) -> list[Any]:
    """Return the observations that record this adapted model in this thread."""
    return [each for key, each in (*thread_observers.observers, *global_observers.observers) if key is adaptation]
