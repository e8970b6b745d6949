"""What ties a clone to its source: weights are shared, everything else is copied, and must not become stale."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from sita_adapters.errors import SharedWeightsError

from .inspection import batchnorm_tensors, registered, walk


@dataclass
class _Registered:
    """The tensors of one module of the source, as they were, and those of the clone that stand for them."""

    module: weakref.ref[nn.Module]
    path: str
    tensors: dict[str, torch.Tensor]
    places: dict[str, int]
    """Where each parameter's memory is: `parameter.data = …` changes that, and nothing else."""


@dataclass
class _Copied:
    source: torch.Tensor
    own: torch.Tensor
    version: int


@dataclass
class _Attribute:
    """A tensor that a module has as a plain attribute, which the source may put another in the place of."""

    module: weakref.ref[nn.Module]
    own: weakref.ref[nn.Module]
    name: str
    copied: _Copied

    def follow(self) -> None:
        """Copy what the source has there now."""
        module, own = self.module(), self.own()
        if module is None or own is None or vars(module).get(self.name) is self.copied.source:
            return
        now = vars(module).get(self.name)
        vars(own)[self.name] = copied = now.detach().clone() if isinstance(now, torch.Tensor) else now
        if isinstance(now, torch.Tensor) and isinstance(copied, torch.Tensor):
            self.copied.source, self.copied.own, self.copied.version = now, copied, now._version


class Link:
    """Keeps a clone's copies in step with the source; raises where weights were replaced, which cannot be followed.

    It ends when the clone moves to memory of its own (`adapted.half()`), is copied or is loaded: then nothing is
    shared. The source is held by weak references alone.
    """

    def __init__(self, source: nn.Module | None = None, cloned: nn.Module | None = None) -> None:
        self.modules: list[_Registered] = []
        self.copied: list[_Copied] = []
        self.attributes: list[_Attribute] = []
        self.shared: tuple[torch.Tensor, torch.Tensor] | None = None
        if source is None or cloned is None:
            return
        shared = batchnorm_tensors(source)
        own = dict(walk(cloned))
        for path, item in walk(source):
            if isinstance(item, nn.Module):
                tensors = {
                    name.rpartition(".")[2]: tensor
                    for name, tensor in registered(item, path)
                    if isinstance(tensor, torch.Tensor)
                }
                places = {name: _place(tensor) for name, tensor in tensors.items() if isinstance(tensor, nn.Parameter)}
                if tensors:
                    self.modules.append(_Registered(weakref.ref(item), path, tensors, places))
            elif isinstance(item, nn.Parameter) or id(item) in shared:
                self.shared = self.shared or (item, own[path])
            else:
                self.copied.append(_Copied(item, own[path], item._version))
        copies = {id(copied.source): copied for copied in self.copied}
        for path, item in walk(source):
            if isinstance(item, nn.Module):
                held = ((name, copies.get(id(value))) for name, value in vars(item).items())
                modules = weakref.ref(item), weakref.ref(own[path])
                self.attributes += [_Attribute(*modules, name, copied) for name, copied in held if copied]

    def __deepcopy__(self, memo: Any) -> Link:
        return Link()

    def __reduce__(self) -> Any:
        return Link, ()

    def refresh(self) -> None:
        """Take over what changed in the source since the last call; raise where that is impossible."""
        if self.shared is None:
            return
        theirs, ours = self.shared
        if _place(theirs) != _place(ours) and not self._source_moved():
            self.modules, self.copied, self.attributes, self.shared = [], [], [], None
            return
        for each in self.modules:
            module = each.module()
            if module is not None:
                _check(each, module)
        for attribute in self.attributes:
            attribute.follow()
        for copied in self.copied:
            if copied.source._version != copied.version:
                copied.version = copied.source._version
                with torch.no_grad():
                    copied.own.copy_(copied.source)

    def copy_all(self) -> None:
        """Take over all copies: what a compiled model does at every call, since it cannot look whether they changed."""
        with torch.no_grad():
            for copied in self.copied:
                copied.own.copy_(copied.source)

    def _source_moved(self) -> bool:
        return any(place != _place(each.tensors[name]) for each in self.modules for name, place in each.places.items())


def _check(each: _Registered, module: nn.Module) -> None:
    parameters, buffers = module._parameters, module._buffers
    for name, tensor in each.tensors.items():
        now = parameters.get(name) if name in parameters else buffers.get(name)
        if now is tensor and (name not in each.places or each.places[name] == _place(tensor)):
            continue
        if now is None or not _same_values(now, tensor if now is not tensor else None):
            raise SharedWeightsError(
                f"{f'{each.path}.{name}'.lstrip('.')!r} of the source model was replaced since it was adapted "
                "(load_state_dict(assign=True), `.data = …`, .half(), another layer), so that the adapted model would "
                "answer with old weights. Expected changes in place, which it sees. Remedy: sita.adapt(model) again."
            )
        each.tensors[name] = now


def _same_values(now: torch.Tensor, before: torch.Tensor | None) -> bool:
    return before is not None and now.shape == before.shape and torch.equal(now.to(before), before)


def _place(tensor: torch.Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # a tensor without memory of its own, such as a subclass that wraps others
        return id(tensor)
