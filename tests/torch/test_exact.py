"""The whole adapted network against an independent reference, and the promises that are equations."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import reference
import torch
from nets import CLASSES, LARGE, SHAPES, LineNet, SmallNet, images, large, small, warm
from torch import nn

import sita_adapters as sita
from sita_torch import batchnorm, lone_row
from sita_torch.moments import measure

PRIORS = (0.5, 0.75, 1.0)
ROTATIONS = [lambda x, k=k: torch.rot90(x, k, dims=(-2, -1)) for k in (0, 1, 3)]


def expected_answers(model: nn.Module, batch: torch.Tensor, name: str) -> torch.Tensor:
    if name == "augbn":
        rows, answers = reference.augbn_rows(0.5, 2), [0]
    elif name == "ops":
        rows, answers = reference.ops_rows(PRIORS, 2)
    else:
        rows, answers = reference.shared_rows(PRIORS, 2)
    outputs = []
    for image in batch:
        out = reference.run_rows(model, image, ROTATIONS, rows)
        candidates = np.stack([out[row].numpy() for row in answers])
        outputs.append(reference.vote(candidates, 2) if len(answers) > 1 else candidates[0])
    return torch.from_numpy(np.stack(outputs))


def adapted_by(model: nn.Module, name: str) -> nn.Module:
    return (
        sita.adapt(model, "augbn", priors=0.5) if name == "augbn" else sita.adapt(model, name, priors=PRIORS, top_k=2)
    )


@pytest.mark.parametrize(
    ("name", "recipe"), [*((name, "augbn") for name in SHAPES), ("SmallNet", "ops"), ("SmallNet", "ops_shared")]
)
def test_small_networks_equal_the_reference(name: str, recipe: str) -> None:
    model = small(name)
    batch = images(3, *SHAPES[name][1])
    expected = expected_answers(model, batch, recipe)
    with torch.inference_mode():
        single = adapted_by(model, recipe)(batch)
        double = adapted_by(small(name).double(), recipe)(batch.double())
    assert single.dtype == torch.float32
    torch.testing.assert_close(double, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(single.double(), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name.startswith("timm") else []) for name in LARGE]
)
def test_covered_networks_equal_the_reference(name: str) -> None:
    size = min(LARGE[name], 80)
    model = large(name)
    batch = images(1, 3, size, size)
    expected = expected_answers(model, batch, "augbn")
    with torch.inference_mode():
        answer = sita.adapt(model, "augbn", priors=0.5)(batch)
    torch.testing.assert_close(answer.double(), expected, rtol=1e-3, atol=2e-4)


def test_one_dimensional_signals_take_their_one_symmetry() -> None:
    model = warm_line()
    batch = torch.randn(2, 3, 20)
    rows = reference.augbn_rows(0.5, 1)
    expected = [reference.run_rows(model, x, [lambda x: x, lambda x: x.flip(-1)], rows)[0] for x in batch]
    with torch.inference_mode():
        answer = sita.adapt(model, "augbn", priors=0.5)(batch)
    torch.testing.assert_close(answer.double(), torch.stack(expected), rtol=1e-4, atol=1e-5)


def warm_line() -> nn.Module:
    model = LineNet().train()
    with torch.no_grad():
        for _ in range(6):
            model(1 + 2 * torch.randn(16, 3, 20))
    return model.eval()


def test_features_without_space_have_the_spread_between_rows_alone() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 10), nn.BatchNorm1d(10), nn.Linear(10, CLASSES))
    warm(model, 3, 8, 8)
    batch = images(2, 3, 8, 8)
    expected = expected_answers(model, batch, "augbn")
    with torch.inference_mode():
        answer = sita.adapt(model, "augbn", priors=0.5)(batch)
    torch.testing.assert_close(answer.double(), expected, rtol=1e-4, atol=1e-5)


# The contract has torchvision's networks, the zoo timm's.
@pytest.mark.parametrize("name", [*SHAPES, *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)])
def test_lambda_one_is_the_source_model(name: str) -> None:
    """Promise 4: through the recipe `source`, and through the blend, with a prior that only rounds to 1."""
    model = large(name) if name in LARGE else small(name)
    batch = images(2, 3, LARGE[name], LARGE[name]) if name in LARGE else images(2, *SHAPES[name][1])
    almost = float(np.nextafter(1.0, 0.0))
    exact = copy.deepcopy(model).double()
    with torch.inference_mode():
        plain, truth = model(batch), exact(batch.double())
        assert torch.equal(sita.adapt(model, "source")(batch), plain)
        torch.testing.assert_close(
            sita.adapt(exact, "augbn", priors=almost)(batch.double()), truth, rtol=1e-9, atol=1e-9
        )
        blended = sita.adapt(model, "augbn", priors=almost)(batch)
    rounding = float((plain - truth).abs().max())
    assert float((blended - truth).abs().max()) < 8 * rounding


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LARGE if name.startswith("timm")])  # the contract has the others
def test_batch_independence_on_the_covered_networks(name: str) -> None:
    adapted = sita.adapt(large(name), "ops", priors=(0.5, 1.0), top_k=1)
    batch = images(3, 3, LARGE[name], LARGE[name])
    with torch.inference_mode():
        together = adapted(batch)
        alone = torch.cat([adapted(batch[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=2e-5 * float(alone.abs().max()))


@pytest.mark.parametrize("recipe", ["augbn", "ops", "ops_shared"])
def test_nan_in_one_image_reaches_no_other_through_folded_tokens(recipe: str) -> None:
    adapted = sita.adapt(small("TokenNet"), recipe)
    batch = images(3, 3, 16, 16)
    with_nan = batch.clone()
    with_nan[1, 0, 3, 3] = float("nan")
    with torch.inference_mode():
        clean, dirty = adapted(batch), adapted(with_nan)
    assert dirty[1].isnan().all()
    torch.testing.assert_close(dirty[[0, 2]], clean[[0, 2]], rtol=1e-5, atol=1e-6)


def test_a_layer_used_twice_blends_at_each_use() -> None:
    class Twice(nn.Module):
        def __init__(self, first: nn.Module, second: nn.Module):
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 3, padding=1)
            self.first, self.second = first, second

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.conv(self.first(x))).mean((2, 3))

    norm = nn.BatchNorm2d(3)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    twin = nn.BatchNorm2d(3)
    twin.load_state_dict(norm.state_dict())
    shared, separate = Twice(norm, norm).eval(), Twice(norm, twin).eval()
    separate.conv = shared.conv
    batch = images(2, 3, 16, 16)
    with torch.inference_mode():
        answers = [sita.adapt(model, "augbn", priors=0.5)(batch) for model in (shared, separate)]
    assert torch.equal(*answers)


@pytest.mark.parametrize(("layers", "count"), [("block", 2), (["bn1", "block.*"], 3)])
def test_only_the_chosen_layers_are_adapted(layers: object, count: int) -> None:
    model, batch = small(), images(2, 3, 16, 16)
    adapted = sita.adapt(model, "augbn", priors=0.5, layers=layers)
    description = sita.describe(adapted)
    assert len(description.adapted) == count
    assert len(description.left_alone) == 4 - count
    expected = expected_partial(model, batch, set(description.adapted))
    with torch.inference_mode():
        torch.testing.assert_close(adapted(batch).double(), expected, rtol=1e-4, atol=1e-5)


def expected_partial(model: nn.Module, batch: torch.Tensor, chosen: set[str]) -> torch.Tensor:
    """The reference with a class of BatchNorm that it does not recognise in the place of the layers left alone."""

    class Fixed(nn.Module):
        def __init__(self, norm: nn.BatchNorm2d):
            super().__init__()
            self.norm = [norm.double()]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm[0](x)

    partly = copy.deepcopy(model)
    for name, module in list(partly.named_modules()):
        if isinstance(module, nn.BatchNorm2d) and name not in chosen:
            parent, _, attribute = name.rpartition(".")
            setattr(partly.get_submodule(parent), attribute, Fixed(module))
    return expected_answers(partly, batch, "augbn")


def test_a_callers_own_augmentation_is_a_view() -> None:
    model, batch = small(), images(2, 3, 16, 16)
    calls = []

    def darker(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape)
        return 0.5 * x

    rows = reference.augbn_rows(0.5, 2)
    views = [lambda x: x, lambda x: 0.5 * x, lambda x: 0.5 * x.flip(-1)]
    expected = torch.stack([reference.run_rows(model, image, views, rows)[0] for image in batch])
    with torch.inference_mode():
        adapted = sita.adapt(model, "augbn", priors=0.5, augment=[darker, ("hflip", darker)])
        answer = adapted(batch)
    assert calls == [batch.shape] * 2
    torch.testing.assert_close(answer.double(), expected, rtol=1e-4, atol=1e-5)


def general_twin(norm: type[nn.BatchNorm2d], model: nn.Module) -> nn.Module:
    """Return the network with a class that is not known, which has to be adapted by its input alone."""
    twin = SmallNet(type("MyNorm", (norm,), {})).eval()
    twin.load_state_dict(model.state_dict())
    return twin


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", ["torch", "timm"])
def test_the_general_path_equals_the_fast_one(kind: str, count: int) -> None:
    """A subclass of BatchNorm2d is adapted by its input alone, a known class by one kernel."""
    norm = nn.BatchNorm2d if kind == "torch" else pytest.importorskip("timm.layers").BatchNormAct2d
    model = SmallNet(norm).eval()
    model.load_state_dict(small().state_dict())
    other = general_twin(norm, model)
    batch = images(count, 3, 16, 16)
    for recipe in sita.RECIPES:
        fast, general = sita.adapt(model, recipe), sita.adapt(other, recipe)
        assert all("forward" in vars(layer) for layer in fast.modules() if isinstance(layer, norm))
        assert not any("forward" in vars(layer) for layer in general.modules() if isinstance(layer, norm))
        with torch.inference_mode():
            torch.testing.assert_close(fast(batch), general(batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("count", [1, 3, 20])
@pytest.mark.parametrize(
    "recipe", ["auto", "shift", sita.Recipe(priors=(sita.ByShift(half_shift=0.3), 1.0), n_views=0, places=64)]
)
def test_the_shortest_way_equals_the_general_one(
    recipe: str | sita.Recipe, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images of which only some lines count; one of them is far off, and one has a NaN."""
    adapted, batch = sita.adapt(small(), recipe), images(count, 3, 40, 40)
    batch[-1] *= 100
    ways = []

    def note(*args: object) -> torch.Tensor:
        ways.append(lone_row.normalise_lone_row(*args))
        return ways[-1]

    monkeypatch.setattr(batchnorm, "normalise_lone_row", note)
    with torch.inference_mode(), sita.observe(adapted) as short:
        found = adapted(batch)
    assert len(ways) == sum(layer.adapted for layer in sita.describe(adapted).layers)
    monkeypatch.setattr(batchnorm, "is_lone_row", lambda *_: False)
    with torch.inference_mode(), sita.observe(adapted) as general:
        torch.testing.assert_close(found, adapted(batch), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(short.layer_priors, general.layer_priors, rtol=2e-6)
    monkeypatch.undo()
    batch[0, 0, 20] = torch.nan
    with torch.inference_mode():
        answers = adapted(batch)
    assert answers[0].isnan().any()
    torch.testing.assert_close(answers[1:], found[1:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"share": "batch"}], ids=str)
