"""What an adapted BatchNorm layer does: measure its rows, blend, normalise.

Any layer with source statistics is adapted by a forward-pre-hook that changes its input, so that the untouched layer
puts out the blended normalisation. For PyTorch's own BatchNorm classes and timm's, whose arithmetic is known, the
layer's `forward` is replaced by one batch-norm kernel with the blended statistics: one pass over the features, not two.
"""

from __future__ import annotations

import functools
import sys
from types import FrameType
from typing import Any

import torch
from torch import nn

from sita_adapters import engine
from sita_adapters.engine import Adaptation, Call
from sita_adapters.statistics import input_affine

from .guards import refuse_training
from .inspection import epsilon_of, source_statistics
from .lone_row import is_lone_row, normalise_lone_row
from .moments import Features, TooLargeError, measure
from .ops import TORCH


class AdaptedBatchNorm1d(nn.BatchNorm1d):
    """A BatchNorm1d that is adapted. What fuses BatchNorm layers by their type leaves it alone."""


class AdaptedBatchNorm2d(nn.BatchNorm2d):
    """A BatchNorm2d that is adapted. What fuses BatchNorm layers by their type leaves it alone."""


class AdaptedBatchNorm3d(nn.BatchNorm3d):
    """A BatchNorm3d that is adapted. What fuses BatchNorm layers by their type leaves it alone."""


_ADAPTED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: AdaptedBatchNorm1d,
    nn.BatchNorm2d: AdaptedBatchNorm2d,
    nn.BatchNorm3d: AdaptedBatchNorm3d,
}

_FUSED_MODULES: dict[str, tuple[str, ...]] = {
    "torch.nn.modules.batchnorm.BatchNorm1d": (),
    "torch.nn.modules.batchnorm.BatchNorm2d": (),
    "torch.nn.modules.batchnorm.BatchNorm3d": (),
    "torch.nn.modules.batchnorm.SyncBatchNorm": (),
    "timm.layers.norm_act.BatchNormAct2d": ("drop", "act"),
}
"""The classes whose arithmetic is known, by name (timm need not be installed), and the modules of theirs that they run
after the normalisation."""


def attach(layer: nn.Module, adaptation: Adaptation, name: str, adapted: bool) -> None:
    """Make this layer of a clone blend its statistics; or, if it is left alone, at least not change them."""
    if not adapted:
        layer.register_forward_pre_hook(functools.partial(refuse_training, name))
    elif "forward" not in vars(layer) and _class_name(layer) in _FUSED_MODULES:
        vars(layer)["forward"] = functools.partial(forward, layer, adaptation, name, _class_name(layer))
        layer.__class__ = _ADAPTED.get(type(layer), type(layer))
    else:
        hook = functools.partial(change_input, adaptation, name, epsilon_of(layer))
        layer.register_forward_pre_hook(hook, with_kwargs=True)


def detach(layer: nn.Module) -> None:
    """Make an attached layer a plain one again; leave any other as it is."""
    if _is_ours(vars(layer).get("forward")):
        del vars(layer)["forward"]
        layer.__class__ = next((kind for kind, ours in _ADAPTED.items() if ours is type(layer)), type(layer))
    for key, hook in list(layer._forward_pre_hooks.items()):
        if _is_ours(hook):
            del layer._forward_pre_hooks[key]
            layer._forward_pre_hooks_with_kwargs.pop(key, None)


def adaptation_of_layer(layer: nn.Module) -> Adaptation | None:
    """Return the adaptation that this layer blends its statistics for, if it does."""
    for function in (vars(layer).get("forward"), *layer._forward_pre_hooks.values()):
        if isinstance(function, functools.partial) and function.func in (forward, change_input):
            return next(each for each in function.args if isinstance(each, Adaptation))
    return None


def _is_ours(function: Any) -> bool:
    return isinstance(function, functools.partial) and function.func in (forward, change_input, refuse_training)


