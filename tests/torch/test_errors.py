"""Bad input: each an error of its own kind that says what was expected, what came, and the remedy; nothing is lost."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
from nets import SmallNet, TokenNet, images, small
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import sita_adapters as sita


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


MODELS = [
    (lambda: nn.Sequential(nn.Conv2d(3, 3, 1), nn.LayerNorm(3)), sita.NoBatchNormError, ["3 modules", "LayerNorm"]),
    (fused, sita.FusedModelError, ["fused", "before fusing"]),
    (lambda: small().state_dict(), sita.UnknownModelError, ["Weights alone", "build the model"]),
    (lambda: torch.ones(3), sita.UnknownModelError, ["Tensor", "torch.nn.Module"]),
    (lambda: torch.jit.trace(small(), batch()), sita.ScriptedModelError, ["traced", "trace the adapted one"]),
    (lambda: torch.jit.script(small()), sita.ScriptedModelError, ["scripted", "eager"]),
    (lambda: nn.Sequential(torch.jit.trace(small(), batch())), sita.ScriptedModelError, ["'0'"]),
    (lazy, sita.UninitialisedModelError, ["0.weight", "run the model once"]),
    (lambda: Locked().eval(), sita.CloneError, ["block.guard", "lock", "Remedy"]),
    (
        lambda: nn.Sequential(nn.BatchNorm2d(3), nn.BatchNorm2d(3, track_running_stats=False)),
        sita.BatchStatisticsError,
        ["1", "track_running_stats"],
    ),
    (lambda: sita.adapt(small(), "ops").block, sita.AlreadyAdaptedError, ["'1'", "unwrap"]),
]


@pytest.mark.parametrize(("make", "error", "words"), MODELS, ids=lambda value: getattr(value, "__name__", None))
def test_models_that_cannot_be_adapted(make: object, error: type[Exception], words: list[str]) -> None:
    model = make()
    parts = list(model.modules()) if isinstance(model, nn.Module) else []
    before = [sorted(vars(part)) for part in parts]
    with pytest.raises(error) as caught:
        sita.adapt(model, "ops")
    assert type(caught.value) is error
    for word in words:
        assert word in str(caught.value)
    # A failed adapt leaves nothing behind.
    assert [sorted(vars(part)) for part in parts] == before


def integers(x: torch.Tensor) -> torch.Tensor:
    return (x * 20).to(torch.uint8)


IMAGES = [
    (lambda: batch()[0], ["rank 4", "rank 3", "unsqueeze(0)"]),
    (lambda: batch().permute(0, 2, 3, 1), ["channels first, (N, 3, …)", "(2, 16, 16, 3)"]),
    (lambda: batch()[0, 0], ["rank 2"]),
    (lambda: batch()[None, None], ["rank 6"]),
    (lambda: batch()[:0], ["empty batch", "(0, 3, 16, 16)"]),
    (lambda: integers(batch()), ["torch.uint8", "floating-point"]),
    (lambda: batch().tolist(), ["list", "stack"]),
]


@pytest.mark.parametrize(
    ("make", "words"), IMAGES, ids=["no batch", "channels last", "no channels", "rank 6", "empty", "bytes", "list"]
)
def test_images_that_cannot_be_taken(make: object, words: list[str]) -> None:
    model = small()
    adapted = sita.adapt(model, "ops")
    with pytest.raises(sita.InputError) as caught:
        adapted(make())
    for word in words:
        assert word in str(caught.value)
    assert torch.equal(sita.adapt(model, "source")(batch()), model(batch()))
    assert adapted(batch()).shape == (2, 7)


def test_nothing_at_all_is_no_image() -> None:
    with pytest.raises(sita.InputError, match="received nothing"):
        sita.adapt(small(), "ops")()


def test_integers_are_taken_where_the_model_takes_them() -> None:
    class Bytes(SmallNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.float() / 255)

    model = Bytes().eval()
    x = integers(batch())
    torch.testing.assert_close(sita.adapt(model, "ops")(x), sita.adapt(model, "ops")(x.float()))
    with pytest.raises(sita.InputError, match="integers cannot hold"):
        sita.adapt(model, "ops", augment="blur")(x)


def test_views_that_change_the_shape_are_refused() -> None:
    with pytest.raises(sita.InputError, match="square images; received 16×24"):
        sita.adapt(small(), "ops", augment=["rot90"])(images(1, 3, 16, 24))
    with pytest.raises(sita.InputError, match="must return images of the shape"):
        sita.adapt(small(), "ops", augment=lambda x: x[..., 1:])(batch())
    five = sita.adapt(nn.Sequential(nn.BatchNorm2d(5), nn.Flatten()), "ops", augment="colour", inputs="unit")
    with pytest.raises(sita.InputError, match="1 or 3 channels; received 5"):
        five(images(1, 5, 16, 16))


def test_views_that_a_signal_does_not_have() -> None:
    model = nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.AdaptiveAvgPool1d(1), nn.Flatten()).eval()
    with pytest.raises(sita.InputError, match=r"'rot90' needs images with a height and a width; this input"):
        sita.adapt(model, "ops", augment=["rot90"])
    with pytest.raises(sita.InputError, match="turns images"):
        sita.adapt(model, "ops", augment="paper", inputs="unit")
    assert sita.describe(sita.adapt(model, "augbn")).rows == 2
    flat = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)).eval()
    with pytest.raises(sita.InputError, match=r"this input is a (point|vector)"):
        sita.adapt(flat, "ops", augment=["hflip"])(torch.rand(3, 5))


def test_colour_on_grey_images_needs_a_grey_encoding() -> None:
    grey = sita.adapt(nn.Sequential(nn.BatchNorm2d(1), nn.Flatten()), "ops", augment="colour", inputs="imagenet")
    with pytest.raises(sita.InputError, match="mean and std for each of the 1 channels"):
        grey(images(1, 1, 16, 16))


@pytest.mark.parametrize("way", ["concatenated", "time first"])
def test_a_model_that_scatters_an_images_entries_is_found_out(way: str) -> None:
    """Promise 3: two streams stacked on the batch would have images mixed."""

    class Scattering(SmallNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            streams = [x, x.flip(-1)] if way == "concatenated" else list(x.unbind(1))
            return super().forward(torch.cat(streams)).unflatten(0, (2, -1)).mean(0)

    x = batch() if way == "concatenated" else images(2, 2, 3, 16, 16)
    adapted = sita.adapt(Scattering().eval(), "augbn")
    for _ in range(2):
        with pytest.raises(sita.InputError, match="apart from each other"):
            adapted(x)


def test_a_forward_that_holds_the_sources_layers_runs_the_clones() -> None:
    model, twice = small(), small()
    original = model.block.forward
    model.block.forward = lambda x: original(x) + 0
    torch.testing.assert_close(sita.adapt(model, "ops")(batch()), sita.adapt(twice, "ops")(batch()), rtol=0, atol=0)


def test_an_adapted_model_is_not_replicated_by_data_parallel() -> None:
    with pytest.raises(sita.CloneError, match="one adapted model per device"):
        sita.adapt(small(), "ops")._replicate_for_data_parallel()


def test_input_without_space_has_no_views() -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)).eval()
    with pytest.raises(sita.InputError, match="no spatial axes"):
        sita.adapt(model, "ops")(torch.rand(3, 5))
    assert sita.adapt(model, "bn")(torch.rand(3, 5)).shape == (3, 4)
    with pytest.raises(sita.InputError, match="rank 2 or more"):
        sita.adapt(model, "bn")(torch.rand(3))


def test_a_batch_folded_beyond_recognition() -> None:
    class Merging(TokenNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x[:-1])

    with pytest.raises(sita.InputError, match="leading entries"):
        sita.adapt(Merging().eval(), "augbn")(batch())


OUTPUTS = [
    (lambda y: (y, 2 * y), r"several parts.*\[0\], \[1\].*output="),
    (lambda y: y.sum(0), "merges its batch"),
    (lambda y: y.sum(), "number for the whole batch"),
    (lambda y: y[:, :1], "two classes or more"),
    (lambda y: y[:, 0], "two classes or more"),
]


@pytest.mark.parametrize(("change", "words"), OUTPUTS)
def test_outputs_without_scores(change: object, words: str) -> None:
    class Other(SmallNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return change(super().forward(x))

    with pytest.raises(sita.OutputError, match=words):
        sita.adapt(Other().eval(), "ops")(batch())


def test_what_would_write_through_to_the_source_is_refused() -> None:
    model = small()
    adapted = sita.adapt(model, "ops")
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(sita.SharedWeightsError, match="train the source model"):
        adapted.train()
    with pytest.raises(sita.SharedWeightsError, match="load them into the source"):
        adapted.load_state_dict({name: value + 1 for name, value in weights.items()})
    adapted.bn1.train()
    with pytest.raises(sita.SharedWeightsError, match=r"'bn1' of an adapted model is in training mode"):
        adapted(batch())
    adapted.eval()
    with pytest.raises(sita.SharedWeightsError):
        nn.Sequential(adapted).load_state_dict({f"0.{name}": value + 1 for name, value in weights.items()})
    with pytest.raises(sita.SharedWeightsError):
        adapted.bn1.load_state_dict({name: value + 1 for name, value in adapted.bn1.state_dict().items()})
    partly = sita.adapt(model, "ops", layers="bn1")
    partly.bn2.train()
    with pytest.raises(sita.SharedWeightsError, match="'bn2'"):
        partly(batch())
    adapted(batch())
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, type("MyNorm", (nn.BatchNorm2d,), {})])
def test_entry_points_around_the_adaptation_are_named(kind: type[nn.Module]) -> None:
    """Promise 6."""
    adapted = sita.adapt(SmallNet(kind).eval(), "ops")
    with pytest.raises(sita.BypassError, match=r"SmallNet\.forward_features ran the adapted layer 'bn1'"):
        adapted.forward_features(batch())
    with pytest.raises(sita.BypassError, match=r"Sequential.forward ran the adapted layer 'block.1'"):
        adapted.block(images(1, 8, 16, 16))
    timm_model = sita.adapt(pytest.importorskip("timm").create_model("resnet18").eval(), "ops")
    with pytest.raises(sita.BypassError, match=r"ResNet\.forward_features"):
        timm_model.forward_features(images(1, 3, 64, 64))


def test_a_layer_of_another_adapted_model_is_around_too() -> None:
    other = sita.adapt(small(), "ops")

    class Borrowing(SmallNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(other.forward_features(self.bn1.weight.sum() * 0 + x).mean((2, 3)))

    with pytest.raises(sita.BypassError):
        sita.adapt(Borrowing().eval(), "ops")(batch())


def test_a_model_that_calls_none_of_its_layers() -> None:
    class Functional(SmallNet):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            norm = self.bn1
            y = nn.functional.batch_norm(self.stem(x), norm.running_mean, norm.running_var, norm.weight, norm.bias)
            return y.mean((2, 3))

    with pytest.raises(sita.BypassError, match="statistics of layer 'bn1' outside of a call"):
        sita.adapt(Functional().eval(), "ops")(batch())


@pytest.mark.slow
def test_a_backend_that_cannot_be_imported_names_the_extra() -> None:
    code = (
        "import sys, torch\n"
        "sys.modules['array_api_compat'] = None\n"
        "import sita_adapters as sita\n"
        "try:\n    sita.adapt(torch.nn.BatchNorm2d(3))\n"
        "except sita.BackendImportError as error:\n    print(error)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'sita-adapters[torch]'" in printed
