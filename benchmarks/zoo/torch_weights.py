"""Seeded weights and plausible BatchNorm statistics for a model that was never trained."""

from __future__ import annotations

import torch
from torch import nn

from .torch_layers import Found, Statistics, changed, find, moments, statistics_of


def images_of(count: int, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Return seeded images: coarse blobs and fine noise, so features vary within and between images."""
    random = torch.Generator().manual_seed(seed)
    *leading, height, width = shape
    coarse = torch.randn(count, *leading, -(-height // 8), -(-width // 8), generator=random)
    blobs = coarse.repeat_interleave(8, -2).repeat_interleave(8, -1)[..., :height, :width]
    images = blobs + 0.5 * torch.randn(count, *shape, generator=random)
    contrast = 0.5 + torch.rand(count, *[1] * len(shape), generator=random)
    return contrast * images + 0.5 * torch.randn(count, *[1] * len(shape), generator=random)


@torch.no_grad()
def prepare(model: nn.Module, images: torch.Tensor) -> Found:
    """Give an untrained model the weights and statistics of one that might have been trained; return its BatchNorms.

    Scales that start at 0 or at 1e-6 would hide what a layer does, and γ = 1, β = 0 what the order of steps is.
    """
    model.eval()
    random = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.is_floating_point() and parameter.numel() and bool((parameter == parameter.flatten()[0]).all()):
            noise = torch.randn(parameter.shape, generator=random)
            parameter.copy_(1 + 0.2 * noise if parameter.any() else 0.1 * noise)
    found = find(model, images[:2])
    for module in model.modules():
        if statistics_of(module) is not None:
            _vary_affine(module, random)

    def warm(x: torch.Tensor, statistics: Statistics) -> Statistics:
        """Store statistics near those of these images in the layer, and normalize with them."""
        mean, variance = moments(x, statistics[0].numel())
        variance = variance + 0.1 * variance.mean() + 1e-6  # no channel of a trained model is quite dead
        draws = torch.randn(2, mean.numel(), generator=random)
        statistics[0].data.copy_((mean + 0.2 * variance.sqrt() * draws[0]).reshape(statistics[0].shape))
        statistics[1].data.copy_((variance * torch.exp(0.2 * draws[1])).reshape(statistics[1].shape))
        return statistics

    with changed(model, found.by_itself, warm):
        model(images)
    return found


def _vary_affine(module: nn.Module, random: torch.Generator) -> None:
    """Draw γ near 1, of both signs of change, and β near 0."""
    own = {**module._parameters, **module._buffers}
    for name, center in (("weight", 0.5), ("bias", 0.0)):
        tensor = own.get(name)
        if tensor is not None:
            tensor.copy_(center + 0.1 * torch.randn(tensor.shape, generator=random))
