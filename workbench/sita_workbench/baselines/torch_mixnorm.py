"""MixNorm for PyTorch: statistics from an image and crops of it, mixed with the source's. Nothing is trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from sita_adapters.errors import ModelError
from sita_adapters.inputs import Inputs

from .settings import MixNormSettings, mixnorm_settings
from .torch_training import BlendedStatistics, TorchBaseline, batchnorms, decode_one, encode_views
from .views import spatial_views

if TYPE_CHECKING:
    from ..models.loaded import LoadedModel


class MixNorm(TorchBaseline):
    """MixNorm (Hu et al. 2021) for single images.

        local  = mean and variance of the image and its views together, per channel
        global = (1 − τ) · source + τ · local
        used   = m · local + (1 − m) · global

    The image and its views run as one batch and are normalized alike; the answer is the image's. The paper updates the
    global statistics over the test set; here they start from the source's for every image, as everything does. How
    local variances are pooled is not described: we take the variance of all values, as a BatchNorm in training does
    (biased).
    """

    def __init__(
        self, model: nn.Module, inputs: Inputs, *, settings: MixNormSettings | None = None, seed: int = 0
    ) -> None:
        super().__init__(model)
        self.inputs, self.settings, self.seed = inputs, settings, seed
        self.layers = [BlendedStatistics(layer, correction=0) for layer in batchnorms(self.body)]
        if not self.layers:
            raise ModelError(f"mixnorm expects BatchNorm layers; {type(model).__name__} has none. Try: memo.")

    @classmethod
    def of(cls, loaded: LoadedModel) -> MixNorm:
        """Return MixNorm for a model of `sita bench`."""
        return cls(loaded.model, loaded.require_inputs())

    def answer(self, image: torch.Tensor) -> torch.Tensor:
        """Return the scores (1, …) of one image (1, C, H, W)."""
        settings = self.settings or mixnorm_settings((image.shape[2], image.shape[3]))
        pixels = decode_one(image, self.inputs)
        views = spatial_views(pixels, settings.views, self.seed, settings.scale, settings.ratio)
        for layer in self.layers:
            layer.share = settings.m + (1 - settings.m) * settings.tau  # the two equations in one
        with torch.no_grad():
            return self.scores(torch.cat([image, encode_views(views, self.inputs, image)]))[:1]
