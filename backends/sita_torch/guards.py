"""What an adapted clone refuses: it would write to the source model's weights, or bypass the adaptation."""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import torch
from torch import nn

from sita_adapters.errors import InputError, ModelError, SharedWeightsError

from .clone import apply_to_all
from .inspection import named_modules

_GUARDED = ("train", "requires_grad_", "_apply", "_replicate_for_data_parallel", "__prepare_scriptable__")


def guard(model: nn.Module) -> None:
    """Make a clone refuse training, loaded weights and replication, and keep its memory whole."""
    vars(model).update(
        train=functools.partial(_train, model),
        requires_grad_=functools.partial(_requires_grad, model),
        _apply=functools.partial(apply_to_all, model),
        _replicate_for_data_parallel=functools.partial(_refuse_replication, model),
        __prepare_scriptable__=functools.partial(_refuse_script, model),
    )
    for module in _loadable(model):
        module._register_load_state_dict_pre_hook(_refuse_load)  # type: ignore[no-untyped-call]


def unguard(model: nn.Module) -> None:
    """Remove the guards of a clone."""
    for name in _GUARDED:
        vars(model).pop(name, None)
    for module in _loadable(model):
        hooks = module._load_state_dict_pre_hooks
        for key in [key for key, hook in hooks.items() if getattr(hook, "hook", hook) is _refuse_load]:
            del hooks[key]


def _loadable(model: nn.Module) -> list[nn.Module]:
    """Return the modules that hold weights. Scripted ones (without weights: others are refused) take no hook."""
    return [module for _, module in named_modules(model) if not isinstance(module, torch.jit.ScriptModule)]


def refuse_transforms(model: nn.Module) -> None:
    """Raise inside torch.func's transforms, whose tensors have no values to measure."""
    if not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
        raise InputError(
            f"An adapted {type(model).__name__} was called inside torch.func (vmap, jvp), which cannot trace it. "
            "Try: give vmap's images as one batch; compute gradients with torch.autograd."
        )


def _train(model: nn.Module, mode: bool = True) -> nn.Module:
    """`train` of an adapted model: eval() passes, training does not."""
    if mode:
        raise SharedWeightsError(
            "An adapted model shares its weights and statistics with the source model, which training would change. "
            "Try: train the source model (in-place updates are visible here), or sita.unwrap(adapted)."
        )
    type(model).train(model, mode)  # which may return nothing
    return model


def _requires_grad(model: nn.Module, requires_grad: bool = True) -> nn.Module:
    """`requires_grad_` of an adapted model: the source trains its weights."""
    if requires_grad:
        raise SharedWeightsError(
            "The weights of an adapted model are the source model's, and need no gradients here. (Gradients of the "
            "images work.) Try: train the source model, or sita.unwrap(adapted)."
        )
    return model


def _refuse_load(*_: Any) -> NoReturn:
    """Pre-hook of `load_state_dict` on every module: it also holds for a part, and for a model around it."""
    raise SharedWeightsError(
        "Loading weights into an adapted model would overwrite the source model's, which it shares. "
        "Try: load them into the source model (the adapted one sees them), or into another model."
    )


def _refuse_replication(model: nn.Module) -> NoReturn:
    raise ModelError(
        f"An adapted {type(model).__name__} cannot be replicated by DataParallel: replicas would run the layers of the "
        "original. Try: one adapted model per device (sita.adapt(model).to(device)), or one process per device."
    )


def _refuse_script(model: nn.Module) -> NoReturn:
    raise ModelError(
        f"An adapted {type(model).__name__} cannot be scripted by torch.jit. Try: sita.export(adapted, 'model.onnx' or "
        "'model.pt2', example=images)."
    )
