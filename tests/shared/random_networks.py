"""Small networks by a description: every way to build, hold and run BatchNorm layers that the fuzz tests combine."""

from __future__ import annotations

import functools
import types
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH = 6
CLASSES = 4


@dataclass(frozen=True)
class Spec:
    """What a network is like. The same description always gives the same weights."""

    seed: int = 0
    channels: int = 3
    blocks: tuple[str, ...] = ("plain",)
    holder: str = "modules"
    frames: int = 0
    """So many images of a sample are folded into the batch; 0: samples are images."""
    second: str = "none"
    head: str = "linear"
    output: str = "tensor"
    writes: str = "nothing"
    streams: bool = False
    """Whether the images and their negatives run as one batch, one after the other: refused."""
    converts: bool = False
    """Whether it takes integers from 0 to 255."""
    activation: str = "relu"
    epsilon: float = 1e-5
    affine: bool = True
    degenerate: bool = False
    """Whether a channel of every layer has no variance, and another is scaled by 0."""


class Frozen(nn.Module):
    """Looks like a BatchNorm layer, and keeps everything in buffers."""

    def __init__(self, shape: tuple[int, ...], epsilon: float | None) -> None:
        super().__init__()
        if epsilon is not None:
            self.eps = epsilon
        for name in ("weight", "running_var"):
            self.register_buffer(name, torch.rand(WIDTH).add(0.5).reshape(shape))
        for name in ("bias", "running_mean"):
            self.register_buffer(name, torch.randn(WIDTH).mul(0.5).reshape(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = (
            self.weight.view(1, -1, 1, 1) * (self.running_var.view(1, -1, 1, 1) + getattr(self, "eps", 1e-4)).rsqrt()
        )
        return x * scale + (self.bias.view(1, -1, 1, 1) - self.running_mean.view(1, -1, 1, 1) * scale)


class Block(nn.Module):
    """One block (N, 6, h, w) → (N, 6, …) of a kind."""

    def __init__(self, kind: str, spec: Spec) -> None:
        super().__init__()
        self.kind, self.activation = kind, spec.activation
        groups, stride = WIDTH if kind == "depthwise" else 1, 2 if kind == "stride" else 1
        self.conv = nn.Conv2d(WIDTH, WIDTH, 3, stride=stride, padding=1, groups=groups, bias=spec.seed % 2 == 0)
        if kind == "frozen":
            self.norm: nn.Module = Frozen((-1,), spec.epsilon)
        elif kind == "frozen without epsilon":
            self.norm = Frozen((1, -1, 1, 1), None)
        elif kind in ("gate", "tokens", "folded tokens"):
            self.norm = nn.BatchNorm1d(WIDTH, eps=spec.epsilon, affine=spec.affine)
        else:
            self.norm = nn.BatchNorm2d(WIDTH, eps=spec.epsilon, affine=spec.affine)
        if kind in ("two convolutions", "depthwise"):
            self.other = nn.Conv2d(WIDTH, WIDTH, 1, bias=False)
        if kind == "unused":
            self.unused = nn.BatchNorm2d(WIDTH)

    def act(self, x: torch.Tensor) -> torch.Tensor:
        return {"relu": functional.relu, "relu_": functional.relu_, "silu": functional.silu, "tanh": torch.tanh}[
            self.activation
        ](x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: PLR0911 (one for each kind)
        if self.kind == "residual":
            return self.act(x + self.norm(self.conv(x)))
        if self.kind == "twice":
            return self.act(self.norm(self.conv(self.act(self.norm(self.conv(x))))))
        if self.kind == "two convolutions":
            return self.act(self.norm(self.conv(x)) + self.norm(self.other(x)))
        if self.kind == "depthwise":
            return self.act(self.other(self.norm(self.conv(x))))
        if self.kind == "gate":
            return x * torch.sigmoid(self.norm(self.conv(x).mean((2, 3))))[:, :, None, None]
        if self.kind == "tokens":
            y = self.conv(x)
            return self.act(self.norm(y.flatten(2)).view_as(y))
        if self.kind == "folded tokens":
            y = self.conv(x).permute(0, 2, 3, 1)
            return self.act(self.norm(y.reshape(-1, WIDTH)).reshape(y.shape).permute(0, 3, 1, 2))
        if self.kind == "in place":
            return self.act(self.norm(self.conv(x).mul_(2).add_(1)))
        if self.kind == "keyword":
            return self.act(self.norm(input=self.conv(x)))
        if self.kind == "upsample":
            return self.act(self.norm(self.conv(functional.interpolate(x, scale_factor=2, mode="nearest"))))
        if self.kind == "by size" and x.shape[-1] < 4:
            return self.act(self.conv(x))
        return self.act(self.norm(self.conv(x)))


BLOCKS = (
    *("plain", "residual", "twice", "two convolutions", "depthwise", "stride", "frozen", "frozen without epsilon"),
    *("gate", "tokens", "folded tokens", "in place", "keyword", "upsample", "unused", "by size"),
)


class Counter:
    """Not a module."""

    calls = 0


def run_all(blocks: Any, x: torch.Tensor) -> torch.Tensor:
    return functools.reduce(lambda y, block: block(y), blocks, x)


HOLDERS = ("modules", "own forward", "lambda over self")
"""How a network reaches its blocks. A function that holds the source is refused."""


class Network(nn.Module):
    """Stem, blocks, head, as a description says."""

    def __init__(self, spec: Spec, made: list[nn.Module]) -> None:
        super().__init__()
        self.spec = spec
        self.stem = nn.Conv2d(spec.channels, WIDTH, 3, padding=1)
        self.norm = nn.BatchNorm2d(WIDTH, eps=spec.epsilon)
        blocks: list[nn.Module] = [Block(kind, spec) for kind in spec.blocks]
        self.blocks = nn.ModuleList(blocks)
        self.f = (lambda x: run_all(self.blocks, x)) if spec.holder == "lambda over self" else None
        self.neck = nn.BatchNorm1d(WIDTH, eps=spec.epsilon) if spec.head == "bn1d" else nn.Identity()
        self.last: nn.Module = nn.Conv2d(WIDTH, CLASSES, 1) if spec.head == "dense" else nn.Linear(WIDTH, CLASSES)
        made.extend([self, *blocks])
        self.register_buffer("state", torch.zeros(()))
        self.calls, self.sizes, self.tensors, self.helper = 0, [0], {"a": torch.zeros(2)}, Counter()
        if spec.holder == "own forward":
            self.forward = types.MethodType(Network.run, self)  # type: ignore[method-assign]

    def forward(self, *args: torch.Tensor) -> Any:
        return self.run(*args)

    def run(self, *args: torch.Tensor) -> Any:
        x, *others = (self.convert(each) for each in args)
        samples = len(x)
        for other in others:
            x = (
                x + other
                if other.ndim > 2 and other.shape[-1] == x.shape[-1]
                else x + other.flatten(1).mean(1).view(-1, *[1] * (x.ndim - 1))
            )
        if self.spec.frames:
            x = x.reshape(-1, *x.shape[2:])
        if self.spec.streams:
            x = torch.cat([x, -x])
        x = torch.relu(self.norm(self.stem(x)))
        features = run_all(self.blocks, x) if self.f is None else self.f(x)
        if self.spec.streams:
            features = torch.sub(*features.chunk(2))
        if self.spec.frames:
            features = features.reshape(samples, -1, *features.shape[1:]).mean(1)
        scores = self.last(features if self.spec.head == "dense" else self.neck(features.mean((2, 3))))
        return arrange(self.spec.output, scores + self.write(scores), features)

    def convert(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.last.weight.dtype) / 255 if self.spec.converts and not x.is_floating_point() else x

    def write(self, scores: torch.Tensor) -> Any:
        """Leave something in the network, and return what an answer depends on of it."""
        how = self.spec.writes
        if how == "a buffer":
            self.state.add_(scores.detach().mean())
        elif how == "a buffer that is read":
            self.state.mul_(0.5).add_(0.25)
            return self.state
        elif how == "a counter":
            self.calls += 1
            return self.calls
        elif how == "a list":
            self.sizes.append(len(scores))
            return len(self.sizes)
        elif how == "a tensor in a dict":
            self.tensors["a"] += len(scores)
        elif how == "an object":
            self.helper.calls += 1
            return self.helper.calls
        elif how == "a new attribute":
            self.seen = scores.detach()
        return 0


WRITES = (
    *("nothing", "a buffer", "a buffer that is read", "a counter", "a list", "a tensor in a dict", "an object"),
    "a new attribute",
)
HARMLESS = ("nothing", "a tensor in a dict", "a new attribute")
"""What changes no answer; a network that writes anything else is refused."""


def arrange(output: str, scores: torch.Tensor, features: torch.Tensor) -> Any:
    return {
        "tensor": lambda: scores,
        "tuple": lambda: (scores, torch.arange(3.0)),
        "dict": lambda: {"logits": scores, "scale": torch.ones(2, 1), "name": "net", "nothing": None, "number": 2.5},
        "features": lambda: {"logits": scores, "features": features},
        "labels": lambda: [scores, scores.argmax(1)],
        "nested": lambda: {"out": scores, "more": [{"same": scores}, (features.mean((2, 3)),)]},
        "second axis": lambda: {"logits": scores, "turned": scores.transpose(0, 1)},
    }[output]()


OUTPUTS = ("tensor", "tuple", "dict", "features", "labels", "nested", "second axis")
CONSTANT = {("tuple", "[1]"), ("dict", ".scale")}
TURNED = {("second axis", ".turned")}


def build(spec: Spec, dtype: torch.dtype = torch.float32) -> tuple[Network, list[nn.Module]]:
    """Return a network in evaluation mode, and the modules that together reach all its layers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        made: list[nn.Module] = []
        model = Network(spec, made)
        norms = list({id(m): m for part in made for m in part.modules() if hasattr(m, "running_mean")}.values())
        for norm in norms:
            if isinstance(norm, nn.modules.batchnorm._BatchNorm):
                norm.momentum = None
                if norm.affine:
                    nn.init.uniform_(norm.weight, 0.5, 1.5)
                    nn.init.normal_(norm.bias, std=0.5)
        for part in made:
            part.train()
        shape = (8, *([spec.frames] if spec.frames else []), spec.channels, 8, 8)
        with torch.no_grad():
            model(torch.randn(shape) + 0.5, *([torch.randn(shape)] if spec.second != "none" else []))
        model.state.zero_()
        model.calls, model.sizes, model.tensors, model.helper = 0, [0], {"a": torch.zeros(2)}, Counter()
        vars(model).pop("seen", None)
        for part in made:
            part.eval().to(dtype)
        with torch.no_grad():
            for norm in norms if spec.degenerate else ():
                norm.running_var.view(-1)[0] = 0
                if isinstance(norm.weight, torch.Tensor):
                    norm.weight.view(-1)[1] = 0
    return model, made
