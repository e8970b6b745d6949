"""An adapted BatchNorm layer: measure its rows, blend, normalize.

Any layer with source statistics is adapted by a forward-pre-hook that rewrites its input; the untouched layer then
returns the blended normalization. For PyTorch's own classes and timm's, whose arithmetic is known, the layer's
`forward` runs one batch-norm kernel with the blended statistics instead: one pass over the features, not two.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from sita_adapters.errors import SharedWeightsError
from sita_adapters.layer import LayerCall
from sita_adapters.statistics import input_affine, output_affine

from .inspection import Adaptation, epsilon_of, source_statistics
from .ops import TRACED, TorchOps

_ADAPTED: dict[type[nn.Module], type[nn.Module]] = {
    kind: type(f"Adapted{kind.__name__}", (kind,), {"__module__": __name__})
    for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
}
"""Adapted layers have classes of their own: tools that fuse BatchNorm layers by their exact type skip them."""
globals().update({kind.__name__: kind for kind in _ADAPTED.values()})  # where pickle looks for them

_AFTERWARDS: dict[str, tuple[str, ...]] = {
    **{f"{kind.__module__}.{kind.__name__}": () for kind in (*_ADAPTED, nn.SyncBatchNorm)},
    "timm.layers.norm_act.BatchNormAct2d": ("drop", "act"),
}
"""The classes whose arithmetic is known, by name (timm need not be installed), and what they run afterwards."""


def adapt_layer(layer: nn.Module, adaptation: Adaptation, name: str, adapted: bool) -> None:
    """Make this layer of a clone blend its statistics; or, if it is skipped, refuse to change them."""
    kind = f"{type(layer).__module__}.{type(layer).__qualname__}"
    if not adapted:
        layer.register_forward_pre_hook(partial(refuse_training, name))
    elif "forward" not in vars(layer) and kind in _AFTERWARDS:
        vars(layer)["forward"] = partial(blended_forward, layer, adaptation, name, _AFTERWARDS[kind])
        layer.__class__ = _ADAPTED.get(type(layer), type(layer))
    else:
        hook = partial(rewrite_input, adaptation, name, epsilon_of(layer))
        layer.register_forward_pre_hook(hook, with_kwargs=True)


def restore_layer(layer: nn.Module) -> nn.Module:
    """Make a layer of an adapted model a plain one again."""
    if is_ours(vars(layer).get("forward")):
        del vars(layer)["forward"]
        layer.__class__ = next((kind for kind, ours in _ADAPTED.items() if ours is type(layer)), type(layer))
    for key, hook in list(layer._forward_pre_hooks.items()):
        if is_ours(hook):
            del layer._forward_pre_hooks[key]
            layer._forward_pre_hooks_with_kwargs.pop(key, None)
    return layer


def is_adapted(layer: nn.Module) -> bool:
    """Whether this layer belongs to an adapted model."""
    return is_ours(vars(layer).get("forward")) or any(map(is_ours, layer._forward_pre_hooks.values()))


def is_known(layer: nn.Module) -> bool:
    """Whether this layer of a clone is of a class whose arithmetic is known: it need not be checked."""
    return is_ours(vars(layer).get("forward"))


def is_ours(function: Any) -> bool:
    """Whether this is a hook or a forward method of this file."""
    return isinstance(function, partial) and function.func in (blended_forward, rewrite_input, refuse_training)


def blended_forward(
    layer: Any, adaptation: Adaptation, name: str, afterwards: tuple[str, ...], *args: Any, **kwargs: Any
) -> torch.Tensor:
    """`forward` of a BatchNorm layer of a known class, which takes one tensor, with the blended statistics."""
    (x,) = (*args, *kwargs.values())
    if layer.training:
        refuse_training(name, layer)
    call = LayerCall(name, x, adaptation)
    if not call.blends:
        return type(layer).forward(layer, x)  # type: ignore[no-any-return]
    source = layer._buffers["running_mean"], layer._buffers["running_var"]  # without a search
    if torch.compiler.is_compiling():  # perhaps just this part of the model
        call.context.ops = TRACED
    ops: Any = call.context.ops
    positions = ops.positions(x, 1)
    with _without_autocast(x):
        mean, variance = call.blend(measure(x, call, ops), source, layer.eps, positions)
        out = _normalize(x, mean, variance, layer, positions, ops)
    for module in afterwards:
        out = getattr(layer, module)(out)
    return out


def rewrite_input(  # noqa: PLR0917
    adaptation: Adaptation, name: str, epsilon: float, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Forward-pre-hook: rewrite the input such that the layer itself normalizes with the blended statistics."""
    key = None if args else next(key for key, value in kwargs.items() if isinstance(value, torch.Tensor))
    x: torch.Tensor = args[0] if key is None else kwargs[key]
    if layer.training:
        refuse_training(name, layer)
    call = LayerCall(name, x, adaptation)
    if not call.blends:
        return None
    assert call.context.probe is not None
    axis = call.context.probe.channel_axes.get(name, 1)
    if torch.compiler.is_compiling():
        call.context.ops = TRACED
    ops: Any = call.context.ops
    features, source = x.movedim(axis, 1), source_statistics(layer)
    with _without_autocast(x):
        mean, variance = call.blend(measure(features, call, ops), source, epsilon, ops.positions(features, 1))
        m_s, v_s = (ops.cast(each, mean) for each in source)
        scale, shift = input_affine(mean, variance, source_mean=m_s, source_variance=v_s, epsilon=epsilon, ops=ops)
        rewritten = ops.cast(_affine(ops.precise(features), scale, shift), x).movedim(1, axis)
    return ((rewritten, *args[1:]), kwargs) if key is None else (args, {**kwargs, key: rewritten})


