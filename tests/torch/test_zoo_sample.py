"""A sample of the zoo, by the checks that `make zoo` runs on all of it; and that these checks can fail."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import sita_adapters as sita
from benchmarks.zoo.members import Member, members_of, squares
from benchmarks.zoo.torch_checks import check

SAMPLE = (
    "timm/byobnet/test",  # several BatchNorms of one input
    "timm/efficientnet/test",  # squeeze and excitation, activations inside the BatchNorm
    "timm/resnet/test",
    "torchvision/detection: faster r-cnn v2, heads",
)
LARGER = (
    "timm/starnet",
    "timm/mobilenetv3/lcnet",
    "torchvision/mobilenet_v3",
    "torchvision/detection: faster r-cnn, frozen BatchNorm",
)


@pytest.mark.parametrize("key", [*SAMPLE, *(pytest.param(key, marks=pytest.mark.slow) for key in LARGER)])
def test_a_family_is_right(key: str) -> None:
    outcome = check(members_of(key.partition("/")[0])[key])

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


@pytest.mark.parametrize(("mixes", "verdict"), [(False, "right"), (True, "refused")])
def test_a_model_that_mixes_its_batch_is_found(mixes: bool, verdict: str) -> None:
    outcome = check(Member("ours", "small", "Small", lambda: Small(mixes), squares(16)))

    assert outcome.verdict.partition(":")[0] == verdict


def test_images_need_not_be_square() -> None:
    outcome = check(Member("ours", "small", "Small", Small, ((3, 16, 24),)))

    assert outcome.verdict == "right"


def test_layers_that_are_named_as_skipped_are_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sita, "adapt", functools.partial(sita.adapt, layers="norm"))
    outcome = check(Member("ours", "small", "Small", Small, squares(16)))

    assert (outcome.verdict, outcome.layers) == ("right", 1)
    assert "1 BatchNorm layers are skipped" in outcome.note


def test_another_prior_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    adapt = sita.adapt

    def adapt_a_little_less(model: nn.Module, recipe: str, priors: float) -> nn.Module:
        return adapt(model, recipe, priors=0.8001 if priors == 0.8 else priors)

    monkeypatch.setattr(sita, "adapt", adapt_a_little_less)
    outcome = check(Member("ours", "small", "Small", Small, squares(16)))

    assert outcome.verdict.startswith("WRONG: λ = 0.8: ")


def test_a_family_without_batchnorm_is_skipped() -> None:
    outcome = check(Member("ours", "plain", "Linear", lambda: nn.Conv2d(3, 4, 3), squares(16)))

    assert outcome.verdict == "no BatchNorm"
