"""The published methods that we compare with: TENT, MEMO, MixNorm, TTT.

Every one starts from the source's weights and statistics for every image. Frameworks are imported when a method is
prepared, or when its class is asked for: `from sita_workbench.baselines import Tent` imports PyTorch.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sita_adapters.errors import ModelError

if TYPE_CHECKING:
    from ..models.loaded import LoadedModel
    from .torch_mixnorm import MixNorm
    from .torch_training import Memo, Tent
    from .torch_ttt import TTT

__all__ = ["BASELINES", "TTT", "Baseline", "Memo", "MixNorm", "Tent"]

_TORCH = {"Memo": "torch_training", "MixNorm": "torch_mixnorm", "TTT": "torch_ttt", "Tent": "torch_training"}


@dataclass(frozen=True)
class Baseline:
    """A method by its name in `sita bench`.

    - `cost`: roughly what an image costs, in rows, to estimate the remaining time.
    - `torch`, `keras`: the class for a framework, "module:Class"; None if there is none. Its class method
      `of(loaded)` returns an object that is called like the model, and returns the scores alone.
    """

    name: str
    cost: int
    torch: str | None = None
    keras: str | None = None

    def prepare(self, loaded: LoadedModel) -> Any:
        """Return what runs in place of the model."""
        framework = loaded.framework.partition(" ")[0].lower()
        where = self.torch if framework == "torch" else self.keras if framework == "keras" else None
        if where is None:
            raise ModelError(f"{self.name} does not run {loaded.framework} models. Try: leave it out.")
        module, _, kind = where.partition(":")
        return getattr(importlib.import_module(f".{module}", __name__), kind).of(loaded)


BASELINES = {
    each.name: each
    for each in (
        Baseline("tent", 18, torch="torch_training:Tent", keras="keras_training:Tent"),
        Baseline("memo", 100, torch="torch_training:Memo", keras="keras_training:Memo"),
        Baseline("mixnorm", 3, torch="torch_mixnorm:MixNorm", keras="keras_training:MixNorm"),
        Baseline("ttt", 1000, torch="torch_ttt:TTT", keras="keras_ttt:TTT"),
    )
}
"""The baselines by their names in `sita bench`."""


def __getattr__(name: str) -> Any:
    """Return PyTorch's class of this name."""
    if name not in _TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_TORCH[name]}", __name__), name)
