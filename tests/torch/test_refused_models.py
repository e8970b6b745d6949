"""Models that are refused with an error whose advice works."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch_reference
from around import Around, advised_layers, batch, net
from torch import nn
from torch.nn import functional
from torch_reference import assert_answers

import sita_adapters as sita
from sita_adapters.errors import InputError, ModelError, OutputError, RecipeError


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


class Frozen(nn.Module):
    """As detectors have it: ε is a number in its forward."""

    def __init__(self, channels: int, hidden: float = 1e-5) -> None:
        super().__init__()
        self.hidden = hidden
        self.register_buffer("running_mean", torch.linspace(0, 1, channels))
        self.register_buffer("running_var", torch.linspace(0.5, 2, channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean, variance = (each.reshape(1, -1, 1, 1) for each in (self.running_mean, self.running_var))
        return (x - mean) * (variance + self.hidden).rsqrt()


def test_a_layer_without_eps_is_taken_to_have_the_usual_one_and_refused_if_it_has_another() -> None:
    def model(hidden: float) -> nn.Module:
        return nn.Sequential(Frozen(3, hidden), nn.Flatten(), nn.Linear(192, 5)).eval()

    images = torch.rand(2, 3, 8, 8)
    usual, other = model(1e-5), model(1e-2)
    norm = nn.BatchNorm2d(3, affine=False)
    norm.load_state_dict({**norm.state_dict(), **usual[0].state_dict()})
    expected = torch_reference.answers(nn.Sequential(norm, *usual[1:]).eval(), images, "bn")
    assert_answers(sita.adapt(usual, "bn")(images), expected)
    with pytest.raises(ModelError, match=r"0 \(Frozen\) does not normalize.*Without an attribute `eps`, ε is 1e-5"):
        sita.adapt(other, "bn")(images)
    other[0].eps = 1e-2
    sita.adapt(other, "bn")(images)


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
