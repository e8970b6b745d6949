"""Diagnostics: arrays of what an adapted model measured and decided.

`observe` records them, and an exported file can return them. Only operations that every exporter supports are used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .combining import Candidates, Combined, find_vote
from .errors import OutputError
from .ops import Array, Ops
from .recipe import Prior
from .state import Call
from .voting import Vote, first_largest, largest_probability, select_lowest

NAMES = ("prior", "entropy", "source")
"""The names of the diagnostics in an exported file."""


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
        priors = ops.reshape(priors, (-1, len(self.candidates), *[1] * (len(entropies.shape) - 2))) + 0 * entropies
        found = {"prior": priors, "entropy": entropies}
        every = range(len(self.candidates))
        found = {name: select_lowest(array, entropies, every, ops) for name, array in found.items()}
        return found | {name: array for name, array in self.arrays.items() if name == "source"}


def diagnose(candidates: Candidates, combined: Combined, call: Call) -> Diagnostics:
    """Return the diagnostics of a call, from its candidates and what they were combined to."""
    ops, measured = call.image_layout.ops, candidates.measured
    priors = tuple(call.plan.priors[row] for row in call.plan.candidates)
    pairs = zip(combined.arrays, call.probe.layout.axes, strict=True)
    some_array = next(array for array, axis in pairs if axis is not None)
    zeros = ops.precise(ops.zeros_like(ops.reshape(some_array, (ops.shape(some_array)[0], -1))[:, 0]))
    some = next((each for each in measured if each is not None), None)
    means = [  # λ of each candidate; if a rule sets it, the mean over the layers
        prior if each is None or each.layer_priors is None else ops.cast(ops.mean(each.layer_priors, axis=-1), zeros)
        for prior, each in zip(priors, measured, strict=True)
    ]
    found = {"candidate_priors": ops.stack([zeros + mean for mean in means], axis=1)}
    for name, of_source in (("shifts", math.nan), ("layer_shifts", math.nan), ("layer_priors", 1.0)):
        known = None if some is None else getattr(some, name)
        if known is not None:
            each = [ops.zeros_like(known) + of_source if one is None else getattr(one, name) for one in measured]
            found[name] = ops.stack(each, axis=1)
    if combined.weights is not None:
        found["weights"] = combined.weights
    if call.probe.layout.scores is not None:
        found |= _diagnose_scores(candidates, combined, combined.vote or find_vote(candidates, call), call)
    return Diagnostics(priors, () if some is None else some.layers, found)


def _diagnose_scores(candidates: Candidates, combined: Combined, vote: Vote, call: Call) -> dict[str, Array]:
    """Return the diagnostics of class scores: the candidates' entropies, votes, labels, confidences; the answers."""
    ops, layout = call.image_layout.ops, call.probe.layout.require_scores()
    axis, sigmoid = layout.class_axis, layout.kind.startswith("sigmoid")
    scores, answered = candidates.arrays[layout.index], ops.precise(combined.arrays[layout.index])
    if sigmoid:
        found = {"answers": answered > (0.5 if layout.kind == "sigmoid_probabilities" else 0.0)}
    else:
        found = {"answers": ops.squeeze(first_largest(answered, axis, ops), axis=axis)}
    for name in ("entropies", "kept", "votes", "labels"):
        found[name] = getattr(vote, name) if sigmoid else ops.squeeze(getattr(vote, name), axis=axis)
    found["confidences"] = largest_probability(ops.precise(scores), layout.kind, axis, ops)
    if call.plan.source_candidate is not None:
        found["source"] = scores[:, call.plan.source_candidate]
    return found
