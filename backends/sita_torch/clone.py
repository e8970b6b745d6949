"""A copy of a module tree whose parameters and buffers are new tensors on the source's memory, and its guards.

In-place changes of the source are visible in the clone; tensors or layers that the source *replaces* are not.
"""

from __future__ import annotations

import copy
import warnings
from functools import partial
from typing import Any, Literal, NoReturn

import torch
from torch import nn

from sita_adapters.errors import ModelError, SharedWeightsError, SitaWarning

from .inspection import named_modules, named_tensors


def clone(model: nn.Module, *, keep: object = None, own: Literal["nothing", "buffers", "all"] = "nothing") -> nn.Module:
    """Return a copy of the module tree with tensors that share the model's memory, or `own` theirs.

    `keep` stays the same object in the copy.
    """
    memo: dict[int, Any] = {id(keep): keep}
    with torch.inference_mode(False), torch.no_grad():
        for module in nn.Module.modules(model):
            # Some models keep their statistics as parameters that are not trained.
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None and id(tensor) not in memo:
                    is_buffer = name in module._buffers or name.startswith("running_")
                    memo[id(tensor)] = _new_tensor(tensor, own == "all" or (own == "buffers" and is_buffer))
            for value in vars(module).values():
                if isinstance(value, torch.Tensor) and not value.is_leaf:  # a cached feature, which deepcopy refuses
                    memo[id(value)] = value.detach().clone()
        try:
            made = copy.deepcopy(model, memo)
        except Exception as error:
            raise ModelError(
                f"{type(model).__name__} cannot be copied by copy.deepcopy: {error}. Try: remove what cannot be copied "
                "from the model while you adapt it, or give it a __deepcopy__."
            ) from error
    if shared := {*map(id, nn.Module.modules(model))} & {*map(id, nn.Module.modules(made))} - {id(keep)}:
        kinds = {type(module).__name__ for module in nn.Module.modules(model) if id(module) in shared}
        raise ModelError(
            f"{', '.join(sorted(kinds))} of {type(model).__name__} stays the same object in a copy of the model, which "
            "could change the source. Try: remove its __deepcopy__."
        )
    for module, new in zip(nn.Module.modules(model), nn.Module.modules(made), strict=False):
        new.training = module.training  # graph modules lose it when they are copied
    return made


def _new_tensor(tensor: torch.Tensor, copied: bool) -> torch.Tensor:
    """Return a new tensor of the same class on the same memory, or on its own; it never requires gradients."""
    data = tensor.detach().clone(memory_format=torch.preserve_format) if copied else tensor.detach()
    new = data
    if type(tensor) is nn.Parameter:
        new = nn.Parameter(data, False)
    elif isinstance(tensor, nn.Parameter):
        new = torch.Tensor._make_subclass(type(tensor), data, False)
    vars(new).update(vars(tensor))
    return new


def apply_to_all(model: nn.Module, function: Any, *recurse: bool) -> nn.Module:
    """Replace `_apply`, which implements `.to`, `.half` and `.cuda`: either all tensors get new memory or none do.

    `.to(memory_format=torch.channels_last)` replaces four-dimensional weights only; later changes of the source would
    reach the others.
    """
    before = {name: tensor.data_ptr() for name, tensor in named_tensors(model)}
    type(model)._apply(model, function, *recurse)  # type: ignore[no-untyped-call]  # a class may have its own
    after = {name: tensor.data_ptr() for name, tensor in named_tensors(model)}
    for name, tensor in named_tensors(model) if before != after else ():
        if before.get(name) == after[name]:
            tensor.data = tensor.data.clone()
    return model


_SHARED = "An adapted model shares its weights and statistics with the source model, which this would change. "
_REFUSED = {
    "_replicate_for_data_parallel": "An adapted model cannot be replicated by DataParallel: replicas would run the "
    "layers of the original. Try: one adapted model per device (sita.adapt(model).to(device)), or one process per "
    "device.",
    "__prepare_scriptable__": "An adapted model cannot be scripted by torch.jit. Try: sita.export(adapted, "
    "'model.onnx' or 'model.pt2', example=images).",
}
"""Methods, most of them private, through which PyTorch would bypass the adaptation."""
_TRAINING = ("train", "requires_grad_")
_FUSE = "fuse"
"""The method with which ultralytics' models, and others, fuse their BatchNorm layers into convolutions."""


def guard(model: nn.Module) -> None:
    """Make a clone refuse training, loaded weights and replication, and share all of its memory or none."""
    vars(model)["_apply"] = partial(apply_to_all, model)
    vars(model).update({name: partial(_accept_false, model, name) for name in _TRAINING})
    vars(model).update({name: partial(_refuse, name) for name in _REFUSED})
    if callable(getattr(model, _FUSE, None)):
        vars(model)[_FUSE] = partial(_stay_unfused, model)
    for _, module in named_modules(model):
        if not isinstance(module, torch.jit.ScriptModule):  # scripted ones have no weights, and take no hook
            module._register_load_state_dict_pre_hook(_refuse_load)  # type: ignore[no-untyped-call]


def unguard(model: nn.Module) -> None:
    """Remove the guards of a clone."""
    for name in ("_apply", *_TRAINING, *_REFUSED, _FUSE):
        vars(model).pop(name, None)
    for _, module in named_modules(model):
        hooks = module._load_state_dict_pre_hooks
        for key in [key for key, hook in hooks.items() if getattr(hook, "hook", hook) is _refuse_load]:
            del hooks[key]


def _accept_false(model: nn.Module, name: str, *args: bool, **kwargs: bool) -> nn.Module:
    """`train` and `requires_grad_` of an adapted model accept only False, which is what eval() passes."""
    values = [*args, *kwargs.values()]
    if not values or values[0]:  # True is the default of both
        raise SharedWeightsError(f"{_SHARED}Try: train the source model: in-place updates are visible here.")
    getattr(type(model), name)(model, False)  # which may return nothing
    return model


def _stay_unfused(model: nn.Module, *_: Any, **__: Any) -> nn.Module:
    """`fuse` of an adapted model: a pipeline that calls it continues with the adapted model."""
    warnings.warn(
        f"fuse() of an adapted {type(model).__name__} changed nothing: fused layers cannot be adapted.",
        SitaWarning,
        stacklevel=2,
    )
    return model


def _refuse_load(*_: Any) -> NoReturn:
    """Pre-hook of `load_state_dict` on every module: it also applies to submodules and to a model around it."""
    raise SharedWeightsError(f"{_SHARED}Try: load the weights into the source model (the adapted one sees them).")


def _refuse(name: str, *_: Any) -> NoReturn:
    raise ModelError(_REFUSED[name])
