"""The whole adapted network against an independent reference in float64, and the promises that are equations."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
import torch_reference
from nets import CLASSES, LARGE, SHAPES, LineNet, SmallNet, dense, images, large, small, warm
from reliable_rules import make_rule, statistics_of_module
from torch import nn
from torch_reference import RECIPES, assert_answers
from torchvision.ops import FrozenBatchNorm2d

import sita_adapters as sita
from sita_adapters.inputs import ENCODINGS, ImageLayout
from sita_adapters.views import make_views
from sita_torch.ops import TORCH


@pytest.mark.parametrize("recipe", [*RECIPES, "ops_shared"])
@pytest.mark.parametrize("name", SHAPES)
def test_small_networks_equal_the_reference(name: str, recipe: str) -> None:
    """Images, folded tokens, folded time, and volumes; AugBN and OPS with the paper's priors."""
    batch = images(2, *SHAPES[name][1])
    expected = torch_reference.answers(small(name), batch, recipe)
    with torch.inference_mode():
        single = sita.adapt(small(name), recipe, **RECIPES.get(recipe, {}))(batch)
        double = sita.adapt(small(name).double(), recipe, **RECIPES.get(recipe, {}))(batch.double())
    assert single.dtype == torch.float32
    assert_answers(double, expected, 1e-9)
    assert_answers(single, expected, 2e-5)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        *((name, "auto") for name in LARGE),
        ("resnet50", "augbn"),
        *(pytest.param(name, "augbn", marks=pytest.mark.slow) for name in LARGE if name != "resnet50"),
    ],
)
@pytest.mark.xdist_group("networks")  # which are built once a process
def test_covered_networks_equal_the_reference(name: str, recipe: str) -> None:
    batch = images(1, 3, *[min(LARGE[name], 80)] * 2)
    expected = torch_reference.answers(large(name), batch, recipe)
    with torch.inference_mode():
        assert_answers(sita.adapt(large(name), recipe, **RECIPES[recipe])(batch), expected, 1e-3)


class Scaling(nn.Module):
    """A BatchNorm of another library: no common base class, own names but for the statistics."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.rand(features))
        self.register_buffer("running_var", torch.rand(features) + 0.5)
        self.gain, self.eps = nn.Parameter(torch.rand(features)), 1e-3

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        shape = (-1, *[1] * (input.ndim - 2))
        scale = self.gain / (self.running_var + self.eps).sqrt()
        return (input - self.running_mean.view(shape)) * scale.view(shape)


class ScalingLast(Scaling):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input.movedim(-1, 1)).movedim(1, -1)


@pytest.mark.parametrize("name", SHAPES)
def test_reliability_in_small_networks_equals_the_reference(name: str) -> None:
    """Folded tokens and time are pooled before channels are weighed."""
    batch = images(2, *SHAPES[name][1])
    rule, same = make_rule(statistics_of_module(small(name)), caution=0.5)
    rows, adapted = reference.augbn_rows(same, 0), sita.Recipe(priors=rule, n_views=0)
    expected = [torch_reference.run_rows(small(name), image, [lambda x: x], rows)[0] for image in batch]
    with torch.inference_mode():
        assert_answers(sita.adapt(small(name).double(), adapted)(batch.double()), torch.stack(expected), 1e-6)
        assert_answers(sita.adapt(small(name), adapted)(batch), torch.stack(expected), 2e-5)


def own(kind: type[nn.Module]) -> type[nn.Module]:
    """A subclass, which the backend does not know."""
    return type(f"My{kind.__name__}", (kind,), {})


def layer_kinds() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    """Every class of BatchNorm layer, and the shape of an image's features."""
    from timm.layers import BatchNormAct2d, FrozenBatchNormAct2d

    found: dict[str, tuple[nn.Module, tuple[int, ...]]] = {}
    for kind, shape in ((nn.BatchNorm1d, (6, 30)), (nn.BatchNorm2d, (6, 9, 9)), (nn.BatchNorm3d, (6, 4, 9, 9))):
        found[kind.__name__] = kind(6), shape
        found[f"{kind.__name__} subclass"] = own(kind)(6), shape
    return found | {
        "not affine": (nn.BatchNorm2d(6, affine=False), (6, 9, 9)),
        "another epsilon": (nn.BatchNorm2d(6, eps=0.1), (6, 9, 9)),
        "a large map": (nn.BatchNorm2d(6), (6, 70, 70)),
        "SyncBatchNorm": (nn.SyncBatchNorm(6), (6, 9, 9)),
        "SyncBatchNorm subclass": (own(nn.SyncBatchNorm)(6), (6, 9, 9)),
        "timm": (BatchNormAct2d(6), (6, 9, 9)),
        "timm subclass": (own(BatchNormAct2d)(6), (6, 9, 9)),
        "timm frozen": (FrozenBatchNormAct2d(6), (6, 9, 9)),
        "torchvision frozen": (FrozenBatchNorm2d(6), (6, 9, 9)),
        "another library's": (Scaling(6), (6, 9, 9)),
        "another library's, channels last": (ScalingLast(6), (9, 8, 6)),
        "channels last": (type("Last", (nn.BatchNorm2d,), {"forward": forward_last})(6), (9, 8, 6)),
    }


