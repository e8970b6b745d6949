"""The work at an adapted BatchNorm layer: measure the rows, and blend their statistics with the source's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .diagnostics import LayerMeasurement
from .engine import Adaptation, ForwardContext, thread
from .errors import InputError, ModelError
from .ops import Array
from .shift import scaled_divergence
from .statistics import blend_with_source, pool, target

Measure = Callable[[int, int], "tuple[Array, Array]"]
"""measure(n, first) returns the mean and biased variance, (B, n − first, C), of each image's batch entries from index
`first`. An image has n consecutive entries."""


def enter_layer(name: str, x: Array, adaptation: Adaptation | None = None) -> ForwardContext:
    """Return the current context of an adapted layer; raise if it runs outside a call of its adapted model."""
    context = thread.context
    if context is None or (adaptation is not None and context.adaptation is not adaptation):
        raise ModelError(
            f"The adapted layer {name!r} ran outside a call to the adapted model: a part of the model was called "
            "directly, or a checkpointed backward pass ran it again. Try: call the adapted model itself, or use "
            "sita.unwrap(adapted) for the plain one."
        )
    if context.record is not None:
        context.record(name, x)
    return context


def blend(  # noqa: PLR0917
    measure: Measure,
    source: tuple[Array, Array],
    epsilon: float,
    entries: Any,
    positions: Any,
    context: ForwardContext,
    name: str,
) -> tuple[Array, Array]:
    """Return the mean and variance, (…, C), to normalize each entry of a layer's batch with, in batch order.

    `source` is the source's mean and variance, (C,). `entries` is N, the size of the layer's batch. `positions` is A,
    the number of spatial positions. A row has several entries if the model folds time or tokens into its batch.
    """
    ops, plan = context.ops, context.plan
    factor = _entries_per_row(name, entries, context)
    means, variances = measure(plan.rows * factor, plan.first_blended * factor)
    source = ops.cast(source[0], means), ops.cast(source[1], means)
    if factor > 1:
        shape = (-1, plan.rows - plan.first_blended, factor, int(source[0].shape[-1]))
        means, variances = pool(ops.xp.reshape(means, shape), ops.xp.reshape(variances, shape), axis=2, xp=ops.xp)
        positions = positions * factor
    if context.first_positions is None:
        context.first_positions = positions
    means, variances = _target(means, variances, context)
    divergence = None
    if plan.has_rule or context.measurements is not None:
        eps = ops.scalar(epsilon, means)
        divergence = scaled_divergence(means, variances, *source, epsilon=eps, xp=ops.xp)
    priors = _priors(name, divergence, positions, means, context)
    if context.measurements is not None:
        context.measurements.append(LayerMeasurement(name, positions, divergence, priors))
    means, variances = blend_with_source(means, variances, *source, priors=priors, xp=ops.xp)
    if not plan.has_rule:  # turn an overflow into NaN (a rule's λ is NaN then): x / sqrt(∞) = 0 looks like an answer
        variances = ops.xp.where(variances < float("inf"), variances, float("nan"))
    return _for_all_entries(means, source[0], factor, context), _for_all_entries(variances, source[1], factor, context)


def _entries_per_row(name: str, entries: Any, context: ForwardContext) -> int:
    """Count this call of a layer; return its batch entries per row, which must be the same as in the probe."""
    ops, call = context.ops, context.calls.get(name, 0)
    context.calls[name] = call + 1
    known = None if context.layout is None else context.layout.entries_per_row.get(name)
    # A layer may run more often than in the probe (a loop) if every call in the probe had the same number of entries.
    if known is None or (call >= len(known) and len(set(known)) > 1):
        raise ModelError(
            f"Layer {name!r} ran {call + 1} times in one call, but {len(known or ())} times in the probe. Expected the "
            "same layers for inputs of the same kind. Try: adapt a second model for these inputs, "
            "sita.adapt(model, example=…)."
        )
    factor = known[min(call, len(known) - 1)]
    if not (ops.is_symbol(entries) or ops.is_symbol(context.rows)) and entries != factor * context.rows:
        raise InputError(
            f"Layer {name!r} received {entries} batch entries for {context.rows} rows; expected "
            f"{factor * context.rows}, as in the probe. The model folds these inputs into its batch in another way, "
            "perhaps because of their size. Try: adapt a second model for these inputs, sita.adapt(model, example=…)."
        )
    return factor


def _target(means: Array, variances: Array, context: ForwardContext) -> tuple[Array, Array]:
    """Return the target statistics of the blended rows of each image, (B, R, C)."""
    ops, plan, shared = context.ops, context.plan, context.adaptation.recipe.share == "batch"
    every_image = ops.xp.zeros_like(means) if shared else 0.0
    if shared:
        means, variances = (moment[None] for moment in pool(means, variances, axis=0, xp=ops.xp))
    if not plan.independent:
        weights, references = (context.constant(name, means) for name in ("blended_weights", "references"))
        means, variances = target(means, variances, weights=weights, references=references, xp=ops.xp)
    return (means + every_image, variances + every_image) if shared else (means, variances)


def _priors(name: str, divergence: Array, positions: Any, like: Array, context: ForwardContext) -> Any:
    """Return λ of the blended rows: one number if all share it, a column (R, 1), or (B, R, 1) if a rule sets any."""
    runs = context.plan.prior_runs
    if not context.plan.has_rule:
        return runs[0][0] if len(runs) == 1 else context.constant("blended_priors", like)
    found = []
    for prior, first, end in runs:
        measured = divergence if len(runs) == 1 else divergence[:, first:end]
        if isinstance(prior, float):
            found.append(0 * measured + prior)
        else:
            found.append(prior.priors(measured, name, positions, context.first_positions, context.ops))
    return found[0] if len(runs) == 1 else context.ops.concat(found, axis=1)


def _for_all_entries(blended: Array, source: Array, factor: int, context: ForwardContext) -> Array:
    """Return a statistic for all entries: the source's, (C,), for its rows, and (B, R, C) for the blended rows."""
    ops, first = context.ops, context.plan.first_blended
    if first:
        blended = ops.concat([*[ops.for_every_image(source, blended)] * first, blended], axis=1)
    if factor > 1:
        blended = ops.repeat_rows(ops.xp.reshape(blended, (-1, int(source.shape[-1]))), factor)
    return blended
