"""The network of Test-Time Training (Sun et al. 2020) on CIFAR: a ResNet-26 with a second head that tells rotations.

The architecture is the authors' (github.com/yueatsprograms/ttt_cifar_release): blocks with their normalization first
(He et al. 2016), 16, 32 and 64 channels, shortcuts without parameters. The two heads share everything up to the end of
the second stage; the head for rotations has a third stage of its own. `sita bench` takes both networks:

    sita bench --model benchmarks/study/cifar_ttt.py:bn --data cifar10c:DIR --recipes auto,ttt
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from sita_workbench.files import write_atomically

Norm = Callable[[int], nn.Module]


class _PreactivationBlock(nn.Module):
    """Twice a normalization, ReLU and 3×3 convolution, and a shortcut: averaged, with zeros for new channels."""

    def __init__(self, inner: int, outer: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.bn1 = norm(inner)
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn2 = norm(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.stride, self.padding = stride, outer - inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))
        if self.padding:
            x = F.pad(F.avg_pool2d(x, self.stride), (0, 0, 0, 0, 0, self.padding))
        return x + y  # type: ignore[no-any-return]


def _stage(blocks: int, inner: int, outer: int, stride: int, norm: Norm) -> nn.Sequential:
    first = _PreactivationBlock(inner, outer, stride, norm)
    return nn.Sequential(first, *(_PreactivationBlock(outer, outer, 1, norm) for _ in range(blocks - 1)))


class _Head(nn.Sequential):
    """The last stage, the mean over positions, and a linear layer."""

    def __init__(self, blocks: int, classes: int, norm: Norm) -> None:
        layers = (norm(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))
        super().__init__(_stage(blocks, 32, 64, 2, norm), *layers)


class RotationResNet(nn.Module):
    """6n + 2 layers with two heads: `classifier`, and `rotation` with the scores of 0°, 90°, 180° and 270°.

    Calling the network returns the scores of the classes. `ttt` is what the method `ttt` of `sita bench` asks for.
    """

    def __init__(self, norm: Norm, depth: int = 26, classes: int = 10) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        first = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.encoder = nn.Sequential(first, _stage(blocks, 16, 16, 1, norm), _stage(blocks, 16, 32, 2, norm))
        self.classifier = _Head(blocks, classes, norm)
        self.rotation = _Head(blocks, 4, norm)
        self.ttt = {"head": "rotation", "shared": "encoder"}
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of images normalized as for the residual networks."""
        return self.classifier(self.encoder(x))  # type: ignore[no-any-return]

    def rotation_scores(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of the four rotations."""
        return self.rotation(self.encoder(x))  # type: ignore[no-any-return]


def group_norm(channels: int) -> nn.GroupNorm:
    """GroupNorm with the eight groups that the authors use."""
    return nn.GroupNorm(8, channels)


TTT_NETWORKS: dict[str, Callable[[], RotationResNet]] = {
    "resnet26_bn_ttt": lambda: RotationResNet(nn.BatchNorm2d),
    "resnet26_gn_ttt": lambda: RotationResNet(group_norm),
}


def rotate(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Return pictures (N, C, H, H), each turned counterclockwise by its number of quarter turns."""
    turned = [torch.rot90(image, int(turn), (1, 2)) for image, turn in zip(x, turns, strict=True)]
    layout = torch.channels_last if x.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    return torch.stack(turned).contiguous(memory_format=layout)


def save(model: RotationResNet, file: Path) -> None:
    """Write the weights, rounded to float16, to `file`, and those of the rotation head to a file beside it.

    Together they are larger than the 1 MiB that a file of the project may have. The first file alone is a classifier.
    """
    state = {name: value.half() if value.ndim > 1 else value for name, value in model.state_dict().items()}
    for target, of_head in ((file, False), (_head_file(file), True)):
        chosen = {name: value for name, value in state.items() if name.startswith("rotation.") == of_head}
        with write_atomically(target) as temporary:
            save_file({name: value.contiguous() for name, value in chosen.items()}, temporary)


def bn() -> tuple[RotationResNet, dict[str, Any]]:
    """Return the network with BatchNorm, and how it takes images."""
    return _stored("resnet26_bn_ttt")


def classifier() -> tuple[nn.Module, dict[str, Any]]:
    """Return the network with BatchNorm without its rotation head."""
    model, settings = bn()
    return nn.Sequential(model.encoder, model.classifier), settings


def gn() -> tuple[RotationResNet, dict[str, Any]]:
    """Return the network with GroupNorm, and how it takes images."""
    return _stored("resnet26_gn_ttt")


def _stored(name: str) -> tuple[RotationResNet, dict[str, Any]]:
    file = Path(__file__).resolve().parents[1] / f"weights/cifar10_{name}.safetensors"
    return load(name, file), {"inputs": "imagenet", "size": 32, "crop": 1.0}


def load(name: str, file: Path) -> RotationResNet:
    """Return one of the networks in eval mode, with the weights that `save` wrote."""
    model = TTT_NETWORKS[name]()
    model.load_state_dict(load_file(file) | load_file(_head_file(file)))
    return model.eval()


def _head_file(file: Path) -> Path:
    return file.with_stem(f"{file.stem}_rotation")