def forward_last(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return nn.BatchNorm2d.forward(self, x.movedim(-1, 1)).movedim(1, -1)


class Layer(nn.Module):
    """A network that is one layer, called by position or by keyword."""

    def __init__(self, layer: nn.Module, keyword: str | None) -> None:
        super().__init__()
        self.layer, self.keyword = layer, keyword

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) if self.keyword is None else self.layer(**{self.keyword: x})


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["NCHW", "NHWC"])
@pytest.mark.parametrize("prior", ["λ", "by shift", "by reliability"])
@pytest.mark.parametrize("kind", layer_kinds())
def test_every_class_of_batchnorm_equals_the_reference(kind: str, prior: str, layout: torch.memory_format) -> None:
    """Known classes by one kernel, all others by rewriting their input."""
    torch.manual_seed(0)
    layer, shape = layer_kinds()[kind]
    with torch.no_grad():
        layer.running_mean.uniform_(-1, 1)
        layer.running_var.uniform_(0.5, 2)
    batch = torch.randn(3, *shape) * torch.tensor([0.5, 1.0, 3.0]).view(-1, *[1] * len(shape)) + 0.3
    if batch.ndim == 4:
        batch = batch.contiguous(memory_format=layout)
    fields = {"strength": 0.9, "half_shift": 0.3}
    given, same = {
        "λ": (0.3, 0.3),
        "by shift": (sita.ByShift(**fields, half_area=0.5), reference.Rule(**fields, half_area=0.5)),
        "by reliability": make_rule(statistics_of_module(Layer(layer, None)), **fields),
    }[prior]
    axis = len(shape) if "last" in kind else 1
    rows, views = reference.augbn_rows(same, 0), [lambda x: x]
    model = Layer(layer, None).eval()
    expected = [torch_reference.run_rows(model, image, views, rows, channel_axis=axis)[0] for image in batch]
    for keyword in (None, "x" if kind.startswith(("timm", "torchvision", "channels")) else "input"):
        with torch.inference_mode():
            found = sita.adapt(Layer(layer, keyword).eval(), "bn", priors=given)(batch)
        assert_answers(found, torch.stack(expected))


def test_known_classes_run_one_kernel_and_all_others_keep_their_forward() -> None:
    for kind, (layer, _) in layer_kinds().items():
        adapted = sita.adapt(Layer(layer, None).eval(), "bn").layer
        known = type(layer).__module__.startswith(("torch.nn", "timm")) and "rozen" not in kind
        assert ("forward" in vars(adapted)) == known, kind
        assert bool(adapted._forward_pre_hooks) != known, kind


def test_one_dimensional_signals_with_a_view_of_the_callers() -> None:
    model = LineNet().train()
    with torch.no_grad():
        for _ in range(6):
            model(1 + 2 * torch.randn(16, 3, 20))
    batch, rows = torch.randn(2, 3, 20), reference.augbn_rows(0.5, 1)
    expected = [torch_reference.run_rows(model.eval(), x, [lambda x: x, lambda x: x.flip(-1)], rows)[0] for x in batch]
    with torch.inference_mode():
        assert_answers(
            sita.adapt(model, "augbn", priors=0.5, augment=[lambda x: x.flip(-1)])(batch), torch.stack(expected)
        )


@pytest.mark.parametrize("recipe", ["augbn", "ops"])
def test_features_without_space_have_the_spread_between_rows_alone(recipe: str) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10), nn.BatchNorm1d(10), nn.Linear(10, CLASSES))
    batch = images(2, 3, 8, 8)
    expected = torch_reference.answers(warm(model, 3, 8, 8), batch, recipe)
    with torch.inference_mode():
        assert_answers(sita.adapt(model, recipe, **RECIPES[recipe])(batch), expected)


