"""Rounding: moments in single precision, layers in half precision, and numbers that leave the range."""

from __future__ import annotations

import copy

import pytest
import torch
import torch_reference
from nets import CLASSES, images, small
from reliable_rules import reliable
from torch import nn
from torch_reference import RECIPES, assert_answers

import sita_adapters as sita
from sita_torch import ops as torch_ops
from sita_torch.batchnorm import measure
from sita_torch.ops import TORCH


class WHOLE:
    """A call of a layer with one entry per image, which is measured."""

    entries, first = 1, 0


def moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, variance = measure(x, WHOLE, torch_ops.TRACED if torch_ops.is_traced() else TORCH)  # type: ignore[arg-type]
    return mean[:, 0], variance[:, 0]


def exported_moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    class Measure(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return moments(x)

    return torch.export.export(Measure(), (x,)).module()(x)


SIZES = (2, 7, 14, 63, 128, 512)
TRACED = {"exported": exported_moments, "compiled": torch.compile(moments, fullgraph=True)}
OFTEN = {("exported", 2, 0), ("exported", 512, 100), ("compiled", 63, 100)}
"""The cases that are followed by a compiler every time: it takes seconds for each."""


def all_moments() -> list[object]:
    cases = [(way, size, ratio) for way in ("NCHW", "NHWC") for size in SIZES for ratio in (0, 10, 100)]
    traced = [(way, size, ratio) for way in TRACED for size in SIZES for ratio in (0, 100)]
    return cases + [pytest.param(*case, marks=[] if case in OFTEN else [pytest.mark.slow]) for case in traced]


@pytest.mark.parametrize(("way", "size", "ratio"), all_moments())
def test_moments_are_exact_at_every_size(way: str, size: int, ratio: int) -> None:
    """Of features with structure, whose mean is `ratio` times their standard deviation; against float64."""
    channels = 4 if size > 200 else 32
    draw = torch.Generator().manual_seed(size)
    features = torch.randn(2, channels, size, size, generator=draw) + 2 * torch.linspace(-1, 1, size)
    features += ratio * features.std()
    torch._dynamo.reset()
    if way == "NHWC":
        features = features.to(memory_format=torch.channels_last)
    variance, mean = torch.var_mean(features.double(), dim=(2, 3), correction=0)
    found_mean, found_variance = TRACED.get(way, moments)(features)
    torch.testing.assert_close(found_variance.double(), variance, rtol=1e-5, atol=0)
    # At worst 64 sums in float32, each off by half a last bit (2⁻²⁴) of the mean, which is ratio · σ: about √64 · 2⁻²⁴.
    assert ((found_mean - mean).abs() / variance.sqrt()).max() < 5e-7 * max(ratio, 4 if way in TRACED else 1)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("recipe", ["augbn", "shift", "by reliability"])
def test_a_layer_in_half_precision_is_off_by_the_rounding_of_its_output_alone(
    recipe: str, dtype: torch.dtype, layout: torch.memory_format
) -> None:
    """Everything in between is in float32: the result is the float64 answer, rounded to half precision once."""
    norm = nn.BatchNorm2d(8).eval()
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    norm.to(dtype)
    chosen = reliable(norm) if recipe == "by reliability" else recipe
    features = (3 + images(1, 8, 14, 14)).to(dtype).contiguous(memory_format=layout)
    with torch.inference_mode():
        half = sita.adapt(nn.Sequential(norm), chosen)(features)
        exact = sita.adapt(nn.Sequential(copy.deepcopy(norm).double()), chosen)(features.double())
    assert half.dtype == dtype
    torch.testing.assert_close(half.double(), exact, rtol=0.51 * torch.finfo(dtype).eps, atol=2e-6)


@pytest.mark.parametrize("recipe", ["augbn", "ops", "auto"])
def test_an_image_whose_squares_cancel_is_measured_with_care_and_alone(recipe: str) -> None:
    """Features 100 σ from zero in one image of a batch: their variance is exact, the others' answers stay theirs."""
    model = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    adapted = sita.adapt(model.eval(), recipe, **RECIPES[recipe])
    batch = images(3, 3, 16, 16)
    batch[1] += 100 * batch[1].std()
    with torch.inference_mode():
        together, alone = adapted(batch), torch.cat([adapted(image[None]) for image in batch])
    assert_answers(together, torch_reference.answers(model, batch, recipe), 2e-5)
    torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-6)  # convolutions round by batch size


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("recipe", ["auto", "ops", "by reliability"])
@pytest.mark.parametrize("size", [1e9, 1e10, 1e17, 1e18, 1e19, 1e20, 1e25])
def test_huge_images_are_answered_right_or_by_nan(recipe: str, layout: torch.memory_format, size: float) -> None:
    """A variance that leaves single precision is never taken for a number."""
    model, batch = small(), (size * images(2, 3, 16, 16)).contiguous(memory_format=layout)
    chosen = reliable(model) if recipe == "by reliability" else recipe
    with torch.inference_mode():
        expected = sita.adapt(copy.deepcopy(model).double(), chosen)(batch.double())
        found = sita.adapt(model, chosen)(batch)
    known = ~found.isnan().any(1)
    assert_answers(found[known], expected[known], 1e-4)
    assert size > (1e9 if recipe == "by reliability" else 1e10) or known.all()  # which squares the shift
