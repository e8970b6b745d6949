"""The source model first; the adapted one for the images that it is unsure of."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sita_adapters.cascade import CascadeRule, Tally
from sita_adapters.errors import SharedWeightsError

from .arguments import Arguments
from .guards import refuse_source_in_training
from .ops import TORCH


class Cascade(nn.Module):
    """Called as the model. Which images go on to the adapted one is read from values, so that it runs uncompiled."""

    def __init__(self, model: nn.Module, adapted: nn.Module, rule: CascadeRule) -> None:
        super().__init__()
        self.model, self.adapted, self.rule = model, adapted, rule
        self.training = False

    @property
    def tally(self) -> Tally:
        """How many images went on."""
        return self.rule.tally

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output, in which unsure images have the adapted model's answer."""
        refuse_source_in_training(self.model, type(self.model).__name__)
        arguments = Arguments(args, kwargs)

        def run_adapted(batch: list[torch.Tensor]) -> Any:
            some_args, some_kwargs = arguments.fill(batch)
            return self.adapted(*some_args, **some_kwargs)

        return self.rule.apply(self.model(*args, **kwargs), arguments.batch, run_adapted, TORCH)

    def __getattr__(self, name: str) -> Any:
        """Look up at the model what a pipeline asks it for (its config, its dtype)."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            model = super().__getattr__("model")
        found = getattr(model, name)
        if getattr(found, "__self__", None) is model:
            raise AttributeError(
                f"{name} of {type(model).__name__} would run the source model alone, around the cascade. Remedy: call "
                f"the cascade itself, or cascade.model.{name}."
            )
        return found

    def train(self, mode: bool = True) -> Cascade:
        """Refuse training: the adapted model shares its weights with the source."""
        if mode:
            raise SharedWeightsError(
                "A cascade is for inference: it runs an adapted model. Remedy: train the source model (its new weights "
                "are seen here)."
            )
        return super().train(False)

    def extra_repr(self) -> str:
        """Say the threshold, and how many images went on."""
        return str(self.rule)
