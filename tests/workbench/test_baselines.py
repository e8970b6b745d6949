"""TENT and MEMO against straightforward versions of both, and what they must leave alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from nets import CLASSES, dense, images, small
from torch import nn

import sita_adapters as sita
from sita_adapters.errors import InputError, ModelError, OutputError
from sita_adapters.inputs import ENCODINGS
from sita_workbench.baselines import BASELINES, Memo, Tent
from sita_workbench.baselines.settings import TentSettings
from sita_workbench.models.loaded import LoadedModel

EVERY = pytest.mark.parametrize("name", [name for name, each in BASELINES.items() if each.torch and name != "ttt"])
INPUTS = ENCODINGS["imagenet"]


def prepare(name: str, model: nn.Module) -> nn.Module:
    return BASELINES[name].prepare(LoadedModel("small", model, INPUTS))


def entropy(scores: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Categorical(logits=scores.movedim(1, -1)).entropy()


def direct_tent(model: nn.Module, image: torch.Tensor, steps: int = 5, lr: float = 1e-3) -> torch.Tensor:
    model = copy.deepcopy(model).requires_grad_(False)
    affine = []
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train()
            module.track_running_stats, module.running_mean, module.running_var = False, None, None
            affine += [module.weight.requires_grad_(), module.bias.requires_grad_()]
    optimizer = torch.optim.Adam(affine, lr=lr, fused=False)
    for _ in range(steps):
        optimizer.zero_grad()
        entropy(model(image)).mean().backward()
        optimizer.step()
    return model(image).detach()


@pytest.mark.parametrize(
    ("make", "steps", "lr"),
    [(small, 5, 1e-3), (lambda: small("TokenNet"), 2, 1e-2), (dense, 2, 1e-2)],
    ids=["classes", "tokens", "pixels"],
)
def test_tent_equals_the_direct_version(make: Callable[[], nn.Module], steps: int, lr: float) -> None:
    model, batch = make(), images(3, 3, 16, 16)
    expected = torch.cat([direct_tent(model, image[None], steps, lr) for image in batch])
    given = Tent(model, settings=TentSettings(steps, lr))(batch)
    assert (expected - direct_tent(model, batch[:1], 0)).abs().max() > 1e-2  # the steps do something
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=2e-5)


def without_batchnorm() -> nn.Module:
    torch.manual_seed(0)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), *head)


@EVERY
def test_images_of_a_batch_are_independent_and_nothing_is_kept(name: str) -> None:
    baseline, batch = prepare(name, small()), images(4, 3, 16, 16)
    together = baseline(batch)
    assert together.shape == (4, CLASSES)
    for index in (2, 0, 3, 1):
        assert torch.equal(baseline(batch[index : index + 1]), together[index : index + 1])
    assert torch.equal(prepare(name, small())(batch), together)


@EVERY
@pytest.mark.parametrize("outer", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_runs_where_gradients_are_off(name: str, outer: Callable[[], Any]) -> None:
    model, batch = small(), images(2, 3, 16, 16)
    expected = prepare(name, model)(batch)
    assert not expected.requires_grad
    with outer():
        assert torch.equal(prepare(name, model)(batch.clone()), expected)
        assert not torch.is_grad_enabled()


@EVERY
@pytest.mark.parametrize("training", [False, True])
def test_the_model_stays_as_it_was(name: str, training: bool) -> None:
    model = small().train(training)
    model.stem.requires_grad_(False)
    model.bn1.register_forward_hook(lambda *_: None)
    tensors = copy.deepcopy(model.state_dict())

    def state() -> list[Any]:
        parameters = [(id(p), p.data_ptr(), p.requires_grad, p.grad) for p in model.parameters()]
        return parameters + [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]

    before = state()
    prepare(name, model)(images(2, 3, 16, 16))
    assert state() == before
    torch.testing.assert_close(dict(model.state_dict()), dict(tensors), rtol=0, atol=0)


def test_models_that_they_cannot_train_are_refused() -> None:
    with pytest.raises(ModelError, match="γ and β"):
        Tent(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False)))
    for name in ("tent", "memo", "mixnorm"):
        with pytest.raises(ModelError, match="adapted"):
            prepare(name, sita.adapt(small()))
    with pytest.raises(OutputError, match=r"2 classes.*\(1, 1, 16, 16\)"):
        Tent(dense(classes=1))(images(1, 3, 16, 16))
    with pytest.raises(OutputError, match="segmentation"):
        Memo(dense(), INPUTS)(images(1, 3, 16, 16))
    pooled = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(8), nn.Flatten())
    with pytest.raises(InputError, match="one value per channel"):
        Tent(pooled)(images(1, 3, 16, 16))
