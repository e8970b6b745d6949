"""Models that write, fold, mix, hide and forward: an answer is right, or an error says why. The source stays."""

from __future__ import annotations

import copy
import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import sita_adapters as sita
from sita_torch.inspection import epsilon_of

SIDE = 12


def encoder(channels: int = 3) -> nn.Sequential:
    """Conv–BatchNorm–ReLU twice, pool, linear, with statistics of images that are not the tests'."""
    torch.manual_seed(1)
    model = nn.Sequential(
        *(nn.Conv2d(channels, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
        *(nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
    )
    for layer in model:
        if isinstance(layer, nn.BatchNorm2d):
            layer.momentum = None
            nn.init.uniform_(layer.weight, 0.5, 1.5)
            nn.init.normal_(layer.bias)
    model.train()
    model(torch.randn(16, channels, SIDE, SIDE) * 2 + 1)
    return model.eval()


def batch(count: int = 4) -> torch.Tensor:
    return torch.rand(count, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(5))


class Around(nn.Module):
    """An encoder, with whatever a test puts around it."""

    def __init__(
        self, prepare: Callable[[Any], Any] = lambda self: None, forward: Callable[..., Any] | None = None
    ) -> None:
        super().__init__()
        self.e = encoder()
        self.run = forward
        prepare(self)
        self.eval()

    def forward(self, *args: Any) -> Any:
        return self.e(*args) if self.run is None else self.run(self, *args)


def buffer(name: str, value: torch.Tensor) -> Callable[[nn.Module], None]:
    return lambda self: self.register_buffer(name, value)


def attribute(name: str, value: Any) -> Callable[[Any], None]:
    return lambda self: setattr(self, name, value)


def running_centre(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.centre.mul_(0.9).add_(0.1 * x.mean())
    return self.e(x)


def warming_up(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.warmth.mul_(0.9).add_(0.1)
    return self.e(x) + self.warmth


def counting(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.calls += 1
    return self.e(x) + self.calls


def collecting(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.sizes.append(len(x))
    self.last = x
    return self.e(x) + len(self.sizes)


def loose(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.tensors["a"] += len(x)
    return self.e(x)


WRITERS = {
    "a buffer": (buffer("centre", torch.zeros(())), running_centre, 0.0),
    "a buffer that is read": (buffer("warmth", torch.zeros(())), warming_up, 0.1),
    "a counter": (attribute("calls", 0), counting, 1.0),
    "a list": (attribute("sizes", []), collecting, 1.0),
    "a tensor in a dict": (attribute("tensors", {"a": torch.zeros(2)}), loose, 0.0),
}


@pytest.mark.parametrize("case", WRITERS)
def test_what_a_forward_writes_reaches_neither_the_source_nor_the_next_call(case: str) -> None:
    prepare, forward, offset = WRITERS[case]
    model, untouched = Around(prepare, forward), copy.deepcopy(Around(prepare, forward))
    adapted, expected = sita.adapt(model, "ops"), sita.adapt(encoder(), "ops")(batch()) + offset
    answers: list[torch.Tensor] = []
    threads = [threading.Thread(target=lambda: answers.append(adapted(batch()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    limited = sita.adapt(model, "ops", max_rows=6)
    alone = torch.cat([adapted(image[None]) for image in batch()])
    for answer in (*answers, adapted(batch()), alone, limited(batch())):
        torch.testing.assert_close(answer, expected, rtol=1e-5, atol=1e-5)
    for name, value in untouched.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    plain = {name: value for name, value in vars(model).items() if name in ("calls", "sizes", "last")}
    assert plain == {name: value for name, value in vars(untouched).items() if name in plain}
    assert torch.equal(vars(model).get("tensors", {"a": torch.zeros(2)})["a"], torch.zeros(2))


def test_a_model_that_answers_by_its_state_is_not_compiled() -> None:
    adapted = sita.adapt(Around(*WRITERS["a counter"][:2]), "augbn", example=batch())
    torch._dynamo.reset()
    with pytest.raises(Exception, match="what earlier calls left in it"):
        torch.compile(adapted, backend="eager", fullgraph=True)(batch())
    answer = torch.compile(adapted, backend="eager")(batch())  # by the way of an uncompiled call
    torch.testing.assert_close(answer, sita.adapt(encoder(), "augbn")(batch()) + 1)


@pytest.mark.parametrize("way", ["in place", "load_state_dict", "compiled"])
def test_buffers_follow_the_source_as_weights_do(way: str) -> None:
    model = Around(buffer("scale", torch.tensor(1.0)), lambda self, x: self.e(x) * self.scale)
    adapted = sita.adapt(model, "augbn")
    run = torch.compile(adapted, backend="eager", fullgraph=True) if way == "compiled" else adapted
    before = run(batch())
    if way == "load_state_dict":
        state = copy.deepcopy(model.state_dict())
        state["scale"], state["e.8.weight"] = torch.tensor(3.0), 2 * state["e.8.weight"]
        model.load_state_dict(state)
    else:
        model.scale.fill_(3.0)
    after = run(batch())
    torch.testing.assert_close(after, sita.adapt(model, "augbn")(batch()))
    assert not torch.allclose(before, after)


def test_a_tensor_that_is_a_plain_attribute_follows_the_source_when_it_is_replaced() -> None:
    model = Around(attribute("scale", torch.tensor(1.0)), lambda self, x: self.e(x) * self.scale)
    adapted = sita.adapt(model, "augbn")
    before = adapted(batch())
    for factor in (3.0, 0.5):
        model.scale = torch.tensor(factor)
        torch.testing.assert_close(adapted(batch()), factor * before)
        model.scale += 1
        torch.testing.assert_close(adapted(batch()), (factor + 1) * before)


class Magnifying(nn.Module):
    """Makes much of rounding, which differs with the number of images, as untrained networks do."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.first, self.norm, self.rest, self.mixes = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), encoder(), mixes

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x) * (1 + 2e-7 * (len(x) - 2))
        if self.mixes:
            y = y + 0.01 * y.mean(0, keepdim=True)
        return self.rest(self.norm(torch.sin(3e4 * y)))


def test_rounding_that_is_magnified_is_no_mixing() -> None:
    torch.manual_seed(0)
    sita.adapt(Magnifying(mixes=False).eval(), "augbn")(batch())
    with pytest.raises(sita.InputError, match="Images mix"):
        sita.adapt(Magnifying(mixes=True).eval(), "augbn")(batch())


class Forgetful(nn.Module):
    """Keeps what it computed, and forgets it when `train` or `eval` is called, as timm's attention with biases does."""

    def __init__(self) -> None:
        super().__init__()
        self.e, self.bias, self.kept = encoder(), nn.Parameter(torch.arange(5.0)), {}

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.kept = {}
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if "bias" not in self.kept:
            self.kept["bias"] = 2 * self.bias
        return self.e(x) + self.kept["bias"]


def test_what_a_model_forgets_when_its_mode_is_set() -> None:
    model = Forgetful().eval()
    model(batch())
    expected = sita.adapt(encoder(), "augbn")(batch()) + 2 * torch.arange(5.0)
    adapted = sita.adapt(model, "augbn")
    for _ in range(2):
        torch.testing.assert_close(adapted(batch()), expected)
    assert list(model.kept) == ["bias"]


def test_weights_that_were_replaced_are_an_error() -> None:
    model = encoder()
    adapted = sita.adapt(model, "augbn")
    adapted(batch())
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    adapted(batch())  # the same values
    model.load_state_dict({name: 2 * value for name, value in model.state_dict().items()}, assign=True)
    with pytest.raises(sita.SharedWeightsError, match=r"'0.weight' of the source model was replaced.*again"):
        adapted(batch())
    other = encoder()
    adapted = sita.adapt(other, "augbn")
    other[0].weight.data = torch.zeros_like(other[0].weight)
    with pytest.raises(sita.SharedWeightsError, match="replaced"):
        adapted(batch())


def test_a_clone_that_moved_or_was_copied_is_by_itself() -> None:
    model = Around(buffer("scale", torch.tensor(1.0)), lambda self, x: self.e(x) * self.scale)
    adapted = sita.adapt(model, "augbn")
    copied, doubled = copy.deepcopy(adapted), sita.adapt(model, "augbn").double()
    answer = adapted(batch())
    model.scale.fill_(3.0)
    torch.testing.assert_close(copied(batch()), answer)
    torch.testing.assert_close(doubled(batch().double()).float(), answer)


class TwoImages(nn.Module):
    """Two images a sample, concatenated to one batch."""

    def __init__(self) -> None:
        super().__init__()
        self.e = encoder()

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        first, second = self.e(torch.cat([a, b])).chunk(2)
        return first - second


def without_nan(self: Any, x: torch.Tensor) -> torch.Tensor:
    return self.e(torch.nan_to_num(x) - torch.nan_to_num(x).mean(0))


MIXING = {
    "the batch's mean": lambda self, x: self.e(x - x.mean(0, keepdim=True)),
    "another order at a layer": lambda self, x: self.e(x.flip(0)).flip(0),
    "another order": lambda self, x: self.e(x).flip(0),
    "without NaN": without_nan,
    "after the layers": lambda self, x: self.e(x) - self.e(x).mean(0),
}


@pytest.mark.parametrize("case", MIXING)
def test_images_that_mix_are_an_error(case: str) -> None:
    model = Around(forward=MIXING[case])
    constant = [torch.full((1, 3, SIDE, SIDE), value) for value in (torch.nan, 0.5, 1e20)]
    for images in (batch(), batch(1), *constant, 0.5 + 1e-6 * batch(), 1e-40 * batch()):
        with pytest.raises((sita.InputError, sita.OutputError), match="Images mix"):
            sita.adapt(model, "ops")(images)
    with pytest.raises((sita.InputError, sita.OutputError), match="Images mix"):
        sita.adapt(model, "ops", example=batch())
    whole_numbers = Around(forward=lambda self, x: MIXING[case](self, x.float() / 255))
    with pytest.raises((sita.InputError, sita.OutputError), match="Images mix"):
        sita.adapt(whole_numbers, "ops", augment="lossless")((255 * batch()).to(torch.uint8))


def test_two_images_a_sample_are_an_error_if_they_are_concatenated() -> None:
    with pytest.raises(sita.InputError, match=r"Images mix.*'e.1'"):
        sita.adapt(TwoImages().eval(), "ops")(batch(), batch().flip(3))


def test_a_model_that_draws_random_numbers_is_told_from_one_that_mixes() -> None:
    model = Around(forward=lambda self, x: self.e(functional.dropout(x, 0.5, True)))
    state = torch.get_rng_state()
    with pytest.raises(sita.InputError, match=r"draws random numbers"):
        sita.adapt(model, "ops")(batch())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_for_one_number_of_images_says_so() -> None:
    with pytest.raises(sita.InputError, match=r"fails on 2 images.*any number"):
        sita.adapt(Around(forward=lambda self, x: self.e(x.reshape(4, 3, SIDE, SIDE))), "ops")(batch())


def test_trials_are_held_once_for_each_kind_of_input_and_leave_no_trace() -> None:
    rows: list[int] = []
    model = Around()
    adapted = sita.adapt(model, "augbn")
    adapted.e[0].register_forward_hook(lambda _, inputs, __: rows.append(len(inputs[0])))
    with sita.observe(adapted) as seen:
        for image in (batch(2), torch.rand(1, 3, 20, 14), batch(3)):
            adapted(image)
    assert rows == [3 * 2, 3, 3 * 3]  # the image and two views
    assert len(seen) == 6
    assert len(adapted._sita.findings) == 1
    adapted(batch(1).double().float().bfloat16().float())
    assert len(adapted._sita.findings) == 1


class Forwarding(nn.Module):
    """Has every attribute of the layer inside, as PEFT's wrappers do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


@pytest.mark.parametrize("wrap", [Forwarding, functools.partial(torch.compile, backend="eager")])
def test_a_layer_that_a_wrapper_forwards_to_is_adapted_once(wrap: Any) -> None:
    model = encoder()
    model[1] = wrap(model[1])
    adapted = sita.adapt(model, "ops")
    torch.testing.assert_close(adapted(batch()), sita.adapt(encoder(), "ops")(batch()))
    assert len(sita.describe(adapted).adapted) == 2


class Plain:
    """Not a module."""


def in_an_object(self: Any) -> None:
    self.helper = Plain()
    self.helper.e = self.e
    del self.e


def only_in_a_function(self: Any) -> None:
    hidden = self.e
    del self.e
    self.f = lambda x: hidden(x) + 0


def in_a_nested_function(self: Any) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return self.e(x) + 0

    self.f = lambda x: inner(x) + 0


HOLDERS = {
    "a lambda over self": (lambda self: setattr(self, "f", lambda x: self.e(x) + 0), lambda self, x: self.f(x)),
    "a function in a lambda": (in_a_nested_function, lambda self, x: self.f(x)),
    "a default": (lambda self: setattr(self, "f", lambda x, e=self.e: e(x)), lambda self, x: self.f(x)),
    "a bound method": (lambda self: setattr(self, "f", [self.e.forward]), lambda self, x: self.f[0](x)),
    "an object": (in_an_object, lambda self, x: self.helper.e(x)),
    "a function alone": (only_in_a_function, lambda self, x: self.f(x)),
    "a hook": (lambda self: self.e[1].register_forward_hook(lambda _, __, out: self.e[2](out)), None),
}


@pytest.mark.parametrize("case", HOLDERS)
def test_functions_and_objects_run_the_clones_layers(case: str) -> None:
    prepare, forward = HOLDERS[case]
    model = Around(prepare, forward)
    expected = sita.adapt(encoder(), "ops")(batch())
    torch.testing.assert_close(sita.adapt(model, "ops")(batch()), expected)
    for item in model.modules():
        item.training = True  # a clone that ran the source's layers would change their statistics
    before = copy.deepcopy(model.state_dict())
    torch.testing.assert_close(sita.adapt(model, "ops")(batch()), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class ClassLayer(nn.Module):
    """Its encoder is the class's, not the instance's."""

    shared = encoder()

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))
        self.eval()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.shared(x))


def layer_by_layer(self: Any, x: torch.Tensor) -> torch.Tensor:
    return functools.reduce(lambda y, layer: layer(y), self.steps, x)


def steps_of(self: Any) -> None:
    self.steps = [layer.forward if isinstance(layer, nn.BatchNorm2d) else layer for layer in self.e]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Around(lambda self: setattr(self, "r", weakref.ref(self)), lambda self, x: self.r().e(x)), "not its"),
        (ClassLayer, "not its copy's"),
        (lambda: Around(steps_of, layer_by_layer), "statistics of layer 'e.1' outside of a call"),
    ],
    ids=["weak reference", "class attribute", "forward by itself"],
)
def test_layers_that_cannot_be_reached_are_named(make: Any, words: str) -> None:
    model = make()
    with pytest.raises(sita.BypassError, match=words):
        sita.adapt(model, "ops")(batch())


def test_arithmetic_without_a_layer_is_named() -> None:
    def prepare(self: nn.Module) -> None:
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("variance", torch.ones(3))

    model = Around(prepare, lambda self, x: self.e(functional.batch_norm(x, self.mean, self.variance)))
    with pytest.warns(sita.SitaWarning, match="belong to no BatchNorm layer"):
        sita.adapt(model, "ops")(batch())


OUTPUTS: dict[str, tuple[Any, Any]] = {
    "a constant": (lambda s: (s, torch.ones(3, 2)), lambda a, s: torch.equal(a[1], torch.ones(3, 2))),
    "a scale": (lambda s: {"logits": s, "scale": torch.tensor(2.0)}, lambda a, s: a["scale"] == 2),
    "stacked": (lambda s: torch.stack([s, 2 * s]), lambda a, s: torch.allclose(a, torch.stack([s, 2 * s]))),
    "time first": (lambda s: s.t()[:, :, None], lambda a, s: torch.allclose(a, s.t()[:, :, None])),
}


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize("case", OUTPUTS)
def test_the_axis_of_the_images_is_found(case: str, count: int) -> None:
    wrap, check = OUTPUTS[case]
    adapted = sita.adapt(Around(forward=lambda self, x: wrap(self.e(x))), "augbn")
    assert check(adapted(batch(count)), sita.adapt(encoder(), "augbn")(batch(count)))
    limited = sita.adapt(Around(forward=lambda self, x: wrap(self.e(x))), "augbn", max_rows=3)
    assert check(limited(batch(count)), sita.adapt(encoder(), "augbn")(batch(count)))


@pytest.mark.parametrize("max_rows", [None, 6, 40])
def test_scores_that_are_there_twice_are_voted_on_in_both_places(max_rows: int | None) -> None:
    model = Around(forward=lambda self, x: {"out": (scores := self.e(x)), "more": [scores]})
    answer = sita.adapt(model, "ops", max_rows=max_rows)(batch())
    assert torch.equal(answer["out"], answer["more"][0])
    torch.testing.assert_close(answer["out"], sita.adapt(encoder(), "ops")(batch()))


@pytest.mark.parametrize(
    ("wrap", "words"),
    [
        (lambda s: {"logits": s, "labels": s.argmax(1).tolist()}, "Python list"),
        (lambda s: {"logits": s, "count": len(s)}, "2 at count for two images and 3"),
        (lambda s: (s, s @ s.t()), "not clear"),
        (lambda s: (s, s.repeat(2, 1)), "folded in"),
        (lambda s: (s, s[s[:, 0] > s[:, 0].mean()]), "for each image"),
        (lambda s: torch.stack([s, s]), "images on axis 1"),
    ],
    ids=["labels", "a count", "similarities", "folded", "a selection", "a vote on the second axis"],
)
def test_outputs_that_views_would_get_into_are_an_error(wrap: Any, words: str) -> None:
    with pytest.raises(sita.OutputError, match=words):
        sita.adapt(Around(forward=lambda self, x: wrap(self.e(x))), "ops")(batch(2))


def test_outputs_of_another_size_than_in_the_trial_are_an_error() -> None:
    """Three entries, of the rows of four images, would pass for one image's."""
    model = Around(forward=lambda self, x: self.e(x)[:3])
    with pytest.raises(sita.OutputError, match=r"to have 12 entries on axis 0.*received shape \(3, 5\)"):
        sita.adapt(model, "augbn")(batch(4))


@pytest.mark.parametrize("wrap", [lambda s: (s, torch.ones(3, 2)), lambda s: torch.stack([s, s])])
def test_compilers_need_an_example_where_outputs_are_not_simple(wrap: Any) -> None:
    model = Around(forward=lambda self, x: wrap(self.e(x)))
    torch._dynamo.reset()  # it leaves functions alone in which something was raised before
    with pytest.raises(Exception, match="example="):
        torch.compile(sita.adapt(model, "augbn"), backend="eager", fullgraph=True)(batch(2))
    adapted = sita.adapt(model, "augbn", example=batch(2))
    answer = torch.compile(adapted, backend="eager", fullgraph=True)(batch(2))
    assert all(torch.allclose(a, b) for a, b in zip(answer, adapted(batch(2)), strict=True))


class FrozenBatchNorm(nn.Module):
    """As the DETR family has it: no attribute holds ε."""

    def __init__(self, norm: nn.BatchNorm2d, shape: tuple[int, ...] = (-1,), epsilon: float = 1e-5) -> None:
        super().__init__()
        self.hidden = (epsilon,)
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, getattr(norm, name).detach().clone().reshape(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight, bias, mean, variance = (tensor.reshape(1, -1, 1, 1) for tensor in self.buffers())
        scale = weight * (variance + self.hidden[0]).rsqrt()
        return x * scale + (bias - mean * scale)


@pytest.mark.parametrize("shape", [(-1,), (1, -1, 1, 1)])
def test_frozen_layers_without_an_epsilon_are_adapted(shape: tuple[int, ...]) -> None:
    model = encoder()
    model[1], model[4] = FrozenBatchNorm(model[1], shape), FrozenBatchNorm(model[4], shape)
    adapted = sita.adapt(model, "ops")
    assert [layer.channels for layer in sita.describe(adapted).layers] == [6, 8]
    torch.testing.assert_close(adapted(batch()), sita.adapt(encoder(), "ops")(batch()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("epsilon", [0.0, 1e-12, 1e-5, 1e-3])
def test_an_epsilon_is_read_off_to_the_last_digit(epsilon: float) -> None:
    """Whatever the variances are: beside a large one, a small one of the same layer needs it exactly."""
    norm = nn.BatchNorm2d(6)
    norm.running_var.copy_(torch.logspace(-6, 6, 6))
    layer = FrozenBatchNorm(norm, epsilon=epsilon)
    assert epsilon_of(layer) == pytest.approx(epsilon, rel=1e-12, abs=1e-27)


def test_running_statistics_that_are_no_batchnorms_are_refused() -> None:
    class Other(FrozenBatchNorm):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.clamp(max=self.running_mean.max())

    model = encoder()
    model[1] = Other(model[1])
    with pytest.raises(sita.NoBatchNormError, match=r"Other has running_mean.*layers="):
        sita.adapt(model, "ops")
    assert sita.adapt(model, "ops", layers="4")(batch()).shape == (4, 5)


class NoReturn(Around):
    """Its `train` returns nothing."""

    def train(self, mode: bool = True) -> None:  # type: ignore[override]
        super().train(mode)


def wide_first(self: Any) -> None:
    e = self.e
    del self.e
    self.later, self.e = nn.Conv2d(SIDE, 3, 1), e


@pytest.mark.parametrize(
    "make",
    [
        lambda: Around(attribute("modules", [1, 2])),
        lambda: Around(attribute("parameters", None)),
        NoReturn,
        lambda: Around(wide_first),
    ],
    ids=["modules overwritten", "parameters overwritten", "train returns nothing", "a wide convolution first"],
)
def test_unusual_modules_are_adapted(make: Any) -> None:
    adapted = sita.adapt(make(), "ops")
    torch.testing.assert_close(adapted(batch()), sita.adapt(encoder(), "ops")(batch()))
    assert adapted.eval() is adapted
    torch.testing.assert_close(sita.unwrap(adapted)(batch()), encoder()(batch()))


def test_feature_extractors_are_adapted() -> None:
    import torchvision_as_installed as torchvision
    from torchvision.models.feature_extraction import create_feature_extractor

    torch.manual_seed(0)
    model, images = torchvision.models.resnet18(num_classes=5).eval(), torch.rand(2, 3, 48, 48)
    adapted = sita.adapt(create_feature_extractor(model, {"layer2": "features", "fc": "logits"}).eval(), "augbn")
    answer = adapted(images)
    torch.testing.assert_close(answer["logits"], sita.adapt(model, "augbn")(images))
    assert answer["features"].shape == (2, 128, 6, 6)
    torch.testing.assert_close(sita.unwrap(adapted)(images)["logits"], model(images))


class Merging(Around):
    """A method that writes to the weights, as PEFT has."""

    def merge_and_unload(self) -> None:
        self.e[0].weight.data += 1


@pytest.mark.parametrize(
    "write",
    [
        lambda adapted: adapted.merge_and_unload(),
        lambda adapted: adapted.apply(lambda module: module),
        lambda adapted: adapted.requires_grad_(),
    ],
    ids=["merge_and_unload", "apply", "requires_grad_"],
)
def test_what_would_write_to_the_source_is_refused(write: Any) -> None:
    with pytest.raises(sita.SharedWeightsError, match="Remedy"):
        write(sita.adapt(Merging(), "ops"))


def test_an_optimiser_of_an_adapted_model_has_nothing_to_do() -> None:
    model = encoder()
    before, adapted = copy.deepcopy(model.state_dict()), sita.adapt(model, "augbn")
    optimiser = torch.optim.SGD(adapted.parameters(), 1.0, weight_decay=0.1)
    with pytest.raises(RuntimeError, match="does not require grad"):
        adapted(batch()).sum().backward()
    images = batch().requires_grad_()
    adapted(images).sum().backward()
    optimiser.step()
    assert images.grad is not None
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.requires_grad for p in model.parameters())
    assert all(p.requires_grad for p in sita.unwrap(adapted).parameters())


def test_fusing_an_adapted_model_does_not_give_the_source_back() -> None:
    from torch.fx.experimental.optimization import fuse

    with pytest.raises(sita.BypassError):
        fuse(sita.adapt(encoder(), "augbn"))(batch())
    with pytest.raises(AssertionError, match="did not find fuser method"):
        torch.ao.quantization.fuse_modules(sita.adapt(encoder(), "augbn"), [["0", "1"]])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("recipe", ["ops", "augbn", "bn", "shift"])
@pytest.mark.parametrize("size", [1e18, 1e19, 1e20, 1e25])
def test_huge_images_have_finite_answers(recipe: str, layout: torch.memory_format, size: float) -> None:
    images = (size * batch()).contiguous(memory_format=layout)
    expected = sita.adapt(encoder().double(), recipe)(images.double())
    torch.testing.assert_close(sita.adapt(encoder(), recipe)(images).double(), expected, rtol=1e-5, atol=0)


def test_a_graph_never_takes_a_variance_that_overflows_for_a_number() -> None:
    """A graph cannot start again in double precision."""
    graph = torch.export.export(sita.adapt(encoder(), "augbn"), (batch(),)).module()
    assert graph(1e20 * batch()).isnan().all()
    torch.testing.assert_close(graph(batch()), sita.adapt(encoder(), "augbn")(batch()))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("recipe", ["ops", "augbn"])
def test_huge_rows_without_variance_have_finite_answers(recipe: str, pooled: bool, grad: bool) -> None:
    torch.manual_seed(1)
    norm = [nn.Flatten(), nn.BatchNorm1d(5)] if pooled else [nn.BatchNorm2d(5), nn.Flatten()]
    first = [nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.AdaptiveAvgPool2d(1)]
    model = nn.Sequential(*first, *norm).eval()
    expected = sita.adapt(copy.deepcopy(model).double(), recipe)(1e25 * batch().double())
    answer = sita.adapt(model, recipe)((1e25 * batch()).requires_grad_(grad))
    torch.testing.assert_close(answer.detach().double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("forward", "argument"),
    [
        (lambda self, d: self.e(d["images"]) + d["bias"][:, None], {"bias": torch.arange(4.0), "images": batch()}),
        (lambda self, pair: self.e(pair[0]) + self.e(pair[1]), [batch(), batch()]),
    ],
    ids=["dict", "list"],
)
def test_images_may_come_in_dicts_and_lists(forward: Any, argument: Any) -> None:
    scores = sita.adapt(encoder(), "augbn")(batch())
    expected = scores + torch.arange(4.0)[:, None] if isinstance(argument, dict) else 2 * scores
    torch.testing.assert_close(sita.adapt(Around(forward=forward), "augbn")(argument), expected)


@pytest.mark.parametrize("transform", ["vmap", "jvp"])
def test_function_transforms_are_refused(transform: str) -> None:
    adapted = sita.adapt(encoder(), "ops")
    run = {
        "vmap": lambda: torch.func.vmap(adapted)(batch()[:, None]),
        "jvp": lambda: torch.func.jvp(adapted, (batch(),), (batch(),)),
    }[transform]
    with pytest.raises(sita.InputError, match=r"torch\.func"):
        run()


def test_parametrised_and_subclassed_weights_stay_shared() -> None:
    model = encoder()
    nn.utils.parametrizations.weight_norm(model[0])
    nn.utils.spectral_norm(model[3])
    model.eval()
    adapted = sita.adapt(model, "augbn")
    adapted(batch())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    torch.testing.assert_close(adapted(batch()), sita.adapt(model, "augbn")(batch()))
