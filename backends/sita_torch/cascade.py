"""The source model first; the adapted one for the images that it is unsure of."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sita_adapters.cascade import Tally
from sita_adapters.errors import InputError, OutputError, SharedWeightsError
from sita_adapters.outputs import Selector, find_scores, flatten, rebuild
from sita_adapters.voting import Scores, entropy

from .answers import is_tensor
from .arguments import Arguments
from .arrays import TORCH


class Cascade(nn.Module):
    """Called as the model. Which images go on to the adapted one is read from values, so that it runs uncompiled."""

    def __init__(
        self, model: nn.Module, adapted: nn.Module, threshold: float, scores: Scores, output: Selector = None
    ) -> None:
        super().__init__()
        self.model, self.adapted = model, adapted
        self.threshold, self.scores, self.output = threshold, scores, output
        self.tally = Tally()
        self.training = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's output, in which unsure images have the adapted model's answer."""
        if any(module.training for module in self.model.modules()):
            raise InputError(
                f"{type(self.model).__name__} is in training mode, in which a call would mix its images and change "
                "its statistics. Remedy: model.eval()."
            )
        arguments = Arguments(args, kwargs)
        count = arguments.image.shape[0]
        output = self.model(*args, **kwargs)
        place, arrays = self._scores(output, count)
        unsure = (self._entropies(arrays[place]) > self.threshold).nonzero().flatten()
        self.tally.add(count, unsure.numel())
        if unsure.numel() == 0:
            return output

        def select(companion: torch.Tensor) -> torch.Tensor:
            return companion[unsure.to(companion.device)]

        args, kwargs = arguments.with_image(select(arguments.image), select)
        adapted = [array for _, array in flatten(self.adapted(*args, **kwargs), is_tensor)]
        merged = [
            array.index_copy(0, unsure.to(array.device), new.to(array.dtype))
            if _has_size(array, count) and _has_size(new, unsure.numel())
            else array
            for array, new in zip(arrays, adapted, strict=True)
        ]
        return rebuild(output, iter(merged), is_tensor)

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
        return f"entropy > {self.threshold:g} nats; {self.tally}"

    def _scores(self, output: Any, count: int) -> tuple[int, list[torch.Tensor]]:
        def eligible(array: torch.Tensor) -> bool:
            classes = self.scores.startswith("sigmoid") or (array.ndim > 1 and array.shape[1] > 1)
            return _has_size(array, count) and classes and array.is_floating_point()

        place = find_scores(output, self.output, is_tensor, eligible)
        arrays = [array for _, array in flatten(output, is_tensor)]
        if not eligible(arrays[place]):
            raise OutputError(
                f"Expected scores (N, classes, …) of two classes or more for each of {count} images; received shape "
                f"{tuple(arrays[place].shape)}. Remedy: say where they are, with adapt(…, output=…), or that each "
                "label is true or not by itself, with adapt(…, scores='sigmoid')."
            )
        return place, arrays

    def _entropies(self, scores: torch.Tensor) -> torch.Tensor:
        """Return each image's entropy, the mean over its pixels or labels."""
        precise = scores if scores.dtype == torch.float64 else scores.float()
        found = entropy(precise, scores=self.scores, class_axis=1 - scores.ndim, xp=TORCH.xp)
        return found.reshape(scores.shape[0], -1).mean(1)  # type: ignore[no-any-return]


def _has_size(array: torch.Tensor, size: int) -> bool:
    return array.ndim > 0 and array.shape[0] == size
