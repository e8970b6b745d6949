"""What happens at every BatchNorm: moments per row, the blend, and its application.

Any layer with source statistics is adapted by a forward-pre-hook that rewrites its input, so that the untouched layer
puts out the blended normalisation. For PyTorch's own BatchNorm classes and timm's, whose arithmetic is known, the
layer's `forward` is replaced by one batch-norm kernel with the blended statistics: one pass over the features, not two.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sita_adapters.statistics import pool, rewriting, target, target_of_squares, towards_source

from .arrays import TORCH
from .calls import Call, enter_layer
from .folding import check_entries
from .guards import refuse_training
from .moments import Features, exact_enough, measure

if TYPE_CHECKING:
    from .forward import Adaptation

_KNOWN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)

_KNOWN_WITH_MORE = {"timm.layers.norm_act.BatchNormAct2d": ("drop", "act")}
"""Classes by name, since timm need not be installed, that run these modules of theirs after the normalisation."""


def attach(layer: nn.Module, adaptation: Adaptation, name: str, blends: bool) -> None:
    """Make this layer of an adapted copy blend its statistics; or, if it is left alone, at least not change them."""
    if not blends:
        layer.register_forward_pre_hook(functools.partial(refuse_training, name))
    elif "forward" not in vars(layer) and type(layer) in _KNOWN:
        vars(layer)["forward"] = functools.partial(normalise, layer, adaptation, name)
    elif "forward" not in vars(layer) and _class_name(layer) in _KNOWN_WITH_MORE:
        vars(layer)["forward"] = functools.partial(normalise_and_more, layer, adaptation, name)
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
        if isinstance(function, functools.partial) and function.func in (*_FORWARDS, rewrite_input):
            return function.args[0 if function.func is rewrite_input else 1]  # type: ignore[no-any-return]
    return None


def _is_ours(function: Any) -> bool:
    return isinstance(function, functools.partial) and function.func in (*_FORWARDS, rewrite_input, refuse_training)


def normalise(layer: nn.Module, adaptation: Adaptation, name: str, input: torch.Tensor) -> torch.Tensor:
    """`forward` of a BatchNorm layer with the blended statistics."""
    return _forward(layer, adaptation, name, input)


def normalise_and_more(layer: nn.Module, adaptation: Adaptation, name: str, x: torch.Tensor) -> torch.Tensor:
    """`forward` of a layer that goes on after the normalisation; its argument has another name, too."""
    return _forward(layer, adaptation, name, x, _KNOWN_WITH_MORE[_class_name(layer)])


_FORWARDS = (normalise, normalise_and_more)


def _forward(
    layer: nn.Module, adaptation: Adaptation, name: str, x: torch.Tensor, more: tuple[str, ...] = ()
) -> torch.Tensor:
    call = enter_layer(layer, adaptation, name)
    if call.probing:
        check_entries(x, name)
    if not call.blends:
        return type(layer).forward(layer, x)  # type: ignore[no-any-return]
    if _autocasts(x):
        with torch.autocast(x.device.type, enabled=False):
            out = _normalised(x, layer, call, name)
    else:
        out = _normalised(x, layer, call, name)
    for after in more:
        out = getattr(layer, after)(out)
    return out


def _class_name(layer: nn.Module) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


def _normalised(x: torch.Tensor, layer: nn.Module, call: Call, name: str) -> torch.Tensor:
    features, mean, variance = _blended(x, layer, call, name)
    gamma_beta = _like(layer.weight, mean), _like(layer.bias, mean)
    return _like(features.normalised((mean, variance), gamma_beta, layer.eps), x)  # type: ignore[arg-type]


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
    with torch.autocast(x.device.type, enabled=False) if _autocasts(x) else contextlib.nullcontext():
        features, mean, variance = _blended(channels_first, layer, call, name)
        scale, shift = rewriting(
            mean,
            variance,
            source_mean=_like(m_s, mean),
            source_variance=_like(v_s, mean),
            epsilon=layer.eps,  # type: ignore[arg-type]
            xp=TORCH.xp,
        )
        rewritten = _like(features.affine(scale, shift), x)
    return rewritten.movedim(1, -1) if channels_at_the_end else rewritten


def _blended(x: torch.Tensor, layer: nn.Module, call: Call, name: str) -> tuple[Features, torch.Tensor, torch.Tensor]:
    """Return the features (N, C, …) and the statistics that each is normalised with: (N, C), or (C,) for all alike."""
    folded = call.folded(x, name)
    features = measure(x)
    mean, variance = _target(features, call) if folded == 1 else _target_of_folded(features, call, folded)
    mean, variance = towards_source(
        mean,
        variance,
        priors=_like(call.priors, mean),
        source_mean=_like(layer.running_mean, mean),
        source_variance=_like(layer.running_var, mean),
        xp=TORCH.xp,
    )
    return features, _for_entries(mean, call, folded), _for_entries(variance, call, folded)


def _target(features: Features, call: Call) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the statistics that the rows of each image estimate, (B, R, C), the cheap way where it is exact enough."""
    shape = (-1, call.rows, int(features.mean.shape[1]))
    means = features.mean.reshape(shape)
    weights = _like(call.weights, means)
    if features.squares is None or call.shared:
        return _exact_target(means, features.variance.reshape(shape), call, weights)
    mean, variance = target_of_squares(
        means,
        features.squares.view(shape),
        weights=weights,
        weights_over_area=call.weights_over(features.area) if weights is call.weights else weights / features.area,
        xp=TORCH.xp,
    )
    enough = exact_enough(mean, variance)
    if enough is None:
        return mean, variance
    # An image's answer must not depend on what else is in its batch, to the last bit.
    exact = _exact_target(means, features.variance.reshape(shape), call, weights)
    return torch.where(enough, mean, exact[0]), torch.where(enough, variance, exact[1])


def _target_of_folded(features: Features, call: Call, folded: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the same where the model folds T entries into a row, which are parts of it."""
    shape = (call.images, call.rows, folded, features.mean.shape[1])
    moments = pool(features.mean.reshape(shape), features.variance.reshape(shape), axis=2, xp=TORCH.xp)
    return _exact_target(*moments, call, _like(call.weights, moments[0]))


def _exact_target(
    means: torch.Tensor, variances: torch.Tensor, call: Call, weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    if call.shared:
        means, variances = (moment[None] for moment in pool(means, variances, axis=0, xp=TORCH.xp))
        weights = weights if weights.ndim == 2 else weights[:1]
    return target(means, variances, weights=weights, xp=TORCH.xp)


def _for_entries(statistics: torch.Tensor, call: Call, folded: int) -> torch.Tensor:
    """Return the statistics of the rows for the B·R·T entries, which the model may fold into a row."""
    channels = int(statistics.shape[-1])
    if call.alike and call.one_image:
        return statistics.view(channels)
    if call.alike or call.shared:
        statistics = statistics.expand(call.images, call.rows, channels)
    flat = statistics.reshape(-1, channels)
    return flat if folded == 1 else flat.repeat_interleave(folded, 0)


def _like(values: Any, like: torch.Tensor) -> torch.Tensor:
    """Return values, if any, in the precision and on the device of `like`; asked first: it is done often."""
    if values is None or (values.dtype is like.dtype and values.device == like.device):
        return values  # type: ignore[no-any-return]
    return values.to(like)  # type: ignore[no-any-return]


def _autocasts(x: torch.Tensor) -> bool:
    """Whether autocast is on here: it would do the blend's products in half precision."""
    device = "cpu" if x.is_cpu else x.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
