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
from sita_workbench.baselines import BASELINES, Memo, Tent, draw_views

EVERY = pytest.mark.parametrize("name", list(BASELINES))


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


def direct_memo(model: nn.Module, image: torch.Tensor, views: torch.Tensor, lr: float = 5e-3) -> torch.Tensor:
    model = copy.deepcopy(model).requires_grad_(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    mean = model(views).softmax(1).mean(0)
    (-(mean * mean.log()).sum()).backward()
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
    given = Tent(model, steps=steps, lr=lr)(batch)
    assert (expected - direct_tent(model, batch[:1], 0)).abs().max() > 1e-2  # the steps do something
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=2e-5)


def without_batchnorm() -> nn.Module:
    torch.manual_seed(0)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), *head)


@pytest.mark.parametrize(("make", "lr"), [(small, 5e-3), (small, 0.1), (without_batchnorm, 0.1)])
def test_memo_equals_the_direct_version(make: Callable[[], nn.Module], lr: float) -> None:
    model, batch = make(), images(3, 3, 16, 16)
    expected = torch.cat([direct_memo(model, image[None], draw_views(image[None], 4, 7), lr) for image in batch])
    given = Memo(model, views=4, lr=lr, seed=7)(batch)
    assert (expected - model(batch)).abs().max() > 1e-3
    torch.testing.assert_close(given, expected, rtol=1e-4, atol=1e-5)


@EVERY
def test_images_of_a_batch_are_independent_and_nothing_is_kept(name: str) -> None:
    baseline, batch = BASELINES[name](small()), images(4, 3, 16, 16)
    together = baseline(batch)
    assert together.shape == (4, CLASSES)
    for index in (2, 0, 3, 1):
        assert torch.equal(baseline(batch[index : index + 1]), together[index : index + 1])
    assert torch.equal(BASELINES[name](small())(batch), together)


@EVERY
@pytest.mark.parametrize("outer", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference_mode"])
def test_runs_where_gradients_are_off(name: str, outer: Callable[[], Any]) -> None:
    model, batch = small(), images(2, 3, 16, 16)
    expected = BASELINES[name](model)(batch)
    assert not expected.requires_grad
    with outer():
        assert torch.equal(BASELINES[name](model)(batch.clone()), expected)
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
    BASELINES[name](model)(images(2, 3, 16, 16))
    assert state() == before
    torch.testing.assert_close(dict(model.state_dict()), dict(tensors), rtol=0, atol=0)


def test_views_are_drawn_from_the_image_and_the_seed() -> None:
    first = images(1, 3, 16, 24)
    views = draw_views(first, 8, 0)
    assert views.shape == (8, 3, 16, 24)
    torch.testing.assert_close(views, draw_views(first.contiguous(memory_format=torch.channels_last), 8, 0))
    assert len({view.numpy().tobytes() for view in (*views, first[0])}) == 9
    assert not torch.equal(views, draw_views(first, 8, 1))
    assert not torch.allclose(draw_views(-first, 8, 0), -views)  # other content, other draws
    assert (views.amin((0, 2, 3)) >= first.amin((0, 2, 3))).all()
    assert (views.amax((0, 2, 3)) <= first.amax((0, 2, 3))).all()
    assert draw_views(torch.ones(1, 3, 1, 1), 2, 0).eq(1).all()


def test_models_that_they_cannot_train_are_refused() -> None:
    with pytest.raises(ModelError, match="γ and β"):
        Tent(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, affine=False)))
    for make in BASELINES.values():
        with pytest.raises(ModelError, match="adapted"):
            make(sita.adapt(small()))
    with pytest.raises(OutputError, match=r"2 classes.*\(1, 1, 16, 16\)"):
        Tent(dense(classes=1))(images(1, 3, 16, 16))
    with pytest.raises(OutputError, match="segmentation"):
        Memo(dense())(images(1, 3, 16, 16))
    pooled = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.BatchNorm2d(8), nn.Flatten())
    with pytest.raises(InputError, match="one value per channel"):
        Tent(pooled)(images(1, 3, 16, 16))
