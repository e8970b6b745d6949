"""Bad input: each an error of its own kind that says what was expected, what came, and what to try; nothing is lost."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
from nets import SmallNet, images, small
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import sita_adapters as sita
from sita_adapters.errors import InputError, ModelError, SharedWeightsError


def batch() -> torch.Tensor:
    return images(2, 3, 16, 16)


class Locked(SmallNet):
    def __init__(self) -> None:
        super().__init__()
        self.block.guard = threading.Lock()


def fused() -> nn.Module:
    model = small()
    model.stem, model.bn1 = fuse_conv_bn_eval(model.stem, model.bn1), nn.Identity()
    model.conv2, model.bn2 = fuse_conv_bn_eval(model.conv2, model.bn2), nn.Identity()
    model.block = nn.Sequential(fuse_conv_bn_eval(model.block[0], model.block[1]), nn.ReLU())
    return model


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyConv2d(4, 3), nn.LazyBatchNorm2d()).eval()


MODELS = {
    "no BatchNorm": (lambda: nn.LayerNorm(3), ["no BatchNorm", "LayerNorm"]),
    "fused": (fused, ["fused into convolutions", "adapt the model before that"]),
    "weights": (lambda: small().state_dict(), ["build the model"]),
    "a tensor": (lambda: torch.ones(3), ["Tensor", "torch.nn.Module"]),
    "scripted": (lambda: torch.jit.script(small()), ["scripted or traced", "eager"]),
    "a scripted part": (lambda: nn.Sequential(torch.jit.trace(small(), batch())), ["'0'"]),
    "lazy": (lazy, ["'0.weight'", "run the model once"]),
    "a lock": (lambda: Locked().eval(), ["lock", "copy.deepcopy", "Try"]),
    "batch statistics": (
        lambda: nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False)),
        ["1", "track_running_stats"],
    ),
    "a part of an adapted model": (lambda: sita.adapt(small(), "ops").block, ["'1'", "unwrap"]),
}


@pytest.mark.parametrize("case", MODELS)
def test_models_that_cannot_be_adapted(case: str) -> None:
    make, words = MODELS[case]
    model = make()
    parts = list(model.modules()) if isinstance(model, nn.Module) else []
    before = [sorted(vars(part)) for part in parts]
    with pytest.raises(ModelError) as caught:
        sita.adapt(model, "ops")
    for word in words:
        assert word in str(caught.value)
    # A failed adapt leaves nothing behind.
    assert [sorted(vars(part)) for part in parts] == before


def integers(x: torch.Tensor) -> torch.Tensor:
    return (x * 20).to(torch.uint8)


IMAGES = [
    (lambda: batch()[0], ["rank 4", "rank 3", "unsqueeze(0)"]),
    (lambda: batch().permute(0, 2, 3, 1), ["16, 16, 3)", "shape"]),
    (lambda: batch()[None, None], ["rank 6"]),
    (lambda: integers(batch()), ["uint8", "floating-point"]),
    (lambda: batch().tolist(), ["list", "stack"]),
]


@pytest.mark.parametrize(("make", "words"), IMAGES, ids=["no batch", "channels last", "rank 6", "bytes", "list"])
def test_images_that_cannot_be_taken(make: object, words: list[str]) -> None:
    model = small()
    adapted = sita.adapt(model, "ops")
    with pytest.raises(InputError, match="received nothing"):
        adapted()
    with pytest.raises(InputError) as caught:
        adapted(make())
    for word in words:
        assert word in str(caught.value)
    assert torch.equal(sita.adapt(model, "source")(batch()), model(batch()))
    assert adapted(batch()).shape == (2, 7)


def test_integers_are_taken_where_the_model_takes_them() -> None:
    class Bytes(SmallNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.float() / 255)

    model = Bytes().eval()
    x = integers(batch())
    torch.testing.assert_close(sita.adapt(model, "ops")(x), sita.adapt(model, "ops")(x.float()))
    for recipe, views in (("ops", {"augment": "blur"}), ("restore", {})):
        with pytest.raises(InputError, match="integers cannot hold"):
            sita.adapt(model, recipe, **views)(x)


def test_views_that_a_signal_does_not_have() -> None:
    model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.AdaptiveAvgPool1d(1), nn.Flatten()).eval()
    with pytest.raises(InputError, match=r"'rot90'.*height and a width; this input"):
        sita.adapt(model, "ops", augment=["rot90"])
    with pytest.raises(InputError, match="height and a width"):
        sita.adapt(model, "ops", augment="paper", inputs="unit")
    with pytest.raises(InputError, match="height and a width"):
        sita.adapt(model, "augbn")
    flat = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)).eval()
    for settings in ({}, {"augment": ["hflip"]}):
        with pytest.raises(InputError, match="at most one spatial axis"):
            sita.adapt(flat, "ops", **settings)(torch.rand(3, 5))
    assert sita.adapt(flat, "bn")(torch.rand(3, 5)).shape == (3, 4)
    with pytest.raises(InputError, match="rank"):
        sita.adapt(flat, "bn")(torch.rand(3))


def test_colour_needs_an_encoding_of_the_images_channels() -> None:
    grey = sita.adapt(nn.Sequential(nn.BatchNorm2d(1), nn.Flatten()), "ops", augment="color", inputs="imagenet")
    with pytest.raises(InputError, match=r"mean and std for each channel.*received 1"):
        grey(images(1, 1, 16, 16))
    five = sita.adapt(nn.Sequential(nn.BatchNorm2d(5), nn.Flatten()), "ops", augment="color", inputs="unit")
    with pytest.raises(InputError, match=r"1 or 3 channels.*received 5"):
        five(images(1, 5, 16, 16))


@pytest.mark.parametrize("way", ["concatenated", "time first"])
def test_a_model_that_scatters_an_images_entries_is_found_out(way: str) -> None:
    """Two streams stacked on the batch would have images mixed."""

    class Scattering(SmallNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            streams = [x, x.flip(-1)] if way == "concatenated" else list(x.unbind(1))
            return super().forward(torch.cat(streams)).unflatten(0, (2, -1)).mean(0)

    x = batch() if way == "concatenated" else images(2, 2, 3, 16, 16)
    adapted = sita.adapt(Scattering().eval(), "augbn")
    for _ in range(2):
        with pytest.raises(ModelError, match=r"bn1.*consecutive entries"):
            adapted(x)


def test_an_adapted_model_is_not_replicated_by_data_parallel() -> None:
    with pytest.raises(ModelError, match="one adapted model per device"):
        sita.adapt(small(), "ops")._replicate_for_data_parallel()


def test_what_would_write_through_to_the_source_is_refused() -> None:
    """By way of a part of the adapted model, or of a model around it; the contract has the model itself."""
    model = small()
    adapted = sita.adapt(model, "ops")
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    adapted.bn1.train()
    with pytest.raises(SharedWeightsError, match=r"'bn1' of an adapted model is in training mode"):
        adapted(batch())
    adapted.eval()
    with pytest.raises(SharedWeightsError):
        nn.Sequential(adapted).load_state_dict({f"0.{name}": value + 1 for name, value in weights.items()})
    with pytest.raises(SharedWeightsError):
        adapted.bn1.load_state_dict({name: value + 1 for name, value in adapted.bn1.state_dict().items()})
    partly = sita.adapt(model, "ops", layers="bn1")
    partly.bn2.train()
    with pytest.raises(SharedWeightsError, match="'bn2'"):
        partly(batch())
    adapted(batch())
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, type("MyNorm", (nn.BatchNorm2d,), {})])
def test_entry_points_around_the_adaptation_are_named(kind: type[nn.Module]) -> None:
    adapted = sita.adapt(SmallNet(kind).eval(), "ops")
    for run in (lambda: adapted.forward_features(batch()), lambda: adapted.block(images(1, 8, 16, 16))):
        with pytest.raises(ModelError, match=r"outside a call to the adapted model.*sita.unwrap"):
            run()


def test_a_layer_of_another_adapted_model_is_around_too() -> None:
    other = sita.adapt(small(), "ops")

    class Borrowing(SmallNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(other.forward_features(self.bn1.weight.sum() * 0 + x).mean((2, 3)))

    with pytest.raises(ModelError):
        sita.adapt(Borrowing().eval(), "ops")(batch())


@pytest.mark.slow
def test_a_backend_that_cannot_be_imported_names_the_extra() -> None:
    code = (
        "import sys, torch\n"
        "sys.modules['array_api_compat'] = None\n"
        "import sita_adapters as sita\n"
        "try:\n    sita.adapt(torch.nn.BatchNorm2d(3))\n"
        "except sita.SitaError as error:\n    print(error)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'sita-adapters[torch]'" in printed
