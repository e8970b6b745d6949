"""What an adapted clone refuses, because it would write through to the source model or go around the adaptation."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import nn

from sita_adapters.errors import CloneError, InputError, SharedWeightsError

from .inspection import walk

_WRITERS = ("apply", "init_weights", "merge_and_unload", "merge_adapter", "unmerge_adapter", "unload", "quantize")
"""Methods, PyTorch's and well-known libraries', that write to a model's weights or give its parts away."""


def guard(model: nn.Module) -> None:
    """Make a clone refuse training, loaded weights and replication."""
    vars(model).update(
        train=functools.partial(_train, model),
        requires_grad_=functools.partial(_requires_grad, model),
        _replicate_for_data_parallel=functools.partial(_refuse_replication, model),
    )
    for name in _WRITERS:
        if hasattr(type(model), name):
            vars(model)[name] = functools.partial(_refuse_writing, name)
    for module in _loadable(model):
        module._register_load_state_dict_pre_hook(_refuse_load)  # type: ignore[no-untyped-call]


def unguard(model: nn.Module) -> None:
    """Take the guards off a clone again."""
    for name in ("train", "requires_grad_", "_replicate_for_data_parallel", *_WRITERS):
        vars(model).pop(name, None)
    for module in _loadable(model):
        hooks = module._load_state_dict_pre_hooks
        for key in [key for key, hook in hooks.items() if getattr(hook, "hook", hook) is _refuse_load]:
            del hooks[key]


def _loadable(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that take weights: those that are scripted here have none, and take no hook."""
    modules = (item for _, item in walk(model) if isinstance(item, nn.Module))
    return (module for module in modules if not isinstance(module, torch.jit.ScriptModule))


def refuse_transforms(model: nn.Module) -> None:
    """Raise inside torch.func's transforms, whose tensors have no values to take statistics of."""
    if not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
        raise InputError(
            f"An adapted {type(model).__name__} was called inside torch.func (vmap, jvp, grad), which cannot follow it. "
            "Expected a plain call. Remedy: give vmap's images as one batch; take gradients with torch.autograd."
        )


def refuse_training(name: str, layer: nn.Module, *_: Any) -> None:
    """Forward-pre-hook of a BatchNorm layer, and a check: in training mode it would change the source's statistics."""
    if layer.training:
        raise SharedWeightsError(
            f"The layer {name!r} of an adapted model is in training mode and would overwrite the statistics that it "
            "shares with the source model. Expected eval mode. Remedy: adapted.eval(); train the source model."
        )


def refuse_source_in_training(model: nn.Module, name: str) -> None:
    """Raise where a plain model is to be run beside an adapted one, and is in training mode."""
    if any(isinstance(item, nn.Module) and item.training for _, item in walk(model)):
        raise InputError(
            f"{name!r} is in training mode, in which a call would mix its images and change its statistics. "
            "Remedy: model.eval()."
        )


def _train(model: nn.Module, mode: bool = True) -> nn.Module:
    """`train` of an adapted model: eval() passes, training does not."""
    if mode:
        raise SharedWeightsError(
            "An adapted model shares its weights and statistics with the source model, which training would change. "
            "Remedy: train the source model (in-place updates are seen here), or sita.unwrap(adapted)."
        )
    type(model).train(model, mode)  # which may return nothing
    return model


def _requires_grad(model: nn.Module, requires_grad: bool = True) -> nn.Module:
    """`requires_grad_` of an adapted model: its weights are the source's to train."""
    if requires_grad:
        raise SharedWeightsError(
            "The weights of an adapted model are the source model's, and take no gradients here. (Gradients to the "
            "images flow as ever.) Remedy: train the source model, or sita.unwrap(adapted)."
        )
    return model


def _refuse_writing(name: str, *_: Any, **__: Any) -> NoReturn:
    """Stands for a method that changes weights in place."""
    raise SharedWeightsError(
        f"{name}() would change the weights that an adapted model shares with the source model. "
        f"Remedy: call it on the source model, and adapt that; or on sita.unwrap(adapted)."
    )


def _refuse_load(*_: Any) -> NoReturn:
    """Pre-hook of `load_state_dict` on every module, so that it holds for a part and for a model around it, too."""
    raise SharedWeightsError(
        "Loading weights into an adapted model would overwrite the source model's, which it shares. "
        "Remedy: load them into the source model (the adapted one sees them), or into a model of their own."
    )


def _refuse_replication(model: nn.Module) -> NoReturn:
    raise CloneError(
        f"An adapted {type(model).__name__} cannot be replicated by DataParallel: replicas would run the layers of the "
        "original. Remedy: one adapted model per device (sita.adapt(model).to(device)), or one process per device."
    )
