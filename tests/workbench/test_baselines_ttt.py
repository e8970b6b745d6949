"""TTT against a direct version, and what it must leave alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from nets import CLASSES, SmallNet, images, small
from torch import nn

from sita_adapters.errors import InputError, ModelError, OutputError
from sita_adapters.inputs import ENCODINGS
from sita_workbench.baselines import TTT
from sita_workbench.baselines.settings import TTTSettings, ttt_settings
from sita_workbench.baselines.views import random_of, rotated_views
from sita_workbench.methods import make_methods
from sita_workbench.models.loaded import LoadedModel

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
INPUTS = ENCODINGS["imagenet"]
SHARED = ["stem", "bn1", "conv2", "bn2", "block"]
SETTINGS = TTTSettings(steps=1, lr=0.1, batch=8)


class Turned(SmallNet):
    """The small network with a second head. Its forward does not call it."""

    def __init__(self, norm: Any = nn.BatchNorm2d) -> None:
        super().__init__(norm)
        self.rotation = nn.Sequential(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 4))
        self.ttt = {"head": "rotation", "shared": SHARED}


def turned(norm: Any = nn.BatchNorm2d) -> Turned:
    torch.manual_seed(1)
    model = Turned(norm)
    if norm is nn.BatchNorm2d:
        model.load_state_dict(small().state_dict(), strict=False)
    return model.eval()


def groups(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(4, channels)


def make(model: nn.Module, settings: TTTSettings | None = SETTINGS) -> TTT:
    return TTT(model, INPUTS, head="rotation", shared=SHARED, settings=settings)


def to_bytes(image: torch.Tensor) -> np.ndarray:
    """Invert the encoding of one image (3, h, w)."""
    intensities = image.double() * torch.tensor(STD).view(3, 1, 1) + torch.tensor(MEAN).view(3, 1, 1)
    return (255 * intensities).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()


def direct_ttt(model: Turned, image: torch.Tensor, settings: TTTSettings) -> tuple[Turned, torch.Tensor]:
    """Return the trained network and its scores: plain autograd through forward_features in training mode."""
    model = copy.deepcopy(model)
    random = random_of(to_bytes(image), 0)
    for _ in range(settings.steps):
        views, turns = rotated_views(to_bytes(image), settings.batch, random)
        x = (torch.from_numpy(views / 255) - torch.tensor(MEAN).double()) / torch.tensor(STD).double()
        x = x.float().double().permute(0, 3, 1, 2)  # views are encoded in float32
        model.train()
        probabilities = model.rotation[3](model.forward_features(x).mean((2, 3))).softmax(1)
        loss = -sum(p[turn].log() for p, turn in zip(probabilities, turns, strict=True)) / settings.batch
        trained = [parameter for name, parameter in model.named_parameters() if not name.startswith("head.")]
        for parameter, gradient in zip(trained, torch.autograd.grad(loss, trained), strict=True):
            parameter.data -= settings.lr * gradient
    model.eval()
    return model, model(image[None]).detach()


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, groups])
@pytest.mark.parametrize("steps", [1, 3])
def test_equals_the_direct_version(norm: Any, steps: int) -> None:
    model, batch = turned(norm).double(), images(3, 3, 16, 16).double()
    settings = TTTSettings(steps, 0.1, 8)
    ttt = make(model, settings)
    for image in batch:
        expected, scores = direct_ttt(model, image, settings)
        given = ttt(image[None])
        assert (scores - model(image[None])).abs().max() > 1e-2  # the steps do something
        torch.testing.assert_close(given, scores, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(ttt.body.state_dict(), expected.state_dict(), rtol=1e-5, atol=1e-5)


def test_first_statistics_are_a_tenth_of_the_batch() -> None:
    """The running statistics of the first layer after one step, in float64 without BatchNorm."""
    model, (image,) = turned(), images(1, 3, 16, 16)
    ttt = make(model)
    ttt(image[None])
    views, _ = rotated_views(to_bytes(image), 8, random_of(to_bytes(image), 0))
    x = ((torch.from_numpy(views / 255) - torch.tensor(MEAN)) / torch.tensor(STD)).permute(0, 3, 1, 2)
    features = nn.functional.conv2d(x, model.stem.weight.double(), padding=1).movedim(1, 0).flatten(1)
    mean, variance = 0.9 * model.bn1.running_mean + 0.1 * features.mean(1), features.var(1)
    torch.testing.assert_close(ttt.body.bn1.running_mean.double(), mean, rtol=1e-5, atol=1e-5)
    expected = 0.9 * model.bn1.running_var + 0.1 * variance
    torch.testing.assert_close(ttt.body.bn1.running_var.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", [nn.BatchNorm2d, groups])
def test_images_are_independent_and_nothing_is_kept(norm: Any) -> None:
    batch = images(4, 3, 16, 16)
    ttt = make(turned(norm))
    together = ttt(batch)
    assert together.shape == (4, CLASSES)
    for index in (2, 0, 3, 1):
        assert torch.equal(ttt(batch[index : index + 1]), together[index : index + 1])
    assert torch.equal(make(turned(norm))(batch), together)


@pytest.mark.parametrize("outer", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_runs_where_gradients_are_off(outer: Callable[[], Any]) -> None:
    model, batch = turned(), images(2, 3, 16, 16)
    expected = make(model)(batch)
    assert not expected.requires_grad
    with outer():
        assert torch.equal(make(model)(batch.clone()), expected)


@pytest.mark.parametrize("training", [False, True])
def test_the_model_stays_as_it_was(training: bool) -> None:
    model = turned().train(training)
    tensors = copy.deepcopy(model.state_dict())

    def state() -> list[Any]:
        parameters = [(id(p), p.data_ptr(), p.requires_grad, p.grad) for p in model.parameters()]
        return parameters + [(m.training, len(m._forward_hooks)) for m in model.modules()]

    before = state()
    make(model)(images(2, 3, 16, 16))
    assert state() == before
    torch.testing.assert_close(dict(model.state_dict()), dict(tensors), rtol=0, atol=0)


def test_layers_are_named_or_given() -> None:
    model, batch = turned(), images(2, 3, 16, 16)
    expected = make(model)(batch)
    layers = [getattr(model, name) for name in SHARED]
    assert torch.equal(TTT(model, INPUTS, head=model.rotation, shared=layers, settings=SETTINGS)(batch), expected)
    outside, model.rotation = model.rotation, nn.Identity()  # a head that is not part of the model
    assert torch.equal(TTT(model, INPUTS, head=outside, shared=SHARED, settings=SETTINGS)(batch), expected)


def test_fewer_shared_layers_train_less() -> None:
    ttt = TTT(turned(), INPUTS, head="rotation", shared="block", settings=SETTINGS)
    ttt(images(1, 3, 16, 16))
    changed = {name for name, p in ttt.body.named_parameters() if not torch.equal(p, turned().get_parameter(name))}
    assert {name.partition(".")[0] for name in changed} == {"block", "rotation"}
    assert torch.equal(ttt.body.bn1.running_mean, turned().bn1.running_mean)


def test_what_does_not_fit_is_refused() -> None:
    model, batch = turned(), images(1, 3, 16, 16)
    with pytest.raises(ModelError, match=r"head: expected a layer of Turned; received 'rotations'.*Did you mean 'rota"):
        TTT(model, INPUTS, head="rotations", shared=SHARED)
    with pytest.raises(ModelError, match="shared: expected a layer of Turned; received a Linear outside"):
        TTT(model, INPUTS, head="rotation", shared=nn.Linear(2, 2))
    with pytest.raises(ModelError, match="received none"):
        TTT(model, INPUTS, head="rotation", shared=[])
    with pytest.raises(ModelError, match="did not call"):
        TTT(model, INPUTS, head="rotation", shared="rotation")(batch)
    model.rotation[3] = nn.Linear(16, 5)
    with pytest.raises(OutputError, match=r"\(32, 4\); received \(32, 5\)"):
        make(model, None)(batch)
    with pytest.raises(InputError, match="square"):
        make(turned())(images(1, 3, 16, 24))


def test_sita_bench_takes_models_that_name_their_head() -> None:
    (_, method), batch = make_methods("ttt", "classification"), images(2, 3, 16, 16)
    loaded = LoadedModel("mine.py:load", turned(), INPUTS)
    prepared = method.prepare(loaded)
    assert torch.equal(prepared(batch), make(turned(), ttt_settings((16, 16)))(batch))
    with pytest.raises(ModelError, match=r"model\.ttt.*or leave ttt out"):
        method.prepare(LoadedModel("small", small(), INPUTS))