@pytest.mark.parametrize("task", ["classification", "segmentation"])
def test_the_papers_views_equal_the_reference(task: str) -> None:
    """Drawn from the seed, with the paper's priors; what each view computes is tested in tests/core."""
    dense_model = task == "segmentation"
    model, batch = dense() if dense_model else small(), images(2, 3, 16, 16)
    count = 1 if dense_model else 2
    drawn = make_views("paper_segmentation" if dense_model else "paper", count, 7, "square")
    layout = ImageLayout(TORCH, -3, (-2, -1), ENCODINGS["imagenet"])
    views = [lambda x: x, *(lambda x, view=view: view.apply(x, layout) for view in drawn)]
    settings = {"augment": "paper", "seed": 7, "inputs": "imagenet", "task": task}
    augbn, (ops, candidates) = reference.augbn_rows(0.8, count), reference.ops_rows(reference.PAPER_PRIORS, count)
    with torch.inference_mode():
        found = sita.adapt(model.double(), "augbn", priors=0.8, **settings)(batch.double())
        voted = sita.adapt(model.double(), "ops", **settings)(batch.double())
    for place, image in enumerate(batch):
        assert_answers(found[place], torch_reference.run_rows(model, image, views, augbn)[0], 1e-6)
        scores = torch.stack(torch_reference.run_rows(model, image, views, ops))[candidates]
        scores = scores.flatten(2 if dense_model else 1)
        columns = scores.permute(2, 0, 1).numpy() if dense_model else scores[None].numpy()
        expected = np.stack([reference.vote(each, 3) for each in columns], axis=-1)
        wrong = np.abs(voted[place].reshape(CLASSES, -1).numpy() - expected.reshape(CLASSES, -1)).max(0) > 1e-6
        assert wrong.mean() <= (0.01 if dense_model else 0)  # entropies of a pixel may be all but equal


@pytest.mark.parametrize("recipe", ["auto", "augbn", "ops", "ops_shared"])
def test_nan_in_one_image_reaches_no_other_through_folded_tokens(recipe: str) -> None:
    adapted = sita.adapt(small("TokenNet"), recipe)
    batch = images(3, 3, 16, 16)
    with_nan = batch.clone()
    with_nan[1, 0, 3, 3] = float("nan")
    with torch.inference_mode():
        clean, dirty = adapted(batch), adapted(with_nan)
    assert dirty[1].isnan().all()
    torch.testing.assert_close(dirty[[0, 2]], clean[[0, 2]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("recipe", ["auto", "augbn"])
def test_a_layer_used_twice_blends_at_each_use(recipe: str) -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.conv(self.norm(x))).mean((2, 3))

    model = warm(Twice(), 3, 16, 16)
    batch = images(2, 3, 16, 16)
    with torch.inference_mode():
        found = sita.adapt(model, recipe, **RECIPES[recipe])(batch)
    assert_answers(found, torch_reference.answers(model, batch, recipe))


@pytest.mark.parametrize("recipe", ["auto", "augbn"])
@pytest.mark.parametrize(("layers", "count"), [("block", 2), (["bn1", "block.*"], 3)])
def test_only_the_chosen_layers_are_adapted(layers: object, count: int, recipe: str) -> None:
    model, batch = small(), images(2, 3, 16, 16)
    adapted = sita.adapt(model, recipe, layers=layers, **RECIPES[recipe])
    description = sita.describe(adapted)
    assert (len(description.adapted), len(description.skipped)) == (count, 4 - count)
    expected = torch_reference.answers(model, batch, recipe, adapted=description.adapted)
    with torch.inference_mode():
        assert_answers(adapted(batch), expected)


def test_a_layer_without_beta() -> None:
    model, batch = small(), images(2, 3, 16, 16)
    model.bn1.bias = None
    assert_answers(sita.adapt(model)(batch), torch_reference.answers(model, batch))


def test_a_network_with_another_class_of_norm_is_the_same_network() -> None:
    """The whole SmallNet by rewritten inputs, for every recipe."""
    model, batch = SmallNet(own(nn.BatchNorm2d)).eval(), images(3, 3, 16, 16)
    model.load_state_dict(small().state_dict())
    for recipe in sita.RECIPES:
        with torch.inference_mode():
            found, expected = sita.adapt(model, recipe)(batch), sita.adapt(small(), recipe)(batch)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
