"""Modules, run on numpy arrays."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch

from sita_adapters.errors import InputError
from sita_adapters.outputs import find_scores, flatten

from .answers import is_tensor, to_numpy


class TorchRunner:
    """Runs modules as they are, without gradients."""

    label, class_axis = "torch", 1

    def arrange(self, name: str, model: Any, images: np.ndarray) -> np.ndarray:
        """Return the images with their channels first."""
        if any(module.training for module in model.modules()):
            raise InputError(
                f"{name!r} is in training mode, in which a call would mix its images and change its statistics. "
                "Remedy: model.eval()."
            )
        first = next((module for module in model.modules() if hasattr(module, "in_channels")), None)
        channels = getattr(first, "in_channels", None)
        if channels == images.shape[1] != images.shape[-1]:
            raise InputError(
                f"images: expected channels last, (N, h, w, {channels}) for {name!r}; received shape {images.shape}, "
                "which looks like channels first. Remedy: images.transpose(0, 2, 3, 1); torch models get their own "
                "order from here."
            )
        return np.moveaxis(images, -1, 1)

    def run(self, model: Any, batch: np.ndarray) -> np.ndarray:
        """Return the scores, in double precision."""
        tensor = torch.from_numpy(np.array(batch, order="C"))
        like = next(itertools.chain(model.parameters(), model.buffers()), tensor)
        floating = like.is_floating_point() and tensor.is_floating_point()
        with torch.no_grad():
            output = model(tensor.to(like.device, like.dtype if floating else tensor.dtype))
        place = find_scores(output, None, is_tensor, lambda array: array.ndim > 1 and array.shape[0] == len(batch))
        return to_numpy(flatten(output, is_tensor)[place][1])