def refuse_training(name: str, layer: nn.Module, *_: Any) -> None:
    """Raise if a BatchNorm layer is in training mode: it would change the source's statistics."""
    if layer.training:
        raise SharedWeightsError(
            f"The layer {name!r} of an adapted model is in training mode, and would overwrite the statistics that it "
            "shares with the source model. Try: adapted.eval(); a source whose own train() leaves no layer in training "
            "mode; train the source model."
        )


_UNCHANGED = nullcontext()


def _without_autocast(x: torch.Tensor) -> AbstractContextManager[Any]:
    """Switch autocast off inside, which would compute the blend in half precision."""
    device = "cpu" if x.is_cpu else x.device.type
    if device != "cpu" and not torch.amp.is_autocast_available(device):
        return _UNCHANGED
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else _UNCHANGED


def measure(x: torch.Tensor, call: LayerCall, ops: TorchOps) -> tuple[torch.Tensor, torch.Tensor]:
    """Return mean and biased variance (B, entries − first, C) of features (N, C, …), in float32 or better.

    Two passes, because the formula for one loses precision where the mean is large.
    """
    rows = ops.precise(x)
    rows = rows.unsqueeze(1) if call.entries == 1 else rows.view(-1, call.entries, *x.shape[1:])[:, call.first :]
    axes = tuple(range(3, rows.ndim))
    if not axes:
        return rows, torch.zeros_like(rows)
    if rows.requires_grad or ops is TRACED:
        means = torch.mean(rows, axes, True)
        deviations = rows - means
        return means.flatten(2), torch.mean(deviations * deviations, axes)
    # The same in fewer operations, without a third array of this size. (`vector_norm` is faster, but off by 7e-5 for
    # large maps with channels last.)
    total = torch.sum(rows, axes, True)
    share = 1 / (rows.numel() // total.numel())
    deviations = torch.sub(rows, total, alpha=share)
    scale = ops.scalar(share, rows)
    return total.view(total.shape[:3]) * scale, torch.sum(deviations.mul_(deviations), axes) * scale


def _normalize(  # noqa: PLR0917
    x: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor, layer: Any, positions: int, ops: TorchOps
) -> torch.Tensor:
    """Return γ · (x − m) / sqrt(v + ε) + β for features (N, C, …), statistics (…, C), and γ and β (C,).

    BatchNorm's own kernel does it in one pass, with every channel of every entry as one of its channels. (Not cuDNN's,
    which limits the sizes of its arrays.)
    """
    precise = ops.precise(x)
    gamma, beta = (each if each is None else ops.cast(each, mean) for each in (layer.weight, layer.bias))
    # A compiler fuses plain operations, and the kernel has no gradient of the statistics.
    compiled = ops is TRACED and torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    if compiled or mean.requires_grad or not precise.is_contiguous() or x.ndim == 2:
        affine = {"gamma": 1.0 if gamma is None else gamma, "beta": 0.0 if beta is None else beta}
        scale, shift = output_affine(mean, variance, **affine, epsilon=layer.eps, ops=ops)
        return ops.cast(_affine(precise, scale, shift), x)
    gamma, beta = (each if each is None else _repeat(each, mean, ops) for each in (gamma, beta))
    flat, mean, variance = precise.reshape(1, -1, positions, 1), mean.reshape(-1), variance.reshape(-1)
    out = torch.batch_norm(flat, gamma, beta, mean, variance, False, 0.0, layer.eps, False)
    return ops.cast(out.view(-1, *map(int, x.shape[1:])), x)


def _repeat(weight: torch.Tensor, mean: torch.Tensor, ops: TorchOps) -> torch.Tensor:
    """Return γ or β (C,) once for each entry of the batch, one after the other."""
    if ops is TRACED:  # the number of entries may be dynamic
        return (0 * mean + weight).reshape(-1)
    entries = mean.numel() // weight.numel()
    return weight if entries == 1 else torch.cat([weight] * entries)  # faster than `repeat` for a few


def _affine(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Return x · scale + shift for features (N, C, …), and scale and shift (…, C)."""
    if torch.compiler.is_compiling():  # or the fused loop computes the root and the quotient at every position
        scale, shift = torch.stack((scale, shift))
    column = (-1, int(scale.shape[-1]), *[1] * (x.ndim - 2))
    return torch.addcmul(shift.reshape(column), x, scale.reshape(column))
