"""A small PyTorch network, images for it, and a model around it that does what a test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn


def rand_stats(model: nn.Module) -> nn.Module:
    """Give every layer with running statistics some that are not 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(getattr(module, "running_mean", None), torch.Tensor):
            module.running_mean.normal_(0, 0.3, generator=generator)
            module.running_var.uniform_(0.3, 1.8, generator=generator)
            if isinstance(getattr(module, "weight", None), nn.Parameter):
                module.weight.data.uniform_(0.5, 1.5, generator=generator)
                module.bias.data.normal_(0, 0.3, generator=generator)
    return model.eval()


def net(first: type[nn.Module] = nn.BatchNorm2d) -> nn.Sequential:
    """Conv–BatchNorm–ReLU twice, pool, linear; the first BatchNorm is of a class."""
    torch.manual_seed(0)
    return rand_stats(
        nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1, bias=False), first(8), nn.ReLU()),
            *(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)),
        )
    )


def batch(count: int = 4, size: tuple[int, int] = (32, 32)) -> torch.Tensor:
    """Images of different contrast."""
    images = torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(1))
    return images * torch.linspace(0.4, 2.0, count).view(-1, 1, 1, 1) + 0.2


class Around(nn.Module):
    """The network, and what a test does with it."""

    def __init__(self, forward: Callable[..., Any] = lambda self, x: self.net(x), **attributes: Any) -> None:
        super().__init__()
        self.net = net()
        self.run = forward
        for name, value in attributes.items():
            self.register_buffer(name, value) if isinstance(value, torch.Tensor) else setattr(self, name, value)
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def advised_layers(error: pytest.ExceptionInfo[Any]) -> Any:
    """Return the argument layers= that an error advises, evaluated."""
    return eval(str(error.value).partition("Try: ")[2].partition("layers=")[2].rstrip("."))


def count_forwards(layer: nn.Module) -> list[int]:
    """Note the number of images of every run of a layer from now on."""
    runs: list[int] = []
    layer.register_forward_hook(lambda _, args, __: runs.append(len(args[0])))
    return runs
