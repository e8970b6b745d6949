"""A sample of the zoo, by the checks that `make zoo` runs on all of it; and that these checks can fail."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import sita_adapters as sita
from benchmarks.zoo.libraries import all_members
from benchmarks.zoo.members import Member, squares
from benchmarks.zoo.torch_checks import check

SAMPLE = (
    "timm/test_byobnet",  # several BatchNorms of one input
    "timm/test_efficientnet",  # squeeze and excitation, activations inside the BatchNorm
    "timm/test_resnet",
    "torchvision/FastRCNNConvFCHead",
)
LARGER = (
    "timm/starnet_s050",
    "timm/lcnet_035",
    "torchvision/mobilenet_v3_small",
    "torchvision/resnet18 backbone, frozen BatchNorm",
)


@pytest.mark.parametrize("key", [*SAMPLE, *(pytest.param(key, marks=pytest.mark.slow) for key in LARGER)])
def test_a_family_is_right(key: str) -> None:
    (member,) = (each for each in all_members() if each.key == key)
    outcome = check(member)

    assert outcome.verdict == "right"
    assert outcome.layers > 0
    assert outcome.errors["what adaptation changes"] > 1e-4


class Small(nn.Module):
    def __init__(self, mixes: bool = False) -> None:
        super().__init__()
        self.mixes = mixes
        self.convolution, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.second, self.head = nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.convolution(x)
        if self.mixes:
            x = x + 0.01 * x.mean(0)
        return self.head(self.second(self.norm(x).relu()).relu().mean((2, 3)))


SMALL = Member("ours", "Small", Small, squares(16))


@pytest.mark.parametrize(
    ("build", "shapes", "verdict"),
    [
        (Small, squares(16), "right"),
        (Small, ((3, 16, 24),), "right"),
        (functools.partial(Small, mixes=True), squares(16), "refused"),
        (functools.partial(nn.Conv2d, 3, 4, 3), squares(16), "refused"),
    ],
    ids=["square", "not square", "mixes its batch", "without BatchNorm"],
)
def test_the_verdict_tells_models_apart(build: object, shapes: object, verdict: str) -> None:
    assert check(Member("ours", "model", build, shapes)).kind == verdict


def test_skipped_layers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sita, "adapt", functools.partial(sita.adapt, layers="norm"))
    outcome = check(SMALL)

    assert (outcome.verdict, outcome.layers) == ("right", 1)
    assert "1 BatchNorm layers are skipped" in outcome.note


def test_another_prior_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    adapt = sita.adapt

    def adapt_a_little_less(model: nn.Module, recipe: str, priors: float) -> nn.Module:
        return adapt(model, recipe, priors=0.8001 if priors == 0.8 else priors)

    monkeypatch.setattr(sita, "adapt", adapt_a_little_less)

    assert check(SMALL).verdict.startswith("WRONG: λ = 0.8: ")
