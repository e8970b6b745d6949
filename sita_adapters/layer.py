"""The work at an adapted BatchNorm layer.

call = LayerCall(name, x)      which entries of the layer's batch to measure
means, variances = …           the backend measures them
call.blend(means, variances)   the statistics to normalize every entry with
"""

from __future__ import annotations

from typing import Any

from .errors import SECOND_MODEL, InputError, ModelError
from .ops import Array, Ops
from .selection import leave_out
from .shift import LayerStatistics, Rule, scaled_divergence
from .state import Adaptation, LayerMeasurement, thread
from .statistics import blend_with_source, pool, target


class LayerCall:
    """One call of an adapted layer on a batch x (N, …), with several entries per image.

    Attributes:
        context: The forward pass that the layer runs in.
        blends: Whether the layer normalizes with blended statistics. If not, it runs as in the source model.
        entries: The number of consecutive batch entries of an image.
        first: The first of these to measure. The entries before it keep the source's statistics.
    """

    def __init__(self, name: str, x: Array, adaptation: Adaptation | None = None) -> None:
        context = thread.context
        if context is None or (adaptation is not None and context.adaptation is not adaptation):
            raise ModelError(
                f"The adapted layer {name!r} ran outside a call to the adapted model (a part of it was called, or a "
                "checkpoint ran it again). Try: call the adapted model itself, or use sita.unwrap(adapted)."
            )
        if context.record is not None:
            context.record(name, x)
        self.name, self.context, self.blends = name, context, context.plan.blends
        if self.blends:
            self._per_row = self._entries_per_row(x.shape[0])
            self.entries = context.plan.rows * self._per_row
            self.first = context.plan.first_blended * self._per_row

    def _entries_per_row(self, entries: Any) -> int:
        """Count this call; return the layer's batch entries per row, which must be the same as in the probe."""
        context, name = self.context, self.name
        call = context.calls.get(name, 0)
        context.calls[name] = call + 1
        known = None if context.probe is None else context.probe.entries_per_row.get(name)
        # A layer may run more often than in the probe (a loop) if it had the same number of entries in every call.
        if known is None or (call >= len(known) and len(set(known)) > 1):
            raise ModelError(
                f"Layer {name!r} ran {call + 1} times in one call, but {len(known or ())} times in the probe. Expected "
                f"the same for inputs of the same kind. Try: {SECOND_MODEL}."
            )
        factor = known[min(call, len(known) - 1)]
        is_symbol = context.ops.is_symbol
        if entries != factor * context.rows and not (is_symbol(entries) or is_symbol(context.rows)):
            raise InputError(
                f"Layer {name!r} received {entries} batch entries for {context.rows} rows; expected "
                f"{factor * context.rows}, as in the probe. Try: if the model runs its batch in chunks of n images, "
                f"sita.adapt(model, max_rows=n); if it folds them into its batch in another way, {SECOND_MODEL}; if "
                f"their number depends on what the images show, {leave_out([name], context.adaptation.layers)}."
            )
        return factor

    def blend(
        self, moments: tuple[Array, Array], source: tuple[Array, Array], epsilon: float, positions: Any
    ) -> tuple[Array, Array]:
        """Return the mean and variance, (…, C), to normalize each batch entry with, in batch order.

        `moments` holds the mean and biased variance of the measured entries, (B, entries − first, C). `source` holds
        the source's, (C,). `positions` is A, the number of spatial positions.
        """
        context, (means, variances), factor = self.context, moments, self._per_row
        ops, plan = context.ops, context.plan
        source_mean, source_variance = ops.cast(source[0], means), ops.cast(source[1], means)
        if factor > 1:  # the model folds time or tokens into its batch: a row has several entries
            shape = (-1, plan.rows - plan.first_blended, factor, int(source_mean.shape[-1]))
            means, variances = pool(ops.reshape(means, shape), ops.reshape(variances, shape), axis=2, ops=ops)
            positions = positions * factor
        if context.first_positions is None:
            context.first_positions = positions
        if not plan.independent or context.adaptation.recipe.share == "batch":
            means, variances = self._target(means, variances)
        if plan.has_rule or context.measurements is not None:
            eps = ops.scalar(epsilon, means)
            divergence = scaled_divergence(means, variances, source_mean, source_variance, epsilon=eps, ops=ops)
            measured = (means, variances, source_mean, source_variance, eps, divergence)
            priors = self._priors(LayerStatistics(self.name, *measured, positions, context.first_positions))
        else:
            priors = self._fixed_priors(means)
        if context.measurements is not None:
            context.measurements.append(LayerMeasurement(self.name, positions, divergence, _mean_prior(priors, ops)))
        means, variances = blend_with_source(means, variances, source_mean, source_variance, priors=priors, ops=ops)
        if not plan.has_rule:  # NaN for an overflow, as a rule's λ makes it: x / sqrt(∞) = 0 looks like an answer
            variances = ops.where(variances < float("inf"), variances, float("nan"))
        if plan.first_blended or factor > 1:
            return self._for_all_entries((means, variances), (source_mean, source_variance))
        return means, variances

    def _target(self, means: Array, variances: Array) -> tuple[Array, Array]:
        """Return the target statistics of the blended rows of each image, (B, R, C)."""
        context, ops, shared = self.context, self.context.ops, self.context.adaptation.recipe.share == "batch"
        every_image = ops.zeros_like(means) if shared else 0.0
        if shared:
            means, variances = (moment[None] for moment in pool(means, variances, axis=0, ops=ops))
        if not context.plan.independent:
            weights, references = (context.constant(name, means) for name in ("blended_weights", "references"))
            means, variances = target(means, variances, weights=weights, references=references, ops=ops)
        return (means + every_image, variances + every_image) if shared else (means, variances)

    def _fixed_priors(self, like: Array) -> tuple[Any, Any]:
        """Return λ of the blended rows, of the mean and of the variance: a number if all share it, or a column."""
        runs = self.context.plan.prior_runs
        prior = runs[0][0] if len(runs) == 1 else self.context.constant("blended_priors", like)
        return prior, prior

    def _priors(self, layer: LayerStatistics) -> tuple[Any, Any]:
        """Return λ of the mean and of the variance if a rule sets any: (B, R, 1), or (B, R, C)."""
        context, runs, ops = self.context, self.context.plan.prior_runs, self.context.ops
        if not context.plan.has_rule:
            return self._fixed_priors(layer.means)
        found = []
        for prior, first, end in runs:
            own = layer if len(runs) == 1 else layer.of_rows(first, end)
            if isinstance(prior, Rule):
                found.append(prior.priors(own, ops))
            else:
                found.append((0 * own.divergence + prior,) * 2)
        if len(found) == 1:
            return found[0]
        if any(isinstance(prior, Rule) and prior.per_channel for prior, _, _ in runs):
            zeros = ops.zeros_like(layer.means[:, :1])
            found = [(of_mean + zeros, of_variance + zeros) for of_mean, of_variance in found]
        of_means, of_variances = (ops.concat(each, axis=1) for each in zip(*found, strict=True))
        return of_means, of_variances

    def _for_all_entries(self, blended: tuple[Array, Array], source: tuple[Array, Array]) -> tuple[Array, Array]:
        """Return statistics for all entries: the source's, (C,), for its rows, and (B, R, C) for the blended rows."""
        ops, first, found = self.context.ops, self.context.plan.first_blended, []
        for of_rows, of_source in zip(blended, source, strict=True):
            joined = of_rows
            if first:
                joined = ops.concat([*[ops.for_every_image(of_source, of_rows)] * first, of_rows], axis=1)
            if self._per_row > 1:
                joined = ops.repeat_rows(ops.reshape(joined, (-1, int(of_source.shape[-1]))), self._per_row)
            found.append(joined)
        return found[0], found[1]


def _mean_prior(priors: tuple[Any, Any], ops: Ops) -> Any:
    """Return one λ for each row, the mean over channels of that of the mean and that of the variance."""
    of_mean, of_variance = priors
    if of_mean is of_variance:
        return of_mean
    return ops.mean(0.5 * (of_mean + of_variance), axis=-1, keepdims=True)
