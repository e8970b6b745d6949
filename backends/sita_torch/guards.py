"""What an adapted clone refuses, because it would write through to the source model or go around the adaptation."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import nn

from sita_adapters.errors import CloneError, InputError, SharedWeightsError


def guard(model: nn.Module) -> None:
    """Make a clone refuse training, loaded weights and replication."""
    vars(model).update(
        train=functools.partial(_train, model),
        _replicate_for_data_parallel=functools.partial(_refuse_replication, model),
    )
    for module in _loadable(model):
        module._register_load_state_dict_pre_hook(_refuse_load)  # type: ignore[no-untyped-call]


def unguard(model: nn.Module) -> None:
    """Take the guards off a clone again."""
    for name in ("train", "_replicate_for_data_parallel"):
        vars(model).pop(name, None)
    for module in _loadable(model):
        hooks = module._load_state_dict_pre_hooks
        for key in [key for key, hook in hooks.items() if getattr(hook, "hook", hook) is _refuse_load]:
            del hooks[key]


def _loadable(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that take weights: those that are scripted here have none, and take no hook."""
    return (module for module in model.modules() if not isinstance(module, torch.jit.ScriptModule))


def refuse_training(name: str, layer: nn.Module, *_: Any) -> None:
    """Forward-pre-hook of a BatchNorm layer, and a check: in training mode it would change the source's statistics."""
    if layer.training:
        raise SharedWeightsError(
            f"The layer {name!r} of an adapted model is in training mode and would overwrite the statistics that it "
            "shares with the source model. Expected eval mode. Remedy: adapted.eval(); train the source model."
        )


def refuse_source_in_training(model: nn.Module, name: str) -> None:
    """Raise where a plain model is to be run beside an adapted one, and is in training mode."""
    if any(module.training for module in model.modules()):
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
    return type(model).train(model, mode)


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
