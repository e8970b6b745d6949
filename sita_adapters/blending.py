"""What happens at an adapted BatchNorm layer: measure its rows, and blend with the source's statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .adaptation import Adaptation
from .diagnostics import LayerMeasurement
from .engine import ForwardContext, running_context
from .errors import InputError, ModelError
from .ops import Array
from .shift import priors_by_shift, source_divergence
from .statistics import blend_with_source, mark_overflow, pool, target


def enter_layer(name: str, x: Array, adaptation: Adaptation | None = None) -> ForwardContext:
    """Return the running context for an adapted layer; raise if it runs outside a call of its adapted model."""
    context = running_context()
    if context is None or (adaptation is not None and context.adaptation is not adaptation):
        raise ModelError(
            f"The adapted layer {name!r} ran outside a call of the adapted model: a part of the model was called "
            "directly, or a checkpointed backward pass ran it again. Try: call the adapted model itself, or use "
            "sita.unwrap(adapted) for the plain one."
        )
    if context.record is not None:
        context.record(name, x)
    return context


Measure = Callable[[int, int], "tuple[Array, Array]"]
"""measure(n, first): the mean and biased variance, (B, n − first, C), of the batch entries of each image from `first`
on. An image has n of them, side by side."""


def blend(
    measure: Measure,
    source: tuple[Array, Array],
    epsilon: float,
    batch_rows: Any,
    positions: Any,
    *,
    context: ForwardContext,
    name: str,
) -> tuple[Array, Array]:
    """Return the mean and variance that each entry of a layer's batch is normalized with, (N, C).

    `source` is the source's mean and variance, (C,); `batch_rows` N, the number of entries; `positions` A, their
    number of spatial positions. A row has `factor` entries if the model folds time or tokens into its batch.
    """
    ops, plan = context.ops, context.plan
    factor = _factor(name, batch_rows, context)
    means, variances = measure(plan.rows * factor, plan.first * factor)
    source = ops.cast(source[0], means), ops.cast(source[1], means)
    if factor > 1:
        shape = (-1, plan.rows - plan.first, factor, int(source[0].shape[-1]))
        means, variances = pool(ops.xp.reshape(means, shape), ops.xp.reshape(variances, shape), axis=2, xp=ops.xp)
        positions = positions * factor
    mean, variance = _target(means, variances, context)
    divergence = None
    if plan.rule is not None or context.measurements is not None:
        eps = ops.scalar(epsilon, mean)
        divergence = source_divergence(mean, variance, *source, epsilon=eps, xp=ops.xp)
    priors = context.priors
    if plan.rule is not None:
        priors = priors_by_shift(divergence, positions, plan.rule, ops)
    elif not isinstance(priors, float):
        priors = ops.cast(priors, means)
    if context.measurements is not None:
        context.measurements.append(LayerMeasurement(name, positions, divergence, priors))
    mean, variance = blend_with_source(mean, variance, *source, priors=priors, xp=ops.xp)
    if plan.rule is None:  # a rule marks an overflow by λ
        variance = mark_overflow(variance, ops.xp)
    return _for_all_entries((mean, variance), source, factor, context)


def _factor(name: str, batch_rows: Any, context: ForwardContext) -> int:
    """Return the number of batch entries per row, which must be what the probe saw."""
    ops = context.ops
    factors = None if context.layout is None else context.layout.entries_per_row.get(name)
    call = context.calls.get(name, 0)
    context.calls[name] = call + 1
    if factors is None:
        raise ModelError(
            f"Layer {name!r} ran, but not in the probe. Expected the same layers for inputs of the same kind. "
            "Try: adapt a second model for these inputs, sita.adapt(model, example=…)."
        )
    factor = factors[min(call, len(factors) - 1)]
    if ops.is_symbol(batch_rows) or ops.is_symbol(context.rows):
        return factor
    if call >= len(factors) and len(set(factors)) > 1:
        raise ModelError(f"Layer {name!r} ran {call + 1} times in one call; it ran {len(factors)} times in the probe.")
    if batch_rows != factor * context.rows:
        raise InputError(
            f"Layer {name!r} received {batch_rows} batch entries for {context.rows} rows; expected "
            f"{factor * context.rows}, as in the probe. The model folds these inputs into its batch in another way, "
            "perhaps because of their size. Try: adapt a second model for these inputs, sita.adapt(model, example=…)."
        )
    return factor


def _target(means: Array, variances: Array, context: ForwardContext) -> tuple[Array, Array]:
    """Return the target statistics of the blended rows of each image, (B, R, C)."""
    xp, shared = context.ops.xp, context.adaptation.recipe.share == "batch"
    every_image = xp.zeros_like(means) if shared else 0.0
    if shared:
        means, variances = (moment[None] for moment in pool(means, variances, axis=0, xp=xp))
    if not context.plan.independent:
        weights, references = (context.ops.cast(each, means) for each in (context.weights, context.references))
        means, variances = target(means, variances, weights=weights, references=references, xp=xp)
    return (means + every_image, variances + every_image) if shared else (means, variances)


def _for_all_entries(
    statistics: tuple[Array, Array], source: tuple[Array, Array], factor: int, context: ForwardContext
) -> tuple[Array, Array]:
    """Return the statistics of all entries, (N, C): the source's for its rows, those given, (B, R, C), for the rest."""
    ops, plan = context.ops, context.plan
    found = []
    for statistic, value in zip(statistics, source, strict=True):
        rows = statistic
        if plan.first:
            rows = ops.concat([*[ops.for_every_image(value, statistic)] * plan.first, statistic], axis=1)
        entries = ops.xp.reshape(rows, (-1, int(value.shape[-1])))
        found.append(ops.repeat_rows(entries, factor) if factor > 1 else entries)
    return found[0], found[1]
