"""What happens at every BatchNorm: moments per row, the blend, and one multiply-add.

Any layer with source statistics is adapted by a forward-pre-hook that rewrites its input, so that the untouched layer
puts out the blended normalisation. For PyTorch's own BatchNorm classes, whose arithmetic is known, the layer's
`forward` is replaced by the multiply-add that does both at once: one pass over the features instead of two.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sita_adapters.statistics import blend, normalising, pool, rewriting

from .arrays import TORCH
from .calls import Call, enter_layer
from .folding import check_entries
from .guards import refuse_training
from .moments import Features, measure

if TYPE_CHECKING:
    from .forward import Adaptation

_KNOWN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def attach(layer: nn.Module, adaptation: Adaptation, name: str, blends: bool) -> None:
    """Make this layer of an adapted copy blend its statistics; or, if it is left alone, at least not change them."""
    if not blends:
        layer.register_forward_pre_hook(functools.partial(refuse_training, name))
    elif type(layer) in _KNOWN and "forward" not in vars(layer):
        vars(layer)["forward"] = functools.partial(normalise, layer, adaptation, name)
    else:
        layer.register_forward_pre_hook(functools.partial(rewrite_input, adaptation, name), with_kwargs=True)


def detach(layer: nn.Module) -> None:
    """Make an attached layer a plain one again; leave any other as it is."""
    if _is_ours(vars(layer).get("forward")):
        del vars(layer)["forward"]
    for key, hook in list(layer._forward_pre_hooks.items()):
        if _is_ours(hook):
            del layer._forward_pre_hooks[key]
            layer._forward_pre_hooks_with_kwargs.pop(key, None)


def adaptation_of_layer(layer: nn.Module) -> Adaptation | None:
    """Return the adaptation that this layer blends its statistics for, if it does."""
    for function in (vars(layer).get("forward"), *layer._forward_pre_hooks.values()):
        if isinstance(function, functools.partial) and function.func in (normalise, rewrite_input):
            return function.args[1 if function.func is normalise else 0]  # type: ignore[no-any-return]
    return None


def _is_ours(function: Any) -> bool:
    return isinstance(function, functools.partial) and function.func in (normalise, rewrite_input, refuse_training)


def normalise(layer: nn.Module, adaptation: Adaptation, name: str, input: torch.Tensor) -> torch.Tensor:
    """`forward` of a BatchNorm layer with the blended statistics."""
    call = enter_layer(layer, adaptation, name)
    if call.probing:
        check_entries(input, name)
    if not call.blends:
        return type(layer).forward(layer, input)  # type: ignore[no-any-return]
    with _full_precision(input):
        features, mean, variance = _blended(input, layer, call, name)
        scale, shift = normalising(
            mean,
            variance,
            gamma=1.0 if layer.weight is None else _like(layer.weight, mean),
            beta=0.0 if layer.bias is None else _like(layer.bias, mean),
            epsilon=layer.eps,  # type: ignore[arg-type]
            xp=TORCH.xp,
        )
        return _like(_apply(features, scale, shift), input)


def rewrite_input(
    adaptation: Adaptation, name: str, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Forward-pre-hook: replace the input by one that the layer itself normalises with the blended statistics."""
    call = enter_layer(layer, adaptation, name)
    if call.probing:
        check_entries(args[0] if args else _first_tensor(kwargs)[1], name)
    if not call.blends:
        return None
    if args:
        return (_rewritten(args[0], layer, call, name), *args[1:]), kwargs
    key, value = _first_tensor(kwargs)
    return args, {**kwargs, key: _rewritten(value, layer, call, name)}


def _first_tensor(kwargs: dict[str, Any]) -> tuple[str, torch.Tensor]:
    return next((key, value) for key, value in kwargs.items() if isinstance(value, torch.Tensor))


def _rewritten(x: torch.Tensor, layer: nn.Module, call: Call, name: str) -> torch.Tensor:
    """Return x · scale + shift, which the untouched layer turns into the blended normalisation of x."""
    m_s: torch.Tensor = layer.running_mean  # type: ignore[assignment]
    v_s: torch.Tensor = layer.running_var  # type: ignore[assignment]
    channels_at_the_end = x.ndim > 2 and x.shape[1] != m_s.numel() and x.shape[-1] == m_s.numel()
    channels_first = x.movedim(-1, 1) if channels_at_the_end else x
    with _full_precision(x):
        features, mean, variance = _blended(channels_first, layer, call, name)
        scale, shift = rewriting(
            mean,
            variance,
            source_mean=_like(m_s, mean),
            source_variance=_like(v_s, mean),
            epsilon=layer.eps,  # type: ignore[arg-type]
            xp=TORCH.xp,
        )
        rewritten = _like(_apply(features, scale, shift), x)
    return rewritten.movedim(1, -1) if channels_at_the_end else rewritten


def _blended(x: torch.Tensor, layer: nn.Module, call: Call, name: str) -> tuple[Features, torch.Tensor, torch.Tensor]:
    """Return the features (B·R·T, C, …) with their moments, and the statistics of every row, (B, R, C)."""
    folded = call.folded(x, name)
    features = measure(x)
    channels = features.mean.shape[1]
    if folded == 1:
        shape: tuple[int, ...] = (call.images, call.rows, channels)
        means, variances = features.mean.reshape(shape), features.variance.reshape(shape)
    else:
        shape = (call.images, call.rows, folded, channels)
        means, variances = pool(features.mean.reshape(shape), features.variance.reshape(shape), axis=2, xp=TORCH.xp)
    if call.shared:
        means, variances = (moment[None] for moment in pool(means, variances, axis=0, xp=TORCH.xp))
    mean, variance = blend(
        means,
        variances,
        weights=_like(call.weights, means),
        priors=_like(call.priors, means),
        source_mean=_like(layer.running_mean, means),
        source_variance=_like(layer.running_var, means),
        xp=TORCH.xp,
    )
    if call.shared:
        mean, variance = mean.expand(call.images, -1, -1), variance.expand(call.images, -1, -1)
    return features, mean, variance


def _apply(features: Features, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Return x · scale + shift for (B, R, C), the same for all that the model folded into a row."""
    count, channels = features.mean.shape
    scale, shift = scale.reshape(-1, channels), shift.reshape(-1, channels)
    folded = count // scale.shape[0]
    if folded > 1:
        scale, shift = scale.repeat_interleave(folded, 0), shift.repeat_interleave(folded, 0)
    return features.affine(scale, shift)


def _like(values: Any, like: torch.Tensor) -> torch.Tensor:
    """Return values in the precision and on the device of `like`; asked first, since every layer does this often."""
    if values.dtype == like.dtype and values.device == like.device:
        return values  # type: ignore[no-any-return]
    return values.to(like)  # type: ignore[no-any-return]


def _full_precision(x: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Switch autocast off, where it is on: it would do the blend's products in half precision."""
    if torch.amp.is_autocast_available(x.device.type) and torch.is_autocast_enabled(x.device.type):
        return torch.autocast(x.device.type, enabled=False)
    return contextlib.nullcontext()
