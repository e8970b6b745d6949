"""What happens at every BatchNorm: moments per row, the blend, and the input rewritten."""

from __future__ import annotations

import contextlib
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sita_adapters.errors import BypassError, InputError, SharedWeightsError
from sita_adapters.statistics import blend, pool, rewriting

from .arrays import TORCH

if TYPE_CHECKING:
    from .forward import Adaptation

_EPSILON = 1e-12
"""Keeps 1/σ finite where a row's channel is constant; far below the ε of any layer."""


@dataclass
class Call:
    """One call of an adapted model while it runs: B images of R rows each, and the Plan's arrays."""

    adaptation: Adaptation
    images: int
    rows: int
    weights: torch.Tensor
    priors: torch.Tensor
    blends: bool
    layers_run: int = 0


class _Running(threading.local):
    """The call that this thread is in. A plain thread-local: compilers and exporters follow it."""

    call: Call | None = None


running = _Running()


@dataclass(eq=False)
class Blend:
    """The forward-pre-hook of one BatchNorm layer."""

    adaptation: Adaptation
    name: str

    def __call__(
        self, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Replace the layer's input by one that it normalises with the blended statistics."""
        call = running.call
        if call is None or call.adaptation is not self.adaptation:
            raise BypassError(
                f"{_entry_point(layer)} ran the adapted layer {self.name!r} outside a call of the adapted model, where "
                "there are no views to take statistics from. Remedy: call the adapted model itself, or use "
                "sita.unwrap(adapted) for the plain one."
            )
        if layer.training:
            raise SharedWeightsError(
                f"The adapted layer {self.name!r} is in training mode and would overwrite the statistics that it "
                "shares with the source model. Expected eval mode. Remedy: adapted.eval(); train the source model."
            )
        call.layers_run += 1
        if not call.blends:
            return None
        if args:
            return (rewrite(args[0], layer, call, self.name), *args[1:]), kwargs
        key = next(key for key, value in kwargs.items() if isinstance(value, torch.Tensor))
        return args, {**kwargs, key: rewrite(kwargs[key], layer, call, self.name)}


def rewrite(x: torch.Tensor, layer: nn.Module, call: Call, name: str) -> torch.Tensor:
    """Return x · scale + shift, which the untouched layer turns into the blended normalisation of x.

    x is (B·R·T, C, …): T is 1, or what the model folds into its batch (time, tokens), which counts as space.
    """
    source_mean, source_variance = layer.running_mean, layer.running_var
    assert isinstance(source_mean, torch.Tensor)
    assert isinstance(source_variance, torch.Tensor)
    channels = source_mean.numel()
    folded, rest = divmod(x.shape[0], call.images * call.rows)
    if rest or folded == 0:
        raise InputError(
            f"Layer {name!r} received {x.shape[0]} leading entries for {call.images} images of {call.rows} rows: the "
            "model folds its batch in a way that cannot be followed. Expected a multiple of "
            f"{call.images * call.rows}. Remedy: leave the layer out with layers=."
        )
    last = x.ndim > 2 and x.shape[1] != channels and x.shape[-1] == channels
    features = x.movedim(-1, 1) if last else x
    with _full_precision(x):
        # Statistics are computed in float32 at the least, whatever the features are in.
        precise = features if features.dtype == torch.float64 else features.float()
        normalised, means, deviations = normalise_rows(precise)
        shape = (call.images, call.rows, folded, channels)
        means, deviations = means.reshape(shape), deviations.reshape(shape)
        m_s, v_s = source_mean.to(precise), source_variance.to(precise)
        mean, variance = blend(
            *_per_row(means, deviations * deviations),
            weights=call.weights.to(precise),
            priors=call.priors.to(precise),
            source_mean=m_s,
            source_variance=v_s,
            xp=TORCH.xp,
        )
        epsilon = float(layer.eps)  # type: ignore[arg-type]
        scale, shift = rewriting(
            mean, variance, source_mean=m_s, source_variance=v_s, epsilon=epsilon, xp=TORCH.xp
        )
        scale, shift = scale.unsqueeze(2), shift.unsqueeze(2)
        # x · scale + shift, from what normalise_rows left: x = normalised · deviation + mean.
        column = (-1, channels, *[1] * (features.ndim - 2))
        factor = (scale * deviations).reshape(column)
        offset = torch.addcmul(shift, means, scale).reshape(column)
        rewritten = apply_affine(normalised, factor, offset).to(x.dtype)
    return rewritten.movedim(1, -1) if last else rewritten


def normalise_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (x − mean) / deviation, mean and deviation of every row and channel of x (N, C, …).

    By the group-norm kernel with one group a channel: it centres before it squares, so that nothing cancels, and it is
    many times faster on the CPU than torch.var_mean.
    """
    count, channels = x.shape[:2]
    area = x[0, 0].numel()
    if area == 1:
        return torch.zeros_like(x), x.reshape(count, channels), torch.zeros_like(x).reshape(count, channels)
    laid_out = x.contiguous(memory_format=_memory_format(x))
    normalised, means, inverse = torch.native_group_norm(
        laid_out, None, None, count, channels, area, channels, _EPSILON
    )
    return normalised, means, inverse.reciprocal()


def apply_affine(x: torch.Tensor, factor: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
    """Return x · factor + offset, in place where autograd does not need x again."""
    if x.requires_grad or factor.requires_grad:
        return torch.addcmul(offset, x, factor)
    return x.mul_(factor).add_(offset)


def _per_row(means: torch.Tensor, variances: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, R, T, C) → (B, R, C)."""
    if means.shape[2] == 1:
        return means.squeeze(2), variances.squeeze(2)
    return pool(means, variances, axis=2, xp=TORCH.xp)


def _memory_format(x: torch.Tensor) -> torch.memory_format:
    for rank, layout in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if x.ndim == rank and x.is_contiguous(memory_format=layout) and not x.is_contiguous():
            return layout
    return torch.contiguous_format


def _full_precision(x: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Switch autocast off, where it is on: it would do the blend's products in half precision."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.autocast(x.device.type, enabled=False)
    return contextlib.nullcontext()


def _entry_point(layer: nn.Module) -> str:
    """Name the outermost module method on the stack: what the caller called instead of the model."""
    name = f"{type(layer).__name__}.forward"
    frame = sys._getframe(1)
    while frame is not None:  # type: ignore[redundant-expr]
        owner = frame.f_locals.get("self")
        code = frame.f_code
        if isinstance(owner, nn.Module) and not code.co_filename.endswith("torch/nn/modules/module.py"):
            name = f"{type(owner).__name__}.{code.co_name}"
        frame = frame.f_back  # type: ignore[assignment]
    return name