def forward(layer: nn.Module, adaptation: Adaptation, name: str, kind: str, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`forward` of a BatchNorm layer of a known class, with the blended statistics."""
    x: torch.Tensor = args[0] if args else _first_tensor(kwargs)[1]
    call = _enter(layer, adaptation, name, x)
    if not call.plan.blends:
        return type(layer).forward(layer, x)  # type: ignore[no-any-return]
    out = _without_autocast(x, _normalise, layer, call, name)
    for after in _FUSED_MODULES[kind]:
        out = getattr(layer, after)(out)
    return out


def change_input(  # noqa: PLR0917
    adaptation: Adaptation,
    name: str,
    epsilon: float,
    layer: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Forward-pre-hook: replace the input by one that the layer itself normalises with the blended statistics."""
    key, x = (None, args[0]) if args else _first_tensor(kwargs)
    call = _enter(layer, adaptation, name, x)
    if not call.plan.blends:
        return None
    changed = _without_autocast(x, _change, layer, call, name, epsilon)
    return ((changed, *args[1:]), kwargs) if key is None else (args, {**kwargs, key: changed})


def _enter(layer: nn.Module, adaptation: Adaptation, name: str, x: torch.Tensor) -> Call:
    call = engine.running_call()
    if call is None or call.adaptation is not adaptation:
        return engine.enter_layer(name, x, None, _entry_point(layer))
    if layer.training:
        refuse_training(name, layer)
    return engine.enter_layer(name, x, call)


def _normalise(x: torch.Tensor, layer: nn.Module, call: Call, name: str) -> torch.Tensor:
    """Return γ · (x − m) / sqrt(v + ε) + β with the blended statistics."""
    if is_lone_row(x, layer, call):
        try:
            return normalise_lone_row(x, layer, call, name)
        except TooLargeError:
            pass  # the general way measures again, in double precision
    features, mean, variance = _blend(x, layer, call, name, layer.eps)  # type: ignore[arg-type]
    gamma: Any = mean.new_ones(()) if layer.weight is None else TORCH.cast(layer.weight, mean)  # type: ignore[arg-type]
    beta: Any = mean.new_zeros(()) if layer.bias is None else TORCH.cast(layer.bias, mean)  # type: ignore[arg-type]
    return TORCH.cast(features.normalise((mean, variance), gamma, beta, layer.eps), x)  # type: ignore[arg-type]


def _change(x: torch.Tensor, layer: nn.Module, call: Call, name: str, epsilon: float) -> torch.Tensor:
    """Return x · scale + shift, which the untouched layer turns into the blended normalisation of x."""
    m_s, v_s = source_statistics(layer)
    channels_at_the_end = x.ndim > 2 and x.shape[1] != m_s.numel() and x.shape[-1] == m_s.numel()
    if channels_at_the_end:
        x = x.movedim(-1, 1)
    features, mean, variance = _blend(x, layer, call, name, epsilon)
    scale, shift = input_affine(
        mean,
        variance,
        source_mean=TORCH.cast(m_s, mean),
        source_variance=TORCH.cast(v_s, mean),
        epsilon=epsilon,
        xp=TORCH.xp,
    )
    changed = TORCH.cast(features.affine(scale, shift), x)
    return changed.movedim(1, -1) if channels_at_the_end else changed


def _blend(
    x: torch.Tensor, layer: nn.Module, call: Call, name: str, epsilon: float
) -> tuple[Features, torch.Tensor, torch.Tensor]:
    """Return the features (N, C, …), and the statistics that each is normalised with, (N, C)."""
    try:
        return engine.blend(
            lambda entries: measure(x, call.places, entries),
            source_statistics(layer),
            epsilon,
            x.shape[0],
            call=call,
            name=name,
        )
    except TooLargeError:
        return _blend(x.double(), layer, call, name, epsilon)


def _without_autocast(x: torch.Tensor, function: Any, *args: Any) -> torch.Tensor:
    """Call a function with autocast off, which would do the blend's products in half precision."""
    device = "cpu" if x.is_cpu else x.device.type
    if torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device):
        with torch.autocast(device, enabled=False):
            return function(x, *args)  # type: ignore[no-any-return]
    return function(x, *args)  # type: ignore[no-any-return]


def _first_tensor(kwargs: dict[str, Any]) -> tuple[str, torch.Tensor]:
    return next((key, value) for key, value in kwargs.items() if isinstance(value, torch.Tensor))


def _class_name(layer: nn.Module) -> str:
    return f"{type(layer).__module__}.{type(layer).__qualname__}"


def _entry_point(layer: nn.Module) -> str:
    """Name the outermost module method on the stack: what the caller called instead of the model."""
    name = f"{type(layer).__name__}.forward"
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        code = frame.f_code
        if isinstance(owner, nn.Module) and not code.co_filename.endswith("torch/nn/modules/module.py"):
            name = f"{type(owner).__name__}.{code.co_name}"
        frame = frame.f_back
    return name
