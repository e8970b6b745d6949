"""Models that the library was not designed for: a right answer, or an error whose advice works."""

from __future__ import annotations

import copy
import random
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torch_reference
from torch import nn
from torch.nn import functional
from torch_reference import RECIPES, assert_answers

import sita_adapters as sita
from sita_adapters.errors import InputError, ModelError, OutputError, RecipeError


def rand_stats(model: nn.Module) -> nn.Module:
    """Give every layer with running statistics some that are not 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(getattr(module, "running_mean", None), torch.Tensor):
            module.running_mean.normal_(0, 0.3, generator=generator)
            module.running_var.uniform_(0.3, 1.8, generator=generator)
            if isinstance(getattr(module, "weight", None), nn.Parameter):
                module.weight.data.uniform_(0.5, 1.5, generator=generator)
                module.bias.data.normal_(0, 0.3, generator=generator)
    return model.eval()


def net(first: type[nn.Module] = nn.BatchNorm2d) -> nn.Sequential:
    """Conv–BatchNorm–ReLU twice, pool, linear; the first BatchNorm is of a class."""
    torch.manual_seed(0)
    return rand_stats(
        nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1, bias=False), first(8), nn.ReLU()),
            *(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5)),
        )
    )


def batch(count: int = 4, size: tuple[int, int] = (32, 32)) -> torch.Tensor:
    """Images of different contrast."""
    images = torch.randn(count, 3, *size, generator=torch.Generator().manual_seed(1))
    return images * torch.linspace(0.4, 2.0, count).view(-1, 1, 1, 1) + 0.2


class Around(nn.Module):
    """The network, and what a test does with it."""

    def __init__(self, forward: Callable[..., Any] = lambda self, x: self.net(x), **attributes: Any) -> None:
        super().__init__()
        self.net = net()
        self.run = forward
        for name, value in attributes.items():
            self.register_buffer(name, value) if isinstance(value, torch.Tensor) else setattr(self, name, value)
        self.eval()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.run(self, *args, **kwargs)


def advised_layers(error: pytest.ExceptionInfo[Any]) -> Any:
    """Return the argument layers= that an error advises, evaluated."""
    return eval(str(error.value).partition("Try: ")[2].partition("layers=")[2].rstrip("."))


# Right answers


def test_what_is_moved_to_another_memory_format_or_precision_shares_all_or_nothing() -> None:
    for move in (
        lambda a: a.to(memory_format=torch.channels_last),
        lambda a: a.double(),
        lambda a: a.half().float(),
        lambda a: a.to("cpu"),
    ):
        source = net()
        before = {name: value.clone() for name, value in source.state_dict().items()}
        moved = move(sita.adapt(source, "shift"))
        dtype = next(moved.parameters()).dtype
        shared = [a.data_ptr() == b.data_ptr() for a, b in zip(tensors(moved), tensors(source), strict=True)]
        assert len(set(shared)) == 1
        assert all(torch.equal(value, before[name]) for name, value in source.state_dict().items())
        assert all(value.dtype == before[name].dtype for name, value in source.state_dict().items())
        old = torch_reference.answers(source, batch(), "shift")
        tolerance = 5e-3 if dtype == torch.float32 and not shared[0] else 1e-5  # weights that were halved stay so
        assert_answers(moved(batch().to(dtype)), old, tolerance)
        with torch.no_grad():
            for value in source.state_dict().values():
                value.mul_(1.3) if value.is_floating_point() else None
        new = torch_reference.answers(source, batch(), "shift")
        assert_answers(moved(batch().to(dtype)), new if shared[0] else old, tolerance)


def tensors(model: nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]


class ChannelsLastNorm(nn.BatchNorm2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 16, 3, padding=1), ChannelsLastNorm(16), nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.conv(x).permute(0, 2, 3, 1)).relu().mean((1, 2)))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_class_with_channels_last_is_right_where_the_height_is_the_number_of_channels(recipe: str) -> None:
    torch.manual_seed(0)
    model = rand_stats(ChannelsLast())
    adapted = sita.adapt(model, recipe, **RECIPES[recipe])
    for size in ((24, 24), (16, 24), (16, 16)):
        expected = torch_reference.answers(model, batch(3, size), recipe, channel_axis=3)
        assert_answers(adapted(batch(3, size)), expected)


@pytest.mark.parametrize("max_rows", [None, 2, 1])
def test_a_model_that_normalizes_its_input_in_place(max_rows: int | None) -> None:
    adapted = sita.adapt(Around(lambda self, x: self.net(x.sub_(0.45).div_(0.22))), max_rows=max_rows)
    assert_answers(adapted(batch()), torch_reference.answers(net(), (batch() - 0.45) / 0.22))


def test_outputs_that_are_no_logits_stay_what_they_were() -> None:
    """A non-negative embedding is selected; probabilities and an image of real values are mixed."""
    import timm

    torch.manual_seed(0)
    x = batch(2, (64, 64))
    embedder = rand_stats(timm.create_model("resnet10t", pretrained=False, num_classes=0).eval())
    with torch.no_grad():
        embedding = sita.adapt(embedder)(x)
    assert_answers(embedding, torch_reference.answers(embedder, x, kind=None), 1e-4)
    assert embedding.min() >= 0
    softmax = nn.Sequential(*net(), nn.Softmax(1)).eval()
    found = sita.adapt(softmax)(x)
    assert_answers(found, torch_reference.answers(softmax, x, kind="probabilities"))
    assert_answers(found.sum(1), torch.ones(2, dtype=torch.float64))
    painter = nn.Sequential(*net()[:3], nn.Conv2d(8, 3, 3, padding=1)).eval()
    assert_answers(sita.adapt(painter)(x), torch_reference.answers(painter, x))


def test_an_adapted_backbone_can_be_put_into_a_model() -> None:
    """The head sees the features of one row."""

    class Big(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone, self.head = net()[:6], net()[6:]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.backbone(x))

    big = Big().eval()
    features = torch_reference.answers(big.backbone, batch(), kind=None)
    expected = copy.deepcopy(big.head).double()(features).detach()
    big.backbone = sita.adapt(big.backbone)
    assert_answers(big(batch()), expected)
    assert_answers(big(batch()), expected)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.__setitem__(8, nn.Linear(16, 5)),
        lambda model: model.__setitem__(1, nn.BatchNorm2d(8).eval()),
        lambda model: setattr(model[1], "eps", 1.0),
    ],
    ids=["another head", "another layer", "another epsilon"],
)
def test_another_structure_of_the_source_changes_nothing(change: Callable[[Any], Any]) -> None:
    model = net()
    adapted = sita.adapt(model, "shift")
    before = adapted(batch())
    change(model)
    assert torch.equal(adapted(batch()), before)


def cached_grid(self: Any, x: torch.Tensor) -> torch.Tensor:
    if self.grid is None or self.grid.shape != x.shape[-1:]:
        self.grid = torch.linspace(0, 1, x.shape[-1], dtype=x.dtype)
    return self.net(x + self.grid)


@pytest.mark.parametrize("used_before", [False, True])
def test_a_cached_grid_is_allowed(used_before: bool) -> None:
    """Also one that was made in inference mode."""
    model = Around(cached_grid, grid=None)
    if used_before:
        with torch.inference_mode():
            model(batch(1))
    adapted = sita.adapt(model)
    for size in ((32, 32), (24, 24)):
        x = batch(2, size)
        assert_answers(adapted(x), torch_reference.answers(net(), x + torch.linspace(0, 1, size[1])))
    assert used_before or model.grid is None


def test_a_lightning_module_that_a_trainer_has_seen(tmp_path: Any) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    model = Module()
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(batch()), batch_size=2)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning.Trainer(max_epochs=1, accelerator="cpu", default_root_dir=tmp_path, **quiet).fit(model, loader)
    model.eval()
    assert_answers(sita.adapt(model)(batch()), torch_reference.answers(model.net, batch()))


@pytest.mark.parametrize("name", [lambda i: "a.jpg", "image{}.jpg".format, lambda i: i, lambda i: 0.5 * i])
def test_strings_and_numbers_beside_the_images_are_not_probed_again(name: Callable[[int], Any]) -> None:
    model = Around(lambda self, given: self.net(given["image"]))
    adapted, x = sita.adapt(model), batch()
    adapted({"image": x, "id": name(0)})
    runs = count_forwards(adapted.net[0])
    for i in range(5):
        assert_answers(adapted({"image": x, "id": name(i)}), torch_reference.answers(net(), x))
    assert runs == [2 * len(x)] * 5


@pytest.mark.parametrize("counts", [(1, 2, 4, 3), (3, 1, 4)])
def test_an_argument_whose_length_happens_to_be_the_batchs(counts: tuple[int, ...]) -> None:
    """A mean for each of three channels, and three images."""
    adapted = sita.adapt(Around(lambda self, x, mean: self.net(x - mean.view(-1, 1, 1))))
    mean = torch.tensor([0.4, 0.5, 0.6])
    for count in counts:
        x = batch(count)
        assert_answers(adapted(x, mean), torch_reference.answers(net(), x - mean.view(-1, 1, 1)))


@pytest.mark.parametrize("recipe", ["shift", "auto"])
def test_outputs_may_hold_the_images_on_another_axis(recipe: str) -> None:
    adapted = sita.adapt(Around(lambda self, x: {"logits": (y := self.net(x)), "hidden": y.T.clone()}), recipe)
    expected = torch_reference.answers(net(), batch(), recipe)
    found = adapted(batch())
    assert_answers(found["logits"], expected)
    assert_answers(found["hidden"].T, expected)


def test_a_getstate_that_leaves_a_module_out() -> None:
    """As Lightning does with its trainer."""

    class Lean(Around):
        def __getstate__(self) -> dict[str, Any]:
            return {**vars(self), "tools": None}

    model = Lean(tools={"teacher": nn.Linear(2, 2)})
    assert_answers(sita.adapt(model)(batch()), torch_reference.answers(net(), batch()))


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_model_called_in_inference_mode(recipe: str) -> None:
    with torch.inference_mode():
        adapted = sita.adapt(net(), recipe, **RECIPES[recipe])
        found = adapted(batch())
    assert_answers(found.clone(), torch_reference.answers(net(), batch(), recipe))
    assert_answers(adapted(batch()), torch_reference.answers(net(), batch(), recipe))


# Refused, and the advice works


class ReluFirst(nn.BatchNorm2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.relu())


class Doubling(nn.BatchNorm2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(2 * x)


class Residual(nn.BatchNorm2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + x


class Ghost(nn.BatchNorm2d):
    """One set of statistics per split of a batch; the first is used in evaluation mode."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.register_buffer("running_mean", torch.zeros(2 * channels))
        self.register_buffer("running_var", torch.ones(2 * channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n = self.num_features
        mean, variance = self.running_mean[:n], self.running_var[:n]
        return functional.batch_norm(x, mean, variance, self.weight, self.bias, False, 0.1, self.eps)


class Normalizer(nn.Module):
    """One mean for all channels."""

    def __init__(self, _: int) -> None:
        super().__init__()
        self.eps = 1e-5
        self.register_buffer("running_mean", torch.tensor([0.4]))
        self.register_buffer("running_var", torch.tensor([2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x - self.running_mean) / (self.running_var + self.eps).sqrt()


@pytest.mark.parametrize("kind", [ReluFirst, Doubling, Residual, Ghost, Normalizer])
def test_layers_that_are_no_batchnorm_by_what_they_compute_can_be_left_out(kind: type[nn.Module]) -> None:
    model = net(kind)
    with pytest.raises(ModelError, match=rf"1 \({kind.__name__}\).*Try: ") as caught:
        sita.adapt(model)(batch())
    adapted = sita.adapt(model, layers=advised_layers(caught))
    assert sita.describe(adapted).skipped == ("1",)
    assert_answers(adapted(batch()), torch_reference.answers(model, batch(), adapted=("4",)))
    with pytest.raises(ModelError, match="no other BatchNorm layer"):
        sita.adapt(nn.Sequential(kind(3), nn.Flatten()).eval(), "bn")(batch())


def test_a_tile_for_each_quarter_must_lie_beside_the_others() -> None:
    """Small images run whole, large ones as tiles that are concatenated along the batch."""

    def run(self: Any, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] <= 32:
            return self.net(x)
        tiles = [x[..., i : i + 32, j : j + 32] for i in (0, 32) for j in (0, 32)]
        if self.beside:
            return self.net(torch.stack(tiles, 1).flatten(0, 1)).unflatten(0, (-1, 4)).mean(1)
        return self.net(torch.cat(tiles)).unflatten(0, (4, -1)).mean(0)

    small, large = batch(), batch(4, (64, 64))
    adapted = sita.adapt(Around(run, beside=False))
    assert_answers(adapted(small), torch_reference.answers(net(), small))
    with pytest.raises(InputError, match=r"Try: .*max_rows=n.*in another way, adapt a second model.*example="):
        adapted(large)
    with pytest.raises(ModelError, match=r"consecutive entries.*\(N, T, …\) reshaped to \(N·T, …\)"):
        sita.adapt(Around(run, beside=False), example=large)
    beside = Around(run, beside=True)
    assert_answers(sita.adapt(beside, example=large)(large), torch_reference.answers(beside, large))
    with pytest.raises(InputError, match="second model"):
        sita.adapt(beside, example=small)(large)


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x / 255 if x.max() > 2 else x


def test_a_branch_on_the_whole_batch_belongs_before_the_model() -> None:
    u = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    mixed = torch.cat([u[:1], 255 * u[1:]])
    with pytest.raises(ModelError, match=r"[Ii]mages influence each other.*before or after"):
        sita.adapt(Around(lambda self, x: self.net(scaled(x))))(mixed)
    each = torch.cat([scaled(image[None]) for image in mixed])
    assert_answers(sita.adapt(net())(each), torch_reference.answers(net(), u))


MIXING = {
    "the batch's mean": lambda self, x: self.net(x - x.mean(0, keepdim=True)),
    "another order at a layer": lambda self, x: self.net(x.flip(0)).flip(0),
    "another order": lambda self, x: self.net(x).flip(0),
    "without NaN": lambda self, x: self.net(torch.nan_to_num(x) - torch.nan_to_num(x).mean(0)),
    "after the layers": lambda self, x: (y := self.net(x)) - y.mean(0),
    "a sort": lambda self, x: self.net(x).sort(0).values,
    "one number of images": lambda self, x: self.net(x.reshape(4, 3, 32, 32)),
}


@pytest.mark.parametrize("case", MIXING)
@pytest.mark.parametrize("scale", [1.0, 1e-6, torch.nan])
def test_images_that_influence_each_other_are_refused(case: str, scale: float) -> None:
    with pytest.raises((ModelError, InputError)):
        sita.adapt(Around(MIXING[case]), "bn")(scale * batch())


def patched_layer(model: Any) -> None:
    """Its forward is a function that holds the source's own layer."""
    own = model.net[1].forward
    model.net[1].forward = lambda z: own(z.relu())


def closure(model: Any) -> None:
    inner = model.net
    model.run = lambda self, x: inner(x)


@pytest.mark.parametrize("hold", [patched_layer, closure])
def test_functions_that_hold_the_sources_layers_are_refused(hold: Callable[[Any], None]) -> None:
    """As methods of the model they work."""
    model = Around()
    hold(model)
    with pytest.raises(ModelError, match=r"source model's BatchNorm.*Try: make such functions methods"):
        sita.adapt(model)(batch())

    class Method(Around):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x)

        def inner(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.net:
                x = layer(x)
            return x

    assert_answers(sita.adapt(Method())(batch()), torch_reference.answers(net(), batch()))


def functional_norm(self: Any, x: torch.Tensor) -> torch.Tensor:
    norm, y = self.net[1], self.net[0](x)
    y = functional.batch_norm(y, norm.running_mean, norm.running_var, norm.weight, norm.bias, False, 0.1, norm.eps)
    return self.net[2:](y)


def native_norm(self: Any, x: torch.Tensor) -> torch.Tensor:
    norm, y = self.net[1], self.net[0](x)
    return self.net[2:](
        torch.native_batch_norm(y, norm.weight, norm.bias, norm.running_mean, norm.running_var, False, 0.1, norm.eps)[0]
    )


@pytest.mark.parametrize("run", [functional_norm, native_norm])
@pytest.mark.parametrize("also_called", [False, True])
def test_arithmetic_with_a_layers_statistics_is_refused(run: Any, also_called: bool) -> None:
    """By F.batch_norm or by the operator; whether the layer itself is called as well or not."""
    model = Around((lambda self, x: run(self, x) + self.net(x)) if also_called else run)
    with pytest.raises(ModelError, match=r"'net.1' outside.*Try: call the layer") as caught:
        sita.adapt(model)(batch())
    adapted = sita.adapt(model, layers=advised_layers(caught))
    expected = torch_reference.answers(model, batch(), adapted=("net.4",))
    assert_answers(adapted(batch()), expected)


def test_statistics_of_no_layer_are_not_adapted_and_named() -> None:
    def run(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.net(functional.batch_norm(x, self.mean, self.variance))

    adapted = sita.adapt(Around(run, mean=torch.full((3,), 0.1), variance=torch.full((3,), 2.0)))
    with pytest.warns(sita.SitaWarning, match="belong to no BatchNorm layer"):
        found = adapted(batch())
    assert "belong to no BatchNorm layer" in str(sita.describe(adapted))
    x = functional.batch_norm(batch(), torch.full((3,), 0.1), torch.full((3,), 2.0))
    assert_answers(found, torch_reference.answers(net(), x))


def written_buffer(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.seen.add_(len(x))
    return self.net(x)


def written_average(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.center.mul_(0.9).add_(0.1 * x.mean())
    return self.net(x - self.center)


def kept_average(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.average = 0.9 * self.average + 0.1 * float(x.mean())
    return self.net(x - self.average)


def kept_attribute(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.latest = x.detach()
    return self.net(x)


STATEFUL: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a buffer": (written_buffer, {"seen": torch.zeros(())}, "writes to seen.*plain attribute"),
    "a buffer that is read": (written_average, {"center": torch.zeros(())}, "writes to center"),
    "an average": (kept_average, {"average": 0.0}, "keeps state"),
    "dropout": (lambda self, x: self.net(functional.dropout(x, 0.5, True)), {}, "not deterministic.*dropout"),
    "noise": (lambda self, x: self.net(x + torch.randn_like(x)), {}, "not deterministic"),
}


@pytest.mark.parametrize("case", STATEFUL)
def test_models_with_state_or_chance_are_refused(case: str) -> None:
    run, attributes, words = STATEFUL[case]
    model = Around(run, **copy.deepcopy(attributes))
    with pytest.raises(ModelError, match=words):
        sita.adapt(model)(batch())
    for name, value in attributes.items():
        assert getattr(model, name) == value


@pytest.mark.parametrize("run", [kept_attribute, lambda self, x: self.net(functional.dropout(x, 0.5, self.training))])
def test_what_the_errors_advise_instead_works(run: Any) -> None:
    """A plain attribute that changes no answer, and dropout that is off in evaluation mode."""
    assert_answers(sita.adapt(Around(run))(batch()), torch_reference.answers(net(), batch()))


class Sparse(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).to_sparse()


RAW: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "combine": (lambda: sita.Recipe(priors=[1, 0.5], combine=np.array([0.4, 0.6])), RecipeError, "combine"),
    "name": (lambda: sita.Recipe.from_json('{"name": ["a"]}'), RecipeError, "name"),
    "deep JSON": (
        lambda: sita.Recipe.from_json('{"augment":' + "[" * 500 + '"hflip"' + "]" * 500 + "}"),
        RecipeError,
        "augment",
    ),
    "sparse": (lambda: sita.adapt(Sparse(*net()).eval(), "shift")(batch()), OutputError, "Tensor"),
    "script": (lambda: torch.jit.script(sita.adapt(net())), ModelError, "sita.export"),
    "half_shift": (lambda: sita.ByShift(half_shift=1e300), RecipeError, "half_shift"),
}


@pytest.mark.parametrize("case", RAW)
def test_no_error_is_raw(case: str) -> None:
    make, error, words = RAW[case]
    with pytest.raises(error, match=words):
        make()


def test_numpys_numbers_are_numbers() -> None:
    assert sita.ByShift(strength=np.float32(0.5)) == sita.ByShift(strength=0.5)
    recipe = sita.Recipe(priors=np.array([0.5, 1.0]), n_views=np.int64(1))
    assert recipe == sita.Recipe(priors=(0.5, 1.0), n_views=1)


# The probe


def count_forwards(layer: nn.Module) -> list[int]:
    """Note the number of images of every run of a layer from now on."""
    runs: list[int] = []
    layer.register_forward_hook(lambda _, args, __: runs.append(len(args[0])))
    return runs


@pytest.mark.parametrize("make", [net, lambda: Around(lambda self, x, mean: self.net(x - mean.view(-1, 1, 1)))])
def test_a_probe_is_a_few_small_runs_once_for_each_signature(make: Any) -> None:
    model = make()
    adapted = sita.adapt(model, "bn")
    runs = count_forwards(next(m for m in adapted.modules() if isinstance(m, nn.Conv2d)))
    others = () if isinstance(model, nn.Sequential) else (torch.zeros(3),)
    adapted(batch(5), *others)
    *probed, call = runs
    assert call == 5
    assert len(probed) <= 6
    assert sum(probed) <= 8
    runs.clear()
    for count, size in ((5, 32), (1, 32), (2, 24)):
        adapted(batch(count, (size, size)), *others)
    assert runs == [5, 1, 2]
    adapted.double()(batch(2).double(), *(each.double() for each in others))
    assert len(runs) > 4


def test_an_example_is_probed_ahead() -> None:
    adapted = sita.adapt(net(), "bn", example=batch(2))
    runs = count_forwards(adapted[0])
    adapted(batch(3))
    assert runs == [3]
    assert sita.describe(adapted).scores == "logits"


def test_no_random_state_is_touched() -> None:
    model, x = net(), batch()
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    sita.adapt(model, "augbn", augment="paper", inputs="unit")(x)
    sita.adapt(model, example=x)
    after = torch.get_rng_state(), np.random.get_state()[1], random.getstate()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert (before[1] == after[1]).all()
    assert before[2] == after[2]


def test_a_probe_rewinds_no_other_threads_random_numbers() -> None:
    drawn: list[float] = []
    stop = threading.Event()

    def draw() -> None:
        while not stop.wait(1e-4):  # without a pause it would hold Python's lock all the time
            drawn.append(random.random())

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        for _ in range(3):
            sita.adapt(net())(batch(2))
    finally:
        stop.set()
        thread.join()
    assert len(set(drawn)) == len(drawn)


def test_two_threads_may_probe_at_once() -> None:
    adapted, ready = sita.adapt(net()), threading.Barrier(4)
    batches = [batch(1 + i, (size, size)) for i, size in enumerate((32, 24, 32, 24))]

    def run(x: torch.Tensor) -> torch.Tensor:
        ready.wait()
        with torch.no_grad():
            return adapted(x)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, batches))
    for x, answer in zip(batches, found, strict=True):
        assert_answers(answer, torch_reference.answers(net(), x))


def test_adapting_imports_no_compiler_and_no_exporter() -> None:
    code = (
        "import sys, torch\n"
        "before = set(sys.modules)\n"
        "import sita_adapters as sita\n"
        "from torch import nn\n"
        "model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
        "sita.adapt(model.eval())(torch.rand(2, 3, 8, 8))\n"
        "heavy = ('torch._dynamo.', 'torch._inductor.', 'onnx.', 'sympy.')\n"
        "print(sorted(name for name in set(sys.modules) - before if f'{name}.'.startswith(heavy)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("mixes", [False, True])
def test_rounding_that_a_network_magnifies_is_told_from_mixing(mixes: bool) -> None:
    """As in untrained networks: rounding differs with the number of images."""

    def run(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * (1 + 2e-7 * (len(x) - 2))
        return self.net(torch.sin(3e4 * (y + 0.01 * y.mean(0, keepdim=True) if mixes else y)))

    adapted = sita.adapt(Around(run), "augbn")
    if mixes:
        with pytest.raises(ModelError, match="influence each other"):
            adapted(batch())
    else:
        assert adapted(batch()).isfinite().all()
