"""PyTorch, as the contract's tests handle it: images and answers are numpy arrays with their channels last."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nets
import numpy as np
import torch
from small_network import CLASSES, CONVOLUTIONS, EPSILONS, WIDTHS, Weights, make_weights
from torch import nn


class Network(nn.Module):
    """The small network. `output` says what it puts out."""

    def __init__(self, output: str, activation: str | None, classes: int, dense: bool) -> None:
        super().__init__()
        for name, (height, width, inside, outside) in CONVOLUTIONS.items():
            padding = (height // 2, width // 2)
            self.add_module(name, nn.Conv2d(inside, outside, (height, width), padding=padding, bias=False))
        for name, width in WIDTHS.items():
            self.add_module(name, nn.BatchNorm2d(width, eps=EPSILONS[name]))
        self.head = nn.Linear(WIDTHS["bn3"], classes)
        self.output, self.activation, self.dense = output, activation, dense

    def forward(self, x: torch.Tensor) -> Any:
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(x)) + x)
        features = torch.relu(self.bn3(self.conv3(x)))
        pooled = features.permute(0, 2, 3, 1) if self.dense else features.mean((2, 3))
        scores = self.head(pooled)
        if self.activation is not None:
            scores = scores.softmax(-1) if self.activation == "softmax" else scores.sigmoid()
        if self.dense:
            scores = scores.permute(0, 3, 1, 2)
        return arrange(self.output, scores, features)


def arrange(output: str, scores: torch.Tensor, features: torch.Tensor) -> Any:
    return {
        "scores": lambda: scores,
        "dict": lambda: {"logits": scores, "features": features},
        "list": lambda: [features, scores],
        "two": lambda: {"a": scores, "b": 2 * scores},
        "labels": lambda: scores.argmax(1),
        "labels and scores": lambda: {"out": scores.argmax(1), "scores": scores},
        "one number": scores.mean,
    }[output]()


class TorchFramework:
    """Builds, runs and looks into models of PyTorch."""

    name = "torch"
    files = ("model.onnx", "model.pt2")
    networks = ("resnet50", "densenet121", "inception_v3")
    sees_sizes = True  # every call has its own
    keeps_nan = True
    network_rounding = 2e-5

    def model(
        self,
        output: str = "scores",
        *,
        activation: str | None = None,
        classes: int = CLASSES,
        dense: bool = False,
        size: tuple[int, int] | None = None,  # a torch model takes any
        weights: Weights | None = None,
    ) -> nn.Module:
        model = Network(output, activation, classes, dense)
        given = make_weights(classes) if weights is None else weights
        weights = {name: torch.from_numpy(value.copy()) for name, value in given.items()}
        with torch.no_grad():
            for name in CONVOLUTIONS:
                getattr(model, name).weight.copy_(weights[f"{name}/kernel"].permute(3, 2, 0, 1))
            for name in WIDTHS:
                norm = getattr(model, name)
                norm.weight.copy_(weights[f"{name}/gamma"])
                norm.bias.copy_(weights[f"{name}/beta"])
                norm.running_mean.copy_(weights[f"{name}/mean"])
                norm.running_var.copy_(weights[f"{name}/variance"])
            model.head.weight.copy_(weights["head/kernel"].T)
            model.head.bias.copy_(weights["head/bias"])
        return model.eval()

    def network(self, name: str) -> nn.Module:
        """One of the large networks, shared by tests, which must not change it."""
        return nets.large(name)

    def without_batchnorm(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())

    def around(self, model: nn.Module) -> nn.Module:
        """A model that holds this one."""
        return nn.Sequential(model)

    def run(self, model: Any, images: np.ndarray, *, eager: bool = True) -> Any:
        with torch.no_grad():
            return self.to_numpy(model(self.to_images(images)))

    def run_in_training_mode(self, model: nn.Module, images: np.ndarray) -> Any:
        return self.run(copy.deepcopy(model).train(), images)

    def to_images(self, images: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(np.moveaxis(images, -1, 1)))

    def to_numpy(self, output: Any) -> Any:
        if isinstance(output, dict):
            return {key: self.to_numpy(value) for key, value in output.items()}
        if isinstance(output, list):
            return [self.to_numpy(value) for value in output]
        return (output.movedim(1, -1) if output.ndim == 4 else output).detach().numpy()

    def memory(self, model: nn.Module) -> list[int]:
        """Where every parameter and statistic lies."""
        return sorted(value.data_ptr() for value in model.state_dict().values())

    def values(self, model: nn.Module) -> list[np.ndarray]:
        return [value.numpy().copy() for value in model.state_dict().values()]

    def fingerprint(self, model: nn.Module) -> Any:
        """Everything that adapt must leave alone."""
        kinds = (
            *("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_forward_pre_hooks_with_kwargs"),
            "_load_state_dict_pre_hooks",
        )
        return (
            [(name, id(p), p._version, p.requires_grad, p.data_ptr()) for name, p in model.named_parameters()],
            [(name, id(b), b._version, b.data_ptr()) for name, b in model.named_buffers()],
            [(name, id(module), module.training, sorted(vars(module))) for name, module in model.named_modules()],
            [hook for module in model.modules() for kind in kinds for hook in getattr(module, kind).values()],
        )

    def change_weights(self, model: nn.Module) -> None:
        with torch.no_grad():
            for value in [*model.parameters(), model.bn1.running_mean, model.bn1.running_var]:
                value.mul_(0.8)

    def reload(self, adapted: nn.Module, folder: Path) -> nn.Module:
        torch.save(adapted, folder / "model.pt")
        return torch.load(io.BytesIO((folder / "model.pt").read_bytes()), weights_only=False)

    def writes(self, adapted: nn.Module, images: np.ndarray, folder: Path) -> dict[str, Callable[[], Any]]:
        """What would write through to the source."""
        changed = {name: value + 1 for name, value in adapted.state_dict().items()}
        return {
            "train the source model": adapted.train,
            "into the source": lambda: adapted.load_state_dict(changed),
        }

    def epsilon_of(self, layer: nn.Module) -> float:
        return layer.eps

    def is_model(self, item: object) -> bool:
        return isinstance(item, nn.Module)

    def forget(self) -> None:
        """Nothing is kept outside the models."""