def test_one_row_beside_the_source_is_measured_with_care(settings: dict[str, str]) -> None:
    """Several images, all places, and channels 20 σ from zero, whose squares cancel."""
    model = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    recipe = sita.Recipe(priors=(1.0, 0.4), n_views=0, combine="mean", **settings)
    batch = images(3, 3, 16, 16) + 20
    exact = sita.adapt(copy.deepcopy(model.eval()).double(), recipe)(batch.double())
    torch.testing.assert_close(sita.adapt(model, recipe)(batch).double(), exact, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("recipe", ["bn", "auto", "augbn"])
def test_frames_far_apart_are_pooled_in_double_precision(recipe: str) -> None:
    """Each is constant; together their variance leaves single precision. Only some places count."""

    class Frames(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.BatchNorm2d(3), nn.Linear(3, CLASSES)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            features = self.norm(x.flatten(0, 1)).tanh().mean((2, 3)).unflatten(0, x.shape[:2])
            return self.head(features.amax(1))

    model, video = Frames().eval(), torch.zeros(1, 4, 3, 20, 20)
    video[0, 1], video[0, 2] = 3e19, -3e19
    exact = sita.adapt(copy.deepcopy(model).double(), recipe, places=64)(video.double())
    torch.testing.assert_close(sita.adapt(model, recipe, places=64)(video).double(), exact, rtol=1e-5, atol=1e-5)


def test_a_layer_without_beta_takes_the_general_way() -> None:
    model = small()
    norm = next(layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d))
    batch = images(2, 3, 16, 16)
    norm.bias.data.zero_()
    expected = sita.adapt(model)(batch)
    norm.bias = None
    torch.testing.assert_close(sita.adapt(model)(batch), expected, rtol=1e-5, atol=1e-5)


def moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    features = measure(x)
    return features.means, features.variances


def exported_moments(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    class Measure(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return moments(x)

    return torch.export.export(Measure(), (x,)).module()(x)


TRACED = ("exported", "compiled")


SIZES = (2, 7, 14, 63, 128, 512)
COMPILED = {("exported", 2, 0), ("exported", 512, 100), ("compiled", 63, 100)}
"""The cases that are followed by a compiler every time: it takes seconds for each."""


def all_moments() -> list[object]:
    cases = [
        (way, size, ratio) for way in ("channels first", "channels last") for size in SIZES for ratio in (0, 10, 100)
    ]
    traced = [(way, size, ratio) for way in TRACED for size in SIZES for ratio in (0, 100)]
    return cases + [pytest.param(*case, marks=[] if case in COMPILED else [pytest.mark.slow]) for case in traced]


@pytest.mark.parametrize(("way", "size", "ratio"), all_moments())
def test_moments_are_exact_at_every_size(way: str, size: int, ratio: int) -> None:
    """Of features with structure, whose mean is `ratio` times their standard deviation; against float64."""
    channels = 4 if size > 200 else 32
    draw = torch.Generator().manual_seed(size)
    features = torch.randn(2, channels, size, size, generator=draw) + 2 * torch.linspace(-1, 1, size)
    features += ratio * features.std()
    features[:, 0, : size // 16 or 1] -= 10 * features.std()  # those that a traced measurement looks at first
    torch._dynamo.reset()
    if way == "channels last":
        features = features.to(memory_format=torch.channels_last)
    measured = {"exported": exported_moments, "compiled": torch.compile(moments, fullgraph=True)}.get(way, moments)
    variance, mean = torch.var_mean(features.double(), dim=(2, 3), correction=0)
    found_mean, found_variance = measured(features)
    torch.testing.assert_close(found_variance.double(), variance, rtol=1e-5, atol=0)
    # At worst 64 sums in float32, each off by half a last bit (2⁻²⁴) of the mean, which is ratio · σ: about √64 · 2⁻²⁴.
    # What is traced adds up differences from a number that may be 4 σ from the mean, in the with_nan channel.
    assert ((found_mean - mean).abs() / variance.sqrt()).max() < 5e-7 * max(ratio, 4 if way in TRACED else 1)


@pytest.mark.parametrize(
    "space", [pytest.param((1,), marks=pytest.mark.slow), pytest.param((50,), marks=pytest.mark.slow), (3, 4, 5)]
)
def test_traced_moments_of_any_rank_have_exact_values_and_derivatives(space: tuple[int, ...]) -> None:
    x = (3 + torch.randn(2, 4, *space, dtype=torch.float64)).requires_grad_()
    places = tuple(range(2, x.ndim))
    expected = torch.var_mean(x, dim=places, correction=0)
    mean, variance = torch.compile(moments, fullgraph=True)(x)
    torch.testing.assert_close((variance, mean), expected, rtol=1e-12, atol=1e-14)
    weights = torch.randn(2, 4, dtype=torch.float64)
    found, right = (torch.autograd.grad((v * weights).sum() + m.sum(), x) for v, m in ((variance, mean), expected))
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("recipe", ["augbn", "ops"])
def test_a_layer_in_half_precision_is_off_by_the_rounding_of_its_output_alone(
    recipe: str, dtype: torch.dtype, layout: torch.memory_format
) -> None:
    """Everything in between is in float32: what comes out is the float64 answer, rounded to half precision once."""
    norm = nn.BatchNorm2d(8).eval()
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    norm.to(dtype)
    features = (3 + images(1, 8, 14, 14)).to(dtype).contiguous(memory_format=layout)
    outputs = []
    for layer, x in ((norm, features), (copy.deepcopy(norm).double(), features.double())):
        model = nn.Sequential(layer, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        adapted = sita.adapt(model.to(x.dtype), recipe)
        next(m for m in adapted.modules() if "BatchNorm2d" in type(m).__name__).register_forward_hook(
            lambda _, __, out: outputs.append(out)
        )
        with torch.inference_mode():
            adapted(x)
    half, exact = outputs[-2:]
    assert half.dtype == dtype
    torch.testing.assert_close(half.double(), exact, rtol=0.51 * torch.finfo(dtype).eps, atol=2e-6)


@pytest.mark.parametrize("recipe", ["augbn", "ops"])
def test_an_image_whose_squares_cancel_is_measured_with_care_and_alone(recipe: str) -> None:
    """Features 100 σ from zero in one image of a batch: their variance is exact, the others' answers stay theirs."""
    model = nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    adapted = sita.adapt(model.eval(), recipe, priors=0.3 if recipe == "augbn" else (0.3, 0.6))
    exact = sita.adapt(copy.deepcopy(model).double(), sita.describe(adapted).recipe)
    batch = images(3, 3, 16, 16)
    batch[1] += 100 * batch[1].std()
    with torch.inference_mode():
        together, alone = adapted(batch), torch.cat([adapted(image[None]) for image in batch])
        torch.testing.assert_close(together.double(), exact(batch.double()), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-6)  # convolutions round by batch size
